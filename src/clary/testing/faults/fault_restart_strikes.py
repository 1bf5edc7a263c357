"""Faults of the state folder while the service is down: files are missing or incomplete at its next start.

Where: `fault_executor` calls it. Without its database or its keys, the service must refuse to start, name the file and
the remedies, and create no new file; after the file or a backup is put back, it runs as before.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from clary.control.state_folder import StateFolder
from clary.control.store.backups import SIDE_FILES, Backups
from clary.control.store.database_life import BACKUP_FOLDER
from clary.control.store.log_files import log_records
from clary.testing.faults.fault_damage import Damage, choose, damage_of
from clary.testing.faults.fault_plan import Fault
from clary.testing.faults.fault_ruin import BrokenPromise, noise, put_aside, ruin
from clary.testing.faults.fault_state_strikes import DATABASE, tear
from clary.testing.faults.fault_world import FaultWorld

COMMAND_TIMEOUT_S = 60.0
SPARE_BYTES = 64 * 1024 * 1024  # free space for a copy of the database and for the files that are put back
BACKUP_SHARE = 0.5  # share of lost databases that are restored from a backup; other databases are put back


def lose_database(world: FaultWorld, fault: Fault) -> Damage | None:
    """Start the service without its database, which it must refuse; then put the database or a backup of it back."""
    path = world.home / DATABASE
    sides = [Path(f"{path}{suffix}") for suffix in SIDE_FILES]
    if not path.exists() or shutil.disk_usage(world.home).free < SPARE_BYTES:
        return None
    with world.service.down():
        put_back = put_aside([path, *sides], world.aside)
        backup = _backup(world, path) if fault.choice < BACKUP_SHARE else ""
        # Put all files back in their former state, since making the backup merges the journal into the database.
        put_back()
        for side in sides:
            side.unlink(missing_ok=True)
        ruin(path, fault)
        _require_refusal(world, path, ("clary up --new-database", *((backup,) if backup else ())), put_back)
        if backup:
            _restore(world, backup, put_back)
        else:
            put_back()
    return damage_of(fault, f"{path.name}, {fault.ruin}, {'restored' if backup else 'put back'}")


def lose_keys(world: FaultWorld, fault: Fault) -> Damage | None:
    """Start the service without its keys, which it must refuse, and put them back."""
    path = StateFolder(world.home).secrets_path
    if not path.exists() or shutil.disk_usage(world.home).free < SPARE_BYTES:
        return None
    with world.service.down():
        put_back = put_aside([path], world.aside)
        ruin(path, fault)
        _require_refusal(world, path, ("clary up --new-keys",), put_back)
        put_back()
    return damage_of(fault, f"{path.name}, {fault.ruin}, put back")


def tear_log(world: FaultWorld, fault: Fault) -> Damage | None:
    """Kill the service and simulate interrupted writes: half a line in a log, a damaged index, incomplete drafts."""
    logs = sorted(StateFolder(world.home).logs.glob("**/*.log"))
    path = choose(logs, fault)
    if path is None:
        return None
    with world.service.down():
        if not path.exists():
            return None
        record, _ = log_records.pack_lines("torn line", at_ms=0, ingestion_ms=0, rank=None)
        tear(path, _end_of(path), record)
        ruin(path.with_suffix(".idx"), fault)
        for draft in (
            path.with_suffix(".new"),
            world.home / "run" / "service.json.1.tmp",
            world.home / "run" / "seaweed.new",
            world.home / f"{DATABASE}.put-back",
            world.home / f"{DATABASE}.new",
        ):
            with suppress(OSError):  # no draft can be written on a full disk
                draft.write_bytes(noise(fault, 100))
    return damage_of(fault, f"{path.name}, index {fault.ruin}")


def _require_refusal(world: FaultWorld, path: Path, words: Collection[str], put_back: Callable[[], None]) -> None:
    """Try to start the service; raises BrokenPromise, after putting the file back, unless it refuses in these words."""
    before = path.read_bytes() if path.exists() else None
    said = world.service.refusal()
    after = path.read_bytes() if path.exists() else None
    missing = [word for word in (str(path), *words) if word not in said]
    if said and not missing and after == before:
        return
    world.service.kill()
    put_back()
    if not said:
        raise BrokenPromise(f"the service starts without {path}")
    if missing:
        raise BrokenPromise(
            f"the service refuses to start but does not say {', '.join(missing)}; it says {said[-1000:]}"
        )
    raise BrokenPromise(f"a start that was refused has changed {path}")


def _backup(world: FaultWorld, path: Path) -> str:
    """Make a backup of a database that no process has open; return its file's name."""
    backups = Backups(path, world.home / BACKUP_FOLDER, keep=3, monotonic=time.monotonic)
    return backups.make(datetime.now(UTC)).path.name


def _restore(world: FaultWorld, backup: str, put_back: Callable[[], None]) -> None:
    """Restore a backup as an owner does; raises BrokenPromise, after putting the database back, if that fails."""
    command = [sys.executable, "-m", "clary.cli.main", "backup", "restore", backup]
    environment = {**os.environ, "CLARY_HOME": str(world.home)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    if done.returncode:
        put_back()
        raise BrokenPromise(f"`clary backup restore {backup}` ended with {done.returncode}: {done.stderr[-1000:]}")


def _end_of(path: Path) -> int:
    """Return the offset of the end of a log's last complete record."""
    data = path.read_bytes()
    _, end = log_records.unpack_header(data, path=str(path))

    def read(offset: int, count: int) -> bytes:
        return data[offset : offset + count]

    for record in log_records.scan(read, start=end, size=len(data), path=str(path)):
        end = record.end
    return end
