"""Chooses the service that commands talk to: this machine's service, or one elsewhere.

In this order: `--context NAME` or CLARY_CONTEXT; CLARY_URL; the context that `clary context use` chose; the service
of the state folder. `contexts.json` in the state folder holds addresses and keys of services elsewhere; only its
owner can read it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from clary.base.errors import ClaryError, ContractError, Fault, WireError
from clary.base.plain import from_plain
from clary.base.whole_files import replace_durably
from clary.cli.parsers import did_you_mean
from clary.control.settings import Settings

LOCAL = "local"  # stands for this machine's service; no context may have this name
CONTEXT_VARIABLE = "CLARY_CONTEXT"
URL_VARIABLE = "CLARY_URL"
TOKEN_VARIABLE = "CLARY_ADMIN_TOKEN"  # noqa: S105 - the name of a variable
CA_VARIABLE = "CLARY_CA_FILE"
PLAIN_VARIABLE = "CLARY_PLAIN_HTTP"
FILE = "contexts.json"
_PRIVATE = 0o600
_OTHERS = 0o077


@dataclass(frozen=True, kw_only=True)
class RemoteService:
    """A service elsewhere: its address and its secrets."""

    url: str
    access_key_id: str
    secret_access_key: str = field(repr=False)
    admin_token: str = field(repr=False)
    region: str = Settings.region
    ca_file: str = ""  # certificate of the service's authority; empty: this machine trusts it already
    plain_http: bool = False  # whether keys may be sent without TLS
    default_bucket: str = Settings.default_bucket
    account_id: str = Settings.account_id
    role_name: str = Settings.role_name

    def check(self, name: str) -> None:
        """Refuse a malformed address, and an address for which keys would cross a network unencrypted.

        Also refuse control characters: `clary env` writes these texts into lines of files of the AWS CLI, where a
        further line may name a program to run.

        Raises: ClaryError.
        """
        for member, value in asdict(self).items():
            if not str(value).isprintable():
                raise ClaryError(
                    f"{name}: {member} has a character that cannot be printed, such as a line end; expected one line "
                    "of text: ask for a new `clary context export`",
                    fault=Fault.USER,
                )
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise ClaryError(
                f"{name}: expected http://host:port or https://host:port, got {self.url!r}", fault=Fault.USER
            )
        if parts.scheme == "http" and not self.plain_http and not _is_here(parts.hostname):
            raise ClaryError(
                f"{name}: {self.url} has no TLS, and the admin token would go over the network in the clear: use "
                f"https, a tunnel (ssh -L), or allow it ({PLAIN_VARIABLE}=1, or clary context add --plain-http)",
                fault=Fault.USER,
            )


@dataclass(frozen=True, kw_only=True)
class Contexts:
    """The content of `contexts.json`."""

    current: str = LOCAL
    services: Mapping[str, RemoteService]

    def of(self, name: str) -> RemoteService:
        """Return a service by its name; raises WireError NotFound."""
        if name not in self.services:
            known = ", ".join([LOCAL, *self.services])
            raise WireError(
                "NotFound", f"there is no context {name!r}; there are {known}{did_you_mean(name, self.services)}"
            )
        return self.services[name]


def chosen_service(settings: Settings, environ: Mapping[str, str] = os.environ) -> tuple[str, RemoteService] | None:
    """Return the service elsewhere that commands talk to, with its name; None for this machine's service.

    Raises: ClaryError; WireError NotFound for an unknown context.
    """
    named = environ.get(CONTEXT_VARIABLE)
    if named == LOCAL:
        return None
    if not named and environ.get(URL_VARIABLE):
        return URL_VARIABLE, _of_environment(environ)
    contexts = read_contexts(settings)
    name = named or contexts.current
    if name == LOCAL:
        return None
    service = contexts.of(name)
    service.check(f"context {name}")
    return name, service


def require_local(settings: Settings, command: str) -> None:
    """Refuse a command that acts on this machine while another service is chosen. Raises: ClaryError."""
    chosen = chosen_service(settings)
    if chosen is not None:
        raise ClaryError(
            f"clary {command} acts on this machine, and {chosen[0]} names a service elsewhere ({chosen[1].url}): "
            f"run it there, or say clary --context {LOCAL} {command}",
            fault=Fault.USER,
        )


@contextlib.contextmanager
def chosen_context(name: str | None) -> Iterator[None]:
    """Make commands talk to this context; None leaves the choice to the environment and the file."""
    before = os.environ.get(CONTEXT_VARIABLE)
    if name is not None:
        os.environ[CONTEXT_VARIABLE] = name
    try:
        yield
    finally:
        if before is not None:
            os.environ[CONTEXT_VARIABLE] = before
        else:
            os.environ.pop(CONTEXT_VARIABLE, None)


def read_contexts(settings: Settings) -> Contexts:
    """Read `contexts.json`, which may be missing. Raises: ContractError if it is damaged or others can read it."""
    path = settings.home_folder / FILE
    try:
        if path.stat().st_mode & _OTHERS:
            raise ContractError(f"{path} holds keys, and others can read it: chmod 600 {path}", fault=Fault.USER)
        document = json.loads(path.read_text(encoding="utf-8"))
        services = {name: read_service(one) for name, one in document["services"].items()}
        return Contexts(current=str(document.get("current", LOCAL)), services=services)
    except FileNotFoundError:
        return Contexts(services={})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ContractError(f"{path} does not hold contexts: {error!r}; mend or remove it", fault=Fault.USER) from error


def write_contexts(settings: Settings, contexts: Contexts) -> None:
    """Write `contexts.json` atomically, readable by its owner alone; it is on the disk then. Raises: OSError."""
    path = settings.home_folder / FILE
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    document = {"current": contexts.current, "services": {name: asdict(one) for name, one in contexts.services.items()}}
    replace_durably(path, json.dumps(document, indent=2).encode(), mode=_PRIVATE)


def read_service(document: Any) -> RemoteService:
    """Return a service as `clary context export` prints it; raises ValueError."""
    try:
        return from_plain(RemoteService, document)
    except ContractError as error:
        raise ValueError(error.message) from error


def context_folder(settings: Settings, name: str) -> Path:
    """Return the folder of a service elsewhere, which holds files for its clients."""
    return settings.home_folder / "contexts" / quote(name, safe="")


def service_settings(settings: Settings, service: RemoteService) -> Settings:
    """Return the settings, with the values that clients read taken from the service's machine."""
    return replace(
        settings,
        region=service.region,
        default_bucket=service.default_bucket,
        account_id=service.account_id,
        role_name=service.role_name,
    )


def _of_environment(environ: Mapping[str, str]) -> RemoteService:
    needed = (TOKEN_VARIABLE, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    missing = [name for name in needed if not environ.get(name)]
    if missing:
        raise ClaryError(
            f"{URL_VARIABLE} names a service, and {', '.join(missing)} "
            f"{('is' if len(missing) == 1 else 'are')} not set; `clary context export` on the service's "
            "machine prints all of them",
            fault=Fault.USER,
        )
    service = RemoteService(
        url=environ[URL_VARIABLE].rstrip("/"),
        access_key_id=environ["AWS_ACCESS_KEY_ID"],
        secret_access_key=environ["AWS_SECRET_ACCESS_KEY"],
        admin_token=environ[TOKEN_VARIABLE],
        region=environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or Settings.region,
        ca_file=environ.get(CA_VARIABLE, ""),
        plain_http=environ.get(PLAIN_VARIABLE, "") not in ("", "0"),
    )
    service.check(URL_VARIABLE)
    return service


def _is_here(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
