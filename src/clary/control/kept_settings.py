"""The settings with which the service runs, kept in a file, and the settings that must stay while jobs hold hosts.

Where: the service writes `run/started.json` when it is ready; `clary restart` compares it with the settings as they are
by then, before it ends the service.

    {"is_supervised": false, "settings": {"engine": "local", "port": 4570, "database_url": "sha256:...", ...}}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clary.base.whole_files import replace_durably
from clary.control.settings import FIELDS, Settings, variable_of
from clary.control.state_folder import StateFolder

_ADDRESS = "agents and programs of running jobs use the service's address"
_STORE = "agents of running jobs store their results there"
# Setting -> why a change of it would be half applied as long as jobs hold hosts.
FIXED: Mapping[str, str] = {
    "engine": "it manages the hosts of running jobs",
    "isolation": "the hosts of running jobs are isolated as it said",
    "host": _ADDRESS,
    "port": _ADDRESS,
    "tls_port": _ADDRESS,
    "advertise_url": _ADDRESS,
    "region": "programs of running jobs sign their requests for it",
    "account_id": "the ARNs of running jobs contain it",
    "default_bucket": "runs of running jobs store their files there, and keys of jobs open no other bucket for them",
    "database_url": "it has the records of running jobs",
    "s3_endpoint_url": _STORE,
    "s3_access_key_id": _STORE,
    "s3_secret_access_key": _STORE,
}
_SHOWN = 60  # characters of a value in a sentence


@dataclass(frozen=True, kw_only=True)
class KeptSettings:
    """The record that a service has made of its start."""

    is_supervised: bool  # whether it runs in the foreground of the program that started it, which would miss it
    settings: Mapping[str, Any]  # plain values; of secrets only a digest


@dataclass(frozen=True, kw_only=True)
class Change:
    """A setting that has another value than the service that runs."""

    name: str
    before: str
    now: str

    @property
    def words(self) -> str:
        """The change as a part of a sentence."""
        return f"{self.name} ({self.before} -> {self.now})"


def keep_settings(folder: StateFolder, settings: Settings, *, is_supervised: bool) -> None:
    """Record the settings of the service that is ready now. Raises: OSError.

    Args:
        folder: the state folder.
        settings: settings of the service.
        is_supervised: whether the service runs in the foreground of another program.
    """
    kept = {"is_supervised": is_supervised, "settings": _plain(settings)}
    replace_durably(folder.root / "run" / "started.json", json.dumps(kept).encode())


def read_kept(folder: StateFolder) -> KeptSettings | None:
    """Return the record of the last service; None without a record that can be read, as of earlier releases."""
    try:
        kept = json.loads((folder.root / "run" / "started.json").read_text(encoding="utf-8"))
        return KeptSettings(is_supervised=bool(kept["is_supervised"]), settings=dict(kept["settings"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def changes(kept: KeptSettings, settings: Settings, *, port: int) -> list[Change]:
    """Return the settings that differ from those of a service, in the order of their declaration.

    Args:
        kept: record of the service.
        settings: settings as they are now.
        port: port on which the service listens; the next one takes it again if the setting is 0.
    """
    now = _plain(settings)
    found = []
    for name, value in now.items():
        before = kept.settings.get(name, value)  # a setting that the service did not know has no effect on its jobs
        if before != value and not (name == "port" and {before, value} <= {0, port}):
            found.append(Change(name=name, before=_shown(name, before), now=_shown(name, value)))
    return found


def _plain(settings: Settings) -> dict[str, Any]:
    plain = {one.name: getattr(settings, one.name) for one in FIELDS if one.name != "home"}
    for name in plain:
        if _is_secret(name) and plain[name]:
            plain[name] = f"sha256:{hashlib.sha256(str(plain[name]).encode()).hexdigest()}"
    read: dict[str, Any] = json.loads(json.dumps(plain))  # as it will be read again
    return read


def _is_secret(name: str) -> bool:
    return any(one.name == name and one.metadata.get("is_secret") for one in FIELDS)


def _shown(name: str, value: Any) -> str:
    if _is_secret(name):
        return "a secret" if value else "empty"
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def way_back(change: Change) -> str:
    """Return where a setting can be set back."""
    return f"settings.toml or {variable_of(change.name)}"
