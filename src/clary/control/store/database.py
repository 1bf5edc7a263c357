"""Connections to SQLite and PostgreSQL, set up so that a returned commit survives a crash.

Where: `Store.open` makes two engines for a URL: one for the writer thread, whose transactions take the write lock at
once, and one without transactions, for readers. Durability: SQLite in WAL mode with synchronous=FULL, PostgreSQL
with the server's synchronous_commit.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from clary.base.errors import NOTHING_CHANGED, Fault, StoreError
from clary.control.full_disks import MEND_DISK

BUSY_TIMEOUT_S = 10.0  # longest wait of a statement for a lock that another process holds
CONNECT_TIMEOUT_S = 10.0
STATEMENT_TIMEOUT_S = 30.0  # PostgreSQL ends a statement that runs longer
# A PostgreSQL machine that loses its power or its network after it has acknowledged a query sends nothing more; the
# statement's limit ended with the server, so only probes of the connection end the wait.
PROBE_AFTER_S = 10  # silence before the first probe
PROBE_INTERVAL_S = 5
NUM_PROBES = 4  # unanswered probes after which the connection has failed
_PRIMARY_CODE = 0xFF  # mask: the primary code within an extended SQLite error code
_BROKEN_DISK = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN})
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_MAX_WAL_PAUSE_S = 0.02  # between attempts to switch the journal mode
_FILE_MODE = 0o600  # documents contain secrets of running jobs
_FOLDER_MODE = 0o700

# PostgreSQL: deadlock_detected and serialization_failure. The same transaction can succeed if it runs again alone.
_REPEATABLE_STATES = frozenset({"40P01", "40001"})
# State of PostgreSQL, None without a connection -> what its administrator does. The service tries again by itself.
_WAYS_OUT = {
    None: "see that the PostgreSQL server of database_url runs and accepts this connection; its log may say more",
    "25006": "make the server, the database and the role writable (default_transaction_read_only), or name the primary "
    "server in database_url",
    "53100": "free space on the disk of the PostgreSQL server",
}


def parse_url(database_url: str | Path) -> URL:
    """Return the URL with its driver filled in; a path, of any characters, is the file of a SQLite database.

    Raises: StoreError for text that is not a URL, an in-memory SQLite, or another kind of database.
    """
    if isinstance(database_url, Path):
        return URL.create("sqlite+pysqlite", database=str(database_url))
    try:
        url = make_url(database_url)
    except ArgumentError as error:
        raise StoreError(
            f"{database_url[:80]!r} is no database URL: expected sqlite:///PATH or postgresql://USER@HOST/NAME",
            fault=Fault.USER,
        ) from error
    if url.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
        if url.database in (None, "", ":memory:"):
            raise StoreError(
                "an in-memory SQLite cannot keep jobs: expected sqlite:///PATH with the path of a file",
                fault=Fault.USER,
            )
        return url.set(drivername="sqlite+pysqlite")
    raise StoreError(
        f"database {url.drivername!r} is not supported: expected sqlite:///PATH or postgresql://USER@HOST/NAME",
        fault=Fault.USER,
    )


def open_engines(url: URL, *, num_readers: int) -> tuple[Engine, Engine]:
    """Return the writer's engine (one connection) and the readers' (`num_readers`); neither connects yet."""
    if url.get_backend_name() == "sqlite":
        _prepare_file(Path(str(url.database)))
        arguments: dict[str, Any] = {"timeout": BUSY_TIMEOUT_S, "check_same_thread": False}
    else:
        arguments = _postgres_arguments()
    # Before each use, a connection that the database has closed (by a restart) is detected and replaced.
    common: dict[str, Any] = {
        "connect_args": arguments,
        "pool_timeout": BUSY_TIMEOUT_S,
        "pool_pre_ping": url.get_backend_name() == "postgresql",
        "max_overflow": 0,
    }
    writer = create_engine(url, pool_size=1, **common)
    readers = create_engine(url, pool_size=num_readers, isolation_level="AUTOCOMMIT", **common)
    if url.get_backend_name() == "sqlite":
        event.listen(writer, "connect", _set_up_sqlite)
        event.listen(writer, "begin", _begin_immediately)
        event.listen(readers, "connect", _set_up_sqlite)
        event.listen(readers, "connect", _forbid_writing)
    return writer, readers


def describe_failure(doing: str, error: SQLAlchemyError, *, nothing_changed: bool = False) -> StoreError:
    """Return the StoreError for a failure while `doing`, with the database's own message and a remedy.

    Args:
        doing: what was done, for the message.
        error: the failure.
        nothing_changed: whether the database certainly has nothing of it, so that it may be repeated.
    """
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    state = getattr(cause, "sqlstate", "")  # of PostgreSQL; None without a connection, and where the driver refuses
    if state is None and not isinstance(error, OperationalError | InterfaceError):
        state = ""
    retryable = isinstance(error, OperationalError | PoolTimeoutError) or state in _WAYS_OUT
    words = " ".join(str(cause).split())
    if state in _WAYS_OUT:
        words += f"; {_WAYS_OUT[state]}"
    if getattr(cause, "sqlite_errorcode", 0) & _PRIMARY_CODE in _DAMAGED:
        words += "; end the service with clary down, and bring back a backup with: clary backup restore"
    if getattr(cause, "sqlite_errorcode", 0) & _PRIMARY_CODE in _BROKEN_DISK:
        words += f"; {MEND_DISK}"
    if has_no_room(error):
        words += "; nothing of this was written: free space on the disk of the state folder, and try again"
    return StoreError(
        f"{doing}: the database said: {words}",
        fault=Fault.INFRASTRUCTURE,
        retryable=retryable,
        details={NOTHING_CHANGED: True} if nothing_changed or has_no_room(error) else None,
    )


def has_no_room(error: SQLAlchemyError) -> bool:
    """Whether SQLite rolled the work back because the disk is full."""
    cause = error.orig if isinstance(error, DBAPIError) else None
    return getattr(cause, "sqlite_errorcode", 0) & _PRIMARY_CODE == sqlite3.SQLITE_FULL


def may_repeat(error: SQLAlchemyError) -> bool:
    """Whether the database aborted the transaction only because it collided with another service's."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in _REPEATABLE_STATES


