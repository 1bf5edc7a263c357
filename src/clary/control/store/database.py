"""Connections to SQLite and PostgreSQL, set up so that a commit that returned survives a crash.

Where: `Store.open` makes two engines of one URL: one whose transactions take the write lock at once, for the writer
thread, and one without transactions, for readers. Durability: SQLite in WAL mode with synchronous=FULL, PostgreSQL
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
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from clary.base.errors import NOTHING_CHANGED, Fault, StoreError

BUSY_TIMEOUT_S = 10.0  # how long a statement waits for a lock that another process holds
CONNECT_TIMEOUT_S = 10.0
STATEMENT_TIMEOUT_S = 30.0  # PostgreSQL ends a statement that runs longer
_PRIMARY_CODE = 0xFF  # part of an extended SQLite error code that tells its kind
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_MAX_WAL_PAUSE_S = 0.02  # between two tries to switch the journal
_FILE_MODE = 0o600  # documents hold the secrets of running jobs
_FOLDER_MODE = 0o700

# PostgreSQL: deadlock_detected and serialization_failure. The same work, done again by itself, can succeed.
_REPEATABLE_STATES = frozenset({"40P01", "40001"})


def parse_url(database_url: str) -> URL:
    """Return the URL with its driver filled in.

    Raises: StoreError for text that is no URL, an in-memory SQLite, or a database that is neither of the two.
    """
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
    """Return the writer's engine (one connection) and the readers' (`num_readers`); nothing is connected yet."""
    if url.get_backend_name() == "sqlite":
        _prepare_file(Path(str(url.database)))
        arguments: dict[str, Any] = {"timeout": BUSY_TIMEOUT_S, "check_same_thread": False}
    else:
        arguments = _postgres_arguments()
    # A connection that the database closed meanwhile (a restart) is found and replaced before it is used.
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


def describe_failure(doing: str, error: SQLAlchemyError) -> StoreError:
    """Return the StoreError for a failure while `doing`, with the database's own words."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    retryable = isinstance(error, OperationalError | PoolTimeoutError)
    words = " ".join(str(cause).split())
    if getattr(cause, "sqlite_errorcode", 0) & _PRIMARY_CODE in _DAMAGED:
        words += "; end the service with clary down, and bring back a backup with: clary backup restore"
    if has_no_room(error):
        words += "; nothing of this was written: free space on the disk of the state folder, and try again"
    return StoreError(
        f"{doing}: the database said: {words}",
        fault=Fault.INFRASTRUCTURE,
        retryable=retryable,
        details={NOTHING_CHANGED: True} if has_no_room(error) else None,
    )


def has_no_room(error: SQLAlchemyError) -> bool:
    """Whether SQLite undid the work because the disk is full."""
    cause = error.orig if isinstance(error, DBAPIError) else None
    return getattr(cause, "sqlite_errorcode", 0) & _PRIMARY_CODE == sqlite3.SQLITE_FULL


def may_repeat(error: SQLAlchemyError) -> bool:
    """Whether the database ended the work only because it collided with another service's."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in _REPEATABLE_STATES


def _prepare_file(path: Path) -> None:
    """Create the database file for its owner alone; SQLite gives its side files the same mode."""
    try:
        path.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE))
    except OSError as error:
        raise StoreError(
            f"cannot open the database file {path}: {error.strerror}; name a path that can be written",
            fault=Fault.INFRASTRUCTURE,
        ) from error


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    connection.text_factory = _text  # a damaged text must not fail the whole answer that it stands in
    connection.isolation_level = None  # transactions begin where the engine says so, never by the driver's guess
    _switch_to_wal(connection)
    for pragma in ("synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _switch_to_wal(connection: Any) -> None:
    """Turn on write-ahead logging, which the file remembers; two services that do it at once must take turns."""
    # SQLite does not wait for locks here, whatever its busy timeout: it reports a collision at once.
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
    # A transaction that reads first and locks later can fail at its first write; this one waits at its start.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _forbid_writing(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA query_only = ON").close()


def _postgres_arguments() -> dict[str, Any]:
    return {
        "connect_timeout": int(CONNECT_TIMEOUT_S),
        "tcp_user_timeout": int(STATEMENT_TIMEOUT_S * 1000),
        "application_name": "clary",
        "options": (
            f"-c statement_timeout={int(STATEMENT_TIMEOUT_S * 1000)} "
            f"-c lock_timeout={int(BUSY_TIMEOUT_S * 1000)} "
            f"-c idle_in_transaction_session_timeout={int(STATEMENT_TIMEOUT_S * 1000)}"
        ),
    }
