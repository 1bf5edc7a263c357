"""Faults of the state folder while the service runs: its database, its keys, its records, the spool of an agent.

Where: `fault_executor` calls it. The service itself must repair this damage, from its memory or from running processes,
and lose nothing that it has acknowledged. It can repair the keys and the database only while it runs, so the functions
that damage them return only after the repair, and no other fault strikes meanwhile.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path

from clary.base.errors import ClaryError
from clary.contract.log_blocks import SEGMENT_SUFFIX, SPOOL_FOLDER, pack_block, parse_blocks
from clary.control.engines.local.attempt_record import RECORD_FILE
from clary.control.engines.local.network.network_spec import READY_FILE, RELEASED_FILE, SPEC_FILE
from clary.control.objects.weed_process import StoreRecord
from clary.control.state_folder import StateFolder, read_record_file
from clary.control.store.backups import SIDE_FILES
from clary.testing.faults.fault_damage import Damage, choose, damage_of
from clary.testing.faults.fault_plan import Fault, Ruin
from clary.testing.faults.fault_ruin import noise, ruin, wait_until
from clary.testing.faults.fault_world import FaultWorld

DATABASE = "clary.db"
END_TIMEOUT_S = 20.0


def delete_database(world: FaultWorld, fault: Fault) -> Damage | None:
    """Delete all or some of the database's files, or replace them; the service must put them back."""
    path = world.home / DATABASE
    if not world.service.is_up or not path.exists():
        return None
    before = path.stat().st_ino
    if fault.ruin is Ruin.HALVED:
        gone = choose([Path(f"{path}{suffix}") for suffix in SIDE_FILES], fault)
        assert gone is not None, "there are two"
        if not gone.exists():
            return None
        gone.unlink()
        what = gone.name
    elif fault.ruin is Ruin.DELETED:
        for suffix in ("", *SIDE_FILES):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        what = "all files"
    else:
        other = world.home / f"{DATABASE}.other"
        other.write_bytes(b"" if fault.ruin is Ruin.EMPTIED else noise(fault, 8192))
        before_other = other.stat().st_ino
        other.replace(path)
        wait_until(lambda: _inode(path) not in (None, before, before_other), f"{path} is put back when it was replaced")
        return damage_of(fault, f"{path.name}, replaced")
    wait_until(lambda: _inode(path) not in (None, before), f"{path} is put back when {what} was deleted")
    return damage_of(fault, f"{path.name}: {what}")


def damage_keys(world: FaultWorld, fault: Fault) -> Damage | None:
    """Damage secrets/root.json of the running service, which must write the same keys again."""
    path = StateFolder(world.home).secrets_path
    if not world.service.is_up or not path.exists():
        return None
    before = path.read_bytes()
    ruin(path, fault)
    wait_until(lambda: path.exists() and path.read_bytes() == before, f"{path} holds the same keys again")
    return damage_of(fault, f"{path.name}, {fault.ruin}")


def damage_service_record(world: FaultWorld, fault: Fault) -> Damage | None:
    """Damage run/service.json; the service rewrites it, now or at its next start."""
    folder = StateFolder(world.home)
    if not ruin(folder.service_record_path, fault):
        return None

    def is_sound() -> bool:
        with suppress(ClaryError):
            return read_record_file(folder.service_record_path) is not None
        return False

    mend = partial(wait_until, is_sound, f"{folder.service_record_path} names the service again")
    return damage_of(fault, f"{folder.service_record_path.name}, {fault.ruin}", mend=mend)


def damage_store_record(world: FaultWorld, fault: Fault) -> Damage | None:
    """Damage run/seaweed.json; the service rewrites it, and after a restart finds the running store."""
    path = world.home / "run" / "seaweed.json"
    if not ruin(path, fault):
        return None
    mend = partial(wait_until, lambda: StoreRecord.read(path) is not None, f"{path} names the object store again")
    return damage_of(fault, f"{path.name}, {fault.ruin}", mend=mend)


def damage_engine_record(world: FaultWorld, fault: Fault, job_name: str) -> Damage | None:
    """Damage the engine's record of a job's processes; the job must not notice.

    Args:
        world: world of the service and its state folder.
        fault: its `ruin` tells the kind of damage.
        job_name: name of the job.
    Returns: the damage, which needs no mending; None if the job has no such file now.
    """
    folder = world.pool_folder(job_name)
    if folder is None or not ruin(folder / RECORD_FILE, fault):
        return None
    return damage_of(fault, f"{RECORD_FILE}, {fault.ruin}", job_name=job_name)


def damage_network_record(world: FaultWorld, fault: Fault, job_name: str) -> Damage | None:
    """Damage a file of the process that holds a job's network; that process writes the file again while it lives.

    Args: as `damage_engine_record`.
    Returns: the damage, whose `mend` waits until the file is restored; None if the job has no such file now.
    """
    folder = world.pool_folder(job_name)
    anchor = world.anchor(job_name)
    path = choose([folder / READY_FILE, folder / SPEC_FILE], fault) if folder is not None else None
    if anchor is None or folder is None or path is None:
        return None
    before = path.read_bytes() if path.exists() else b""
    if not before or not ruin(path, fault):
        return None

    def is_back() -> bool:
        if (folder / RELEASED_FILE).exists() or not anchor.is_alive():
            return True  # the file is no longer needed
        return path.exists() and path.read_bytes() == before

    mend = partial(wait_until, is_back, f"{path} is as it was")
    return damage_of(fault, f"{path.name}, {fault.ruin}", job_name=job_name, mend=mend)


def tear_spool(world: FaultWorld, fault: Fault, job_name: str) -> Damage | None:
    """Kill an agent and simulate an interrupted write to its spool; all complete lines must reach the log.

    Args:
        world: world of the service and its state folder.
        fault: its choice picks the agent.
        job_name: name of the job.
    Returns: the damage, which needs no mending; None if no agent of the job lives.
    """
    agents = world.agents(job_name)
    host = choose(sorted(agents), fault)
    if host is None:
        return None
    agents[host].kill(timeout_s=END_TIMEOUT_S)
    segments = sorted((world.attempt_folder(job_name) / host / SPOOL_FOLDER).glob(f"*{SEGMENT_SUFFIX}"))
    with suppress(OSError):  # the service has already removed it
        for path in segments[-1:]:
            tear(path, parse_blocks(path.read_bytes())[1], pack_block(b"torn line", at_ms=0, rank=None))
    return damage_of(fault, f"process {agents[host].pid} of {host}", job_name=job_name)


def tear(path: Path, end: int, record: bytes) -> None:
    """Write the first half of a record after the last complete record.

    Args:
        path: an existing file of records.
        end: offset of the end of the last complete record; the file is cut there.
        record: record whose first half is written.
    """
    with path.open("r+b") as file:
        file.truncate(end)
        file.seek(end)
        file.write(record[: len(record) // 2])


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None
