"""Sources of packages: pip's configuration of this machine, as variables of uv.

Where: `installation` gives the result to uv, which does not read pip's configuration itself. Existing settings of the
machine for uv take precedence. An installation gets only one kind of the owner's secrets: the credentials of the
configured indexes. `variables` also asks this module which of the owner's variables a program may get.
Source: pip documentation, "Configuration"; uv documentation, "Compatibility with pip".
"""

from __future__ import annotations

import netrc
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from clary.contract.settings.pip_options import pip_options

_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
# Settings of uv and pip that say where and how packages are fetched and built; the rest of PIP_* and UV_*, such as the
# owner's tokens for publishing, is not an installation's business.
_UV_SETTINGS = (
    r"BUILD_CONSTRAINT|COMPILE_BYTECODE|CONCURRENT_BUILDS|CONCURRENT_DOWNLOADS|CONCURRENT_INSTALLS|"
    r"CONFIG_FILE|CONSTRAINT|EXCLUDE|EXCLUDE_NEWER|FORK_STRATEGY|HTTP_CONNECT_TIMEOUT|HTTP_RETRIES|"
    r"HTTP_TIMEOUT|INDEX_STRATEGY|INSECURE_HOST|LINK_MODE|NATIVE_TLS|NO_BINARY|NO_BINARY_PACKAGE|"
    r"NO_BUILD|NO_BUILD_ISOLATION|NO_BUILD_PACKAGE|NO_CONFIG|NO_INDEX|NO_SOURCES|OFFLINE|OVERRIDE|"
    r"PRERELEASE|REQUEST_TIMEOUT|REQUIRE_HASHES|RESOLUTION|SYSTEM_CERTS|TORCH_BACKEND|VERIFY_HASHES"
)
_PIP_SETTINGS = (
    r"BREAK_SYSTEM_PACKAGES|CERT|CLIENT_CERT|CONFIG_FILE|CONSTRAINT|DEFAULT_TIMEOUT|"
    r"DISABLE_PIP_VERSION_CHECK|EXTRA_INDEX_URL|FIND_LINKS|INDEX_URL|NO_BINARY|NO_BUILD_ISOLATION|"
    r"NO_CACHE_DIR|NO_INDEX|NO_INPUT|ONLY_BINARY|PRE|PREFER_BINARY|RETRIES|TIMEOUT|TRUSTED_HOST"
)
_SETTINGS = re.compile(f"UV_({_UV_SETTINGS})|PIP_({_PIP_SETTINGS})")
_INDEX_LOGIN = re.compile(r"UV_INDEX_\w+_(USERNAME|PASSWORD)")  # of an index that UV_INDEX or uv.toml names
_PUBLISHING = "UV_PUBLISH_"
_SECRETS = ("PASSWORD", "PASSWD", "PASSPHRASE", "TOKEN", "SECRET", "CREDENTIAL", "KEYRING", "API_KEY", "PRIVATE_KEY")
_INDEX_LISTS = {"UV_FIND_LINKS": ",", "UV_INDEX": None, "UV_EXTRA_INDEX_URL": None}  # variable -> separator


# Settings that send an installer to the owner's keyring for logins. Their values are no secrets, but are of use only to
# a process whose HOME is the owner's.
KEYRING_SETTINGS = ("UV_KEYRING_PROVIDER", "PIP_KEYRING_PROVIDER")


def is_installers(name: str) -> bool:
    """Whether an installation gets this variable of the machine: for a package index, its login, or the installer."""
    return name in _INDEX_VARIABLES or any(one.fullmatch(name) for one in (_SETTINGS, _INDEX_LOGIN))


def is_secret(name: str) -> bool:
    """Whether a variable's name says that it is a secret, or serves publishing; logins of indexes do not count."""
    if _INDEX_LOGIN.fullmatch(name):
        return False
    return name.startswith(_PUBLISHING) or any(word in name.upper() for word in _SECRETS)


def uv_index_variables(machine: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return UV_* variables that make uv search where pip would search.

    Args:
        machine: environment of the agent: HOME, PIP_*, UV_*.
        prefix: root of the Python environment, which may have a pip.conf of its own.
    """
    if any(name in machine for name in _INDEX_VARIABLES):
        return {}
    options = pip_options(machine, prefix)
    variables = {}
    extra = _existing(options.get("extra-index-url", "").split())
    links = _existing(options.get("find-links", "").split())
    if options.get("index-url"):
        variables["UV_DEFAULT_INDEX"] = options["index-url"]
    if extra:
        variables["UV_INDEX"] = " ".join(extra)
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # like pip: the newest version in all indexes
    if links:
        variables["UV_FIND_LINKS"] = ",".join(links)
    if options.get("trusted-host"):
        variables["UV_INSECURE_HOST"] = " ".join(options["trusted-host"].split())
    if options.get("cert") and "SSL_CERT_FILE" not in machine:
        variables["SSL_CERT_FILE"] = options["cert"]
    return variables


def is_without_index(machine: Mapping[str, str], prefix: str) -> bool:
    """Whether pip's configuration sets `no-index`, for which uv has an option but no variable."""
    return pip_options(machine, prefix).get("no-index", "").lower() in ("1", "true", "yes", "on")


def local_folders(variables: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the local folders that UV_* variables name as package sources.

    For an index named `simple`, whose pages link to files beside it, its parent folder is returned.
    """
    found = []
    for name in _INDEX_VARIABLES:
        for place in _places(variables, name):
            plain = place if name == "UV_FIND_LINKS" else place.partition("=")[2] or place
            is_file = plain.startswith("file:")
            path = Path(unquote(urlsplit(plain).path) if is_file else plain).expanduser()
            if (is_file or "://" not in plain) and path.is_absolute() and path.exists():
                found.append(path.parent if path.name == "simple" else path)
    return tuple(dict.fromkeys(found))


def with_credentials(variables: Mapping[str, str], machine: Mapping[str, str]) -> dict[str, str]:
    """Return `variables` with the owner's .netrc credentials for the indexes in them.

    An installation never sees the .netrc file, which has credentials for other servers too.
    """
    place = Path(machine.get("NETRC") or Path(machine.get("HOME", "/"), ".netrc"))
    try:
        known = netrc.netrc(place)
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return dict(variables)
    filled = dict(variables)
    for name in _INDEX_VARIABLES:
        places = [_with_login(place, known) for place in _places(variables, name)]
        if places:
            filled[name] = (_INDEX_LISTS.get(name) or " ").join(places)
    return filled


def _places(variables: Mapping[str, str], name: str) -> list[str]:
    value = variables.get(name, "")
    return [place.strip() for place in value.split(_INDEX_LISTS.get(name)) if place.strip()]


def _with_login(place: str, known: netrc.netrc) -> str:
    parts = urlsplit(place.partition("=")[2] if "=" in place.partition("://")[0] else place)
    login = known.authenticators(parts.hostname) if parts.scheme in ("http", "https") and parts.hostname else None
    if login is None or "@" in parts.netloc or parts.hostname not in known.hosts:
        return place
    user, _, password = login
    return place.replace("://", f"://{quote(user, safe='')}:{quote(password or '', safe='')}@", 1)


def _existing(places: Sequence[str]) -> list[str]:
    """Drop folders that do not exist: pip only warns about them, uv fails."""
    return [place for place in places if not _is_missing_folder(place)]


def _is_missing_folder(place: str) -> bool:
    if place.startswith("file:"):
        return not Path(unquote(urlsplit(place).path)).exists()
    return "://" not in place and not Path(place).expanduser().exists()
