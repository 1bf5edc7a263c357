"""Damage to the record of one job in the database, and its repair as an owner would do it.

Where: `fault_executor` calls it. Until the record is mended, the service may refuse requests for the job, with an error
that names the command to release the record; every other job continues, and no other job is named. Afterwards the job
is as before.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

from clary.testing.faults.fault_damage import Damage, damage_of
from clary.testing.faults.fault_plan import Fault
from clary.testing.faults.fault_ruin import WAIT_S, BrokenPromise
from clary.testing.faults.fault_state_strikes import DATABASE
from clary.testing.faults.fault_world import FaultWorld

KEPT_CHARACTERS = 60  # length of the truncated record: it ends within a member's name, so it is not valid JSON
LOCK_TIMEOUT_S = 20.0
POLL_S = 0.1


def spoil_row(world: FaultWorld, fault: Fault, job_name: str) -> Damage | None:
    """Truncate a job's record while the service runs (amount 0) or is down (1).

    Args:
        world: world of the service and its database.
        fault: its amount is 0 or 1.
        job_name: name of the job; empty for no strike.
    Returns: the damage, whose `mend` restores the record; None if the record was not found or could not be written.
    """
    if not job_name:
        return None
    before = ""
    with world.service.down() if fault.amount else nullcontext(), suppress(OSError):
        before = _exchange(world, job_name, None)
    if not before:
        return None
    when = "while the service was down" if fault.amount else "while the service ran"
    return damage_of(fault, when, job_name=job_name, mend=partial(_mend, world, job_name, before))


def _mend(world: FaultWorld, job_name: str, before: str) -> None:
    """Put the record back, unless the service has rewritten it, and release it from quarantine; raises BrokenPromise.

    The service rewrites a record itself if it has a copy in memory.
    """
    world.ask(lambda: _exchange(world, job_name, before))
    deadline = time.monotonic() + WAIT_S
    while True:
        held = [entry["id"] for entry in _entries(world) if entry["is_held"] and entry["name"] == job_name]
        if not held:
            return
        if time.monotonic() > deadline:
            raise BrokenPromise(f"the record of {job_name} stays in quarantine though it was mended and released")
        for number in held:
            world.ask(partial(world.own_page, "quarantine", {"action": "release", "id": number}))
        time.sleep(POLL_S)


def held_records(world: FaultWorld) -> list[str]:
    """Return the records in quarantine, with the reasons."""
    return [f"{entry['source']} {entry['name']}: {entry['reason']}" for entry in _entries(world) if entry["is_held"]]


def _entries(world: FaultWorld) -> list[dict[str, Any]]:
    answer: dict[str, Any] = world.ask(lambda: world.own_page("quarantine"))
    return list(answer["entries"])


def _exchange(world: FaultWorld, job_name: str, back: str | None) -> str:
    """Truncate a job's record and return the original.

    With `back`, restore the record if it is still truncated. Return "" if the record is missing or was not restored.

    Raises: OSError while the database accepts no statements.
    """
    with _connected(world) as (execute, mark):
        found = execute(f"SELECT document FROM jobs WHERE name = {mark}", (job_name,)).fetchone()  # noqa: S608
        whole = str(found[0]) if found else ""
        if back is not None and whole != back[:KEPT_CHARACTERS]:
            return ""
        text = whole[:KEPT_CHARACTERS] if back is None else back
        execute(f"UPDATE jobs SET document = {mark} WHERE name = {mark}", (text, job_name))  # noqa: S608
        return whole


@contextlib.contextmanager
def _connected(world: FaultWorld) -> Iterator[tuple[Any, str]]:
    """Yield a function that executes statements in one transaction, and the parameter marker; raises OSError."""
    if world.database_url:
        import psycopg

        try:
            with psycopg.connect(world.database_url, connect_timeout=int(LOCK_TIMEOUT_S)) as server:
                yield server.execute, "%s"
        except psycopg.Error as error:
            raise OSError(f"PostgreSQL: {error}") from error
        return
    url = f"{(world.home / DATABASE).absolute().as_uri()}?mode=rw"
    try:
        with contextlib.closing(sqlite3.connect(url, uri=True, timeout=LOCK_TIMEOUT_S, isolation_level=None)) as file:
            file.execute("BEGIN IMMEDIATE")
            yield file.execute, "?"
            file.execute("COMMIT")
    except sqlite3.Error as error:
        raise OSError(f"{DATABASE}: {error}") from error