def _prepare_file(path: Path) -> None:
    """Create the database file, readable only by its owner; SQLite gives its side files the same mode."""
    try:
        path.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE))
    except OSError as error:
        raise StoreError(
            f"cannot open the database file {path}: {error.strerror}; name a path that can be written",
            fault=Fault.INFRASTRUCTURE,
        ) from error


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    connection.text_factory = _text  # a damaged text must not fail a whole answer
    connection.isolation_level = None  # only the engine begins transactions, never the driver by itself
    _switch_to_wal(connection)
    for pragma in ("synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _switch_to_wal(connection: Any) -> None:
    """Turn on write-ahead logging, which the database file records; two services cannot do so at once."""
    # SQLite ignores its busy timeout here and reports a collision at once.
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").close()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & _PRIMARY_CODE != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(random.uniform(0.001, _MAX_WAL_PAUSE_S))
        else:
            return


def _begin_immediately(connection: Connection) -> None:
    # A transaction that locks only at its first write can fail at that write; this one waits for the lock at its start.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _forbid_writing(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA query_only = ON").close()


def _postgres_arguments() -> dict[str, Any]:
    return {
        "connect_timeout": int(CONNECT_TIMEOUT_S),
        "tcp_user_timeout": int(
            STATEMENT_TIMEOUT_S * 1000
        ),  # for data that is not acknowledged; no probes are sent then
        "keepalives": 1,
        "keepalives_idle": PROBE_AFTER_S,
        "keepalives_interval": PROBE_INTERVAL_S,
        "keepalives_count": NUM_PROBES,
        "application_name": "clary",
        "options": (
            f"-c statement_timeout={int(STATEMENT_TIMEOUT_S * 1000)} "
            f"-c lock_timeout={int(BUSY_TIMEOUT_S * 1000)} "
            f"-c idle_in_transaction_session_timeout={int(STATEMENT_TIMEOUT_S * 1000)}"
        ),
    }
