"""The engine's record of a pool or an attempt, `engine.json` in its folder: enough to continue after a restart.

Where: the engine writes it before it starts the anchor of a pool's network, and before and after it starts agents.
Records of an earlier boot of the machine name no living process.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clary.base import clock
from clary.base.errors import ContractError, EngineError
from clary.base.passing_errors import is_passing
from clary.base.plain import from_plain, to_plain
from clary.base.processes import ProcessId
from clary.control.engines.local.network.network_spec import READY_FILE, RELEASED_FILE, write_json

RECORD_FILE = "engine.json"
POOL_ATTEMPT = "1"  # name of the only attempt's folder below a pool's folder


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """A pool's processes on this machine, or the pool on whose hosts an attempt runs."""

    boot_id: str
    mark: str  # value of MARK_VARIABLE in the environment of every process that the engine starts for the pool
    agents: Mapping[str, ProcessId] = field(default_factory=dict)  # host name -> its agent
    may_have_unknown_agents: bool = False  # True while agents are being started
    master_port: int | None = None  # port of an attempt without isolation
    cgroup_places: tuple[str, ...] = ()  # folders of the service's cgroups when agents were started
    pool: str = ""  # pool of an attempt, whose record names agents and mark; empty for a pool


@dataclass(frozen=True, kw_only=True)
class NetworkReady:
    """Contents of the file that a network's anchor writes when it is ready or has failed."""

    pid: int
    started: str
    error: str | None
    namespaces: Mapping[str, int] = field(default_factory=dict)  # host name -> the anchor's descriptor of its network
    switch: int = -1  # the anchor's descriptor of the switch's network namespace
    has_user_namespace: bool = False  # of the anchor's own, because the anchor is not root
    users: int = -1  # the anchor's descriptor of the programs' user namespace; -1 if they have the users of the anchor
    first_id: int = 0  # first id of the range in that user namespace
    is_switched_by_us: bool = False

    @property
    def anchor(self) -> ProcessId:
        """The process that wrote the file, dead or alive."""
        return ProcessId(self.pid, self.started)


def boot_id() -> str:
    """Return the id of this boot of the machine; empty if the kernel does not give one.

    Raises: EngineError if it cannot be read at the moment.
    """
    try:
        return clock.boot_id()
    except OSError as error:
        raise EngineError(f"the id of the machine's boot cannot be read now: {error}", retryable=True) from error


def read_record(folder: Path) -> AttemptRecord | None:
    """Return the record in the folder of an attempt or a pool, or None if there is no record.

    Raises: EngineError if it cannot be read: processes are never guessed. It is retryable if only the machine refuses
        at the moment, for example because of too many open files; else the record is damaged.
    """
    path = folder / RECORD_FILE
    try:
        return from_plain(AttemptRecord, json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ContractError) as error:
        words = f"{path}: the engine's record cannot be read: {error}"
        raise EngineError(words, retryable=is_passing(error)) from error


def create_record(
    folder: Path, *, pool: str = "", master_port: int | None = None, cgroup_places: tuple[str, ...] = ()
) -> AttemptRecord:
    """Return the record of this boot, and create it with these facts if missing.

    Concurrent callers get the same record.

    Args:
        folder: folder of an attempt or a pool.
        pool: pool on whose hosts an attempt runs; empty for a pool.
        master_port: master port of an attempt whose hosts share the machine's network.
        cgroup_places: folders below which agents may make cgroups.
    Raises: EngineError naming the file.
    """
    record = read_record(folder)
    if record is not None and record.boot_id == boot_id():
        return record
    if record is not None:  # of an earlier boot: all processes that it names have ended
        (folder / RECORD_FILE).unlink(missing_ok=True)
    fresh = AttemptRecord(
        boot_id=boot_id(), mark=secrets.token_hex(16), pool=pool, master_port=master_port, cgroup_places=cgroup_places
    )
    partial = folder / f"{RECORD_FILE}.{fresh.mark}"
    try:
        write_json(str(partial), to_plain(fresh))
        try:
            os.link(partial, folder / RECORD_FILE)  # unlike a rename, a link never replaces another process's file
        except FileExistsError:
            pass
        finally:
            partial.unlink()
    except OSError as error:
        raise EngineError(f"{folder / RECORD_FILE}: cannot be written: {error.strerror}", retryable=True) from error
    found = read_record(folder)
    assert found is not None, "records are removed with their folder only"
    return found


def write_record(folder: Path, record: AttemptRecord) -> None:
    """Replace the attempt's record.

    Raises: EngineError naming the file; the old record stays.
    """
    path = folder / RECORD_FILE
    try:
        write_json(str(path), to_plain(record))
    except OSError as error:
        raise EngineError(f"{path}: cannot be written: {error.strerror}", retryable=True) from error


def attempt_folders(jobs: Path) -> list[Path]:
    """Return the folders of all attempts and pools below `jobs`, sorted; they may be removed during the search."""
    found: list[Path] = []
    for path in sorted(jobs.iterdir()) if jobs.is_dir() else ():
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found += sorted(path.iterdir())
    return found


def pool_folder(folder: Path) -> Path | None:
    """Return the folder of the pool whose hosts an attempt runs on, or None if `folder` is a pool's or has no record.

    Raises: EngineError if the attempt's record cannot be read.
    """
    record = read_record(folder)
    return folder.parents[1] / record.pool / POOL_ATTEMPT if record is not None and record.pool else None


def living_agents(pool: Path) -> dict[str, ProcessId]:
    """Return host name -> process of each living agent of a pool.

    Raises: EngineError if the pool's record cannot be read.
    """
    record = read_record(pool)
    agents = {} if record is None or record.boot_id != boot_id() else record.agents
    return {host: agent for host, agent in agents.items() if agent.is_alive()}


def living_anchor(pool: Path) -> ProcessId | None:
    """Return the process that holds a pool's network, or None if it has ended or is not ready yet."""
    ready = read_ready(pool)
    return ready.anchor if ready is not None and ready.anchor.is_alive() else None


def read_ready(folder: Path) -> NetworkReady | None:
    """Return the contents of the anchor's ready file in a folder, or None if it is missing or damaged.

    Raises: EngineError if only the machine refuses to read it at the moment.
    """
    path = folder / READY_FILE
    try:
        return from_plain(NetworkReady, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, ContractError) as error:
        if is_passing(error):
            raise EngineError(f"{path}: cannot be read now: {error}", retryable=True) from error
        return None


def is_released(folder: Path) -> bool:
    """Whether the attempt has been released."""
    return (folder / RELEASED_FILE).exists()
