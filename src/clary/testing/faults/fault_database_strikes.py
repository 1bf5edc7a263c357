"""Faults of the database: PostgreSQL's connections and processes, and locks of PostgreSQL or SQLite."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from contextlib import suppress
from typing import Any

from clary.testing.faults.fault_damage import Damage, damage_of
from clary.testing.faults.fault_plan import Fault
from clary.testing.faults.fault_world import FaultWorld

STEP_S = 0.02  # seconds between searches for new connections
CONNECT_TIMEOUT_S = 10
SQLITE_TIMEOUT_S = 5.0
_END_BACKENDS = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE application_name = 'clary' AND datname = current_database()"
)
_ONE_BACKEND = (
    "SELECT pid FROM pg_stat_activity WHERE application_name = 'clary' AND datname = current_database() LIMIT 1"
)


def cut_connections(world: FaultWorld, fault: Fault) -> Damage | None:
    """End every connection of the service to PostgreSQL, and each new one until the fault ends."""
    deadline = time.monotonic() + fault.duration_s
    num_cut = _ask(world.database_url, _END_BACKENDS)
    while time.monotonic() < deadline:
        time.sleep(STEP_S)
        num_cut += _ask(world.database_url, _END_BACKENDS)
    return damage_of(fault, f"{num_cut} connections to PostgreSQL") if num_cut else None


def kill_backend(world: FaultWorld, fault: Fault) -> Damage | None:
    """Kill a PostgreSQL process that serves the service; the server then ends its other processes and recovers."""
    pid = _ask(world.database_url, _ONE_BACKEND)
    if not pid:
        return None
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return damage_of(fault, f"PostgreSQL's process {pid}")


def hold_lock(world: FaultWorld, fault: Fault) -> Damage | None:
    """Hold the lock that the service needs to write; on PostgreSQL, also the lock that it needs to read."""
    return _hold_postgres(world.database_url, fault) if world.database_url else _hold_sqlite(world, fault)


def _hold_postgres(url: str, fault: Fault) -> Damage:
    connection = _connect(url)
    connection.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")

    def let_go() -> None:
        with suppress(Exception):  # another fault may have ended the connection meanwhile
            connection.rollback()
        connection.close()

    return damage_of(fault, "table jobs", mend=let_go)


def _hold_sqlite(world: FaultWorld, fault: Fault) -> Damage | None:
    path = world.home / "clary.db"
    connection = sqlite3.connect(path, timeout=SQLITE_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:  # the service held the lock until the timeout, or the disk is full
        connection.close()
        return None
    return damage_of(fault, path.name, mend=connection.close)


def _ask(url: str, query: str) -> int:
    """Return the number that a query yields; 0 while PostgreSQL restarts."""
    import psycopg

    with suppress(psycopg.Error), _connect(url) as connection:
        row = connection.execute(query).fetchone()
        return int(row[0]) if row else 0
    return 0


def _connect(url: str) -> Any:
    import psycopg

    return psycopg.connect(url, connect_timeout=CONNECT_TIMEOUT_S)
