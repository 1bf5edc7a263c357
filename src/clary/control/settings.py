"""Settings of the service: each declared once, read from `settings.toml` and `CLARY_*` variables.

Where: `clary up` and every command load them; nothing below the server reads the environment. The environment wins
over the file, the file over the defaults. `docs/settings.md` is checked against `FIELDS` by a test.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from clary.contract.errors import ContractError, Fault

SETTINGS_FILE = "settings.toml"


def _setting(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that can be set; durations in seconds, sizes in bytes."""

    home: str = _setting("~/.clary", "state folder: database, objects, logs, keys, caches")
    host: str = _setting("127.0.0.1", "address on which the service listens")
    port: int = _setting(4570, "port of the service; 0 takes a free one")
    tls_port: int = _setting(4571, "second port, TLS under a private CA, for clients that insist on https; 0 is off")
    region: str = _setting("us-west-2", "region that clients name; framework estimators need a real one")
    account_id: str = _setting("000000000000", "account in every ARN, twelve digits")
    role_name: str = _setting("ClaryExecutionRole", "execution role that clients may pass")
    default_bucket: str = _setting("clary", "bucket that the SDKs use by default")
    database_url: str = _setting("", "SQLAlchemy URL; empty is SQLite in the state folder")
    internet: bool = _setting(True, "let programs reach the internet through the service's proxy (HTTPS only)")
    s3_endpoint_url: str = _setting("", "object store to use; empty starts the embedded SeaweedFS")
    s3_access_key_id: str = _setting("", "key of that object store")
    s3_secret_access_key: str = _setting("", "secret of that object store")
    clock_skew_s: float = _setting(300.0, "how far a signature's time may be off")
    max_body_bytes: int = _setting(8 * 1024 * 1024, "largest body of an API request; S3 objects are not limited")
    isolation: str = _setting("auto", "auto, namespaces or processes: how hosts are kept apart")
    max_hosts: int = _setting(0, "hosts that may run at once on this machine; 0 is twice the CPUs, at least 4")
    memory_per_host_bytes: int = _setting(0, "memory limit of a host; 0 divides four fifths of the machine")
    clamp_processes: bool = _setting(True, "lower an instance type's processes per host to this machine's CPUs or GPUs")
    default_python: str = _setting("", "interpreter for images that no rule names; empty looks for one with torch")
    stop_grace_s: float = _setting(120.0, "from SIGTERM to SIGKILL")
    host_timeout_s: float = _setting(5.0, "silence after which a host of a running job is lost")
    launch_timeout_s: float = _setting(120.0, "time for a launched host's agent to report")
    upload_timeout_s: float = _setting(3600.0, "time for results to reach the object store")
    images: Mapping[str, str] = field(
        default_factory=dict,
        metadata={"help": "table: image pattern (repo:tag, * matches) = environment name"},
    )
    environments: Mapping[str, str] = field(
        default_factory=dict, metadata={"help": "table: environment name = path of its Python interpreter"}
    )
    instance_types: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict,
        metadata={"help": "table per type: gpus, cpus, memory_gib, rate_mbit_s, delay_ms, loss_percent, processes"},
    )

    @property
    def home_folder(self) -> Path:
        """The state folder, expanded."""
        return Path(self.home).expanduser().absolute()

    @property
    def resolved_database_url(self) -> str:
        """The database URL, with the default filled in."""
        return self.database_url or f"sqlite:///{self.home_folder / 'clary.db'}"


FIELDS = tuple(fields(Settings))


def load_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read settings from the environment and from `settings.toml` in the state folder.

    Raises: ContractError naming the file or variable, the setting, what was expected and what came.
    """
    home = Path(environ.get("CLARY_HOME", Settings.home)).expanduser()
    values: dict[str, Any] = {}
    path = home / SETTINGS_FILE
    if path.exists():
        values.update(_read_file(path))
    for setting in FIELDS:
        variable = f"CLARY_{setting.name.upper()}"
        if variable in environ and setting.name not in ("images", "environments", "instance_types"):
            values[setting.name] = _convert(setting.name, environ[variable], source=variable)
    values["home"] = str(home)
    return Settings(**values)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ContractError(f"{path}: not valid TOML: {error}", fault=Fault.USER) from error
    known = {setting.name for setting in FIELDS}
    for name in document:
        if name not in known:
            raise ContractError(
                f"{path}: unknown setting {name!r}; known are {', '.join(sorted(known))}", fault=Fault.USER
            )
    return {name: _convert(name, value, source=str(path)) for name, value in document.items()}


def _convert(name: str, value: Any, *, source: str) -> Any:
    default = getattr(Settings, name, None)
    wanted: type = dict if default is None else type(default)
    try:
        if wanted is bool:
            return _to_bool(value)
        if wanted is dict:
            if not isinstance(value, dict):
                raise ValueError("expected a table")
            return value
        if wanted is str and not isinstance(value, str):
            raise ValueError("expected text")
        return wanted(value)
    except (TypeError, ValueError) as error:
        raise ContractError(
            f"{source}: setting {name} expects {wanted.__name__}, got {value!r} ({error})", fault=Fault.USER
        ) from error


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    words = {
        "true": True,
        "1": True,
        "yes": True,
        "on": True,
        "false": False,
        "0": False,
        "no": False,
        "off": False,
    }
    text = str(value).strip().lower()
    if text not in words:
        raise ValueError("expected true or false")
    return words[text]
