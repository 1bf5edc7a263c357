"""What the engine knows of one attempt, in `engine.json` of its folder: enough to go on after a restart.

Where: written before and after every act that makes something outlive the service. Records of an earlier boot of the
machine name no living process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clary.contract.errors import EngineError
from clary.contract.plain import from_plain, to_plain
from clary.contract.processes import ProcessId
from clary.control.engines.local.fabric import READY_FILE, RELEASED_FILE, write_json

RECORD_FILE = "engine.json"


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """One attempt's processes on this machine."""

    boot_id: str
    mark: str  # value of MARK_VARIABLE in the environment of everything that the engine starts for the attempt
    agents: Mapping[str, ProcessId] = field(default_factory=dict)  # host name -> its agent
    may_have_unknown_agents: bool = False  # set while agents are being started
    master_port: int | None = None  # without isolation
    cgroup_places: tuple[str, ...] = ()  # folders of the service's cgroups when agents were started


def boot_id() -> str:
    """Return the id of this boot of the machine; empty where the kernel does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def read_record(folder: Path) -> AttemptRecord | None:
    """Return the attempt's record, or None if there is none.

    Raises: EngineError if it can not be read: nothing is guessed about processes.
    """
    path = folder / RECORD_FILE
    try:
        return from_plain(AttemptRecord, json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise EngineError(f"{path}: the engine's record can not be read: {error}") from error


def write_record(folder: Path, record: AttemptRecord) -> None:
    """Replace the attempt's record.

    Raises: EngineError naming the file; the old record stays.
    """
    path = folder / RECORD_FILE
    try:
        write_json(str(path), to_plain(record))
    except OSError as error:
        raise EngineError(f"{path}: can not be written: {error.strerror}", retryable=True) from error


def read_ready(folder: Path) -> dict[str, object] | None:
    """Return what the anchor of the attempt's network last said; None before it has."""
    try:
        document = json.loads((folder / READY_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def anchor_of(ready: Mapping[str, object] | None) -> ProcessId | None:
    """Return the anchor that wrote a ready file, dead or alive; None for no file."""
    if ready is None:
        return None
    pid, started = ready.get("pid"), ready.get("started")
    return ProcessId(pid, started) if isinstance(pid, int) and isinstance(started, str) else None


def is_released(folder: Path) -> bool:
    """Whether the attempt has been released."""
    return (folder / RELEASED_FILE).exists()
