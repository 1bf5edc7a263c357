"""Checks that the opened database is the one that the state folder had before.

Where: `Store.open` calls it before and after it creates or migrates tables. A state folder that has lost its database
must not begin with an empty one: clients would not find their jobs, names would be used twice, and running jobs would
have no owner. The folder keeps its database's id in `database.json`; without that file, `_TRACES` in the folder show
that it had a database.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection, select

from clary.base.errors import Fault, StoreError
from clary.control.store import backups
from clary.control.store.backups import Backups
from clary.control.store.migrations import read_version
from clary.control.store.tables import properties

MARK_FILE = "database.json"
BACKUP_FOLDER = "backups"
# Paths that a service makes only after its database: log streams, folders of attempts, copies of the database.
_TRACES = (("logs", "*.log"), ("jobs", "*/*"), (BACKUP_FOLDER, "clary-*.db"))
_HEADER = b"SQLite format 3\0"


class DatabaseLife:
    """A state folder's record of its database.

    Args:
        home: the state folder.
        keep: number of backups that stay.
        begins_anew: whether the user asked for a new database.
    """

    def __init__(self, home: Path, *, keep: int = 1, begins_anew: bool = False) -> None:
        self._home = home
        self._keep = keep
        self._begins_anew = begins_anew

    def backups(self, database: Path) -> Backups:
        """Return the backups of a SQLite database."""
        return Backups(database, self._home / BACKUP_FOLDER, keep=self._keep, monotonic=time.monotonic)

    def way_out(self, database: Path | None) -> str:
        """Return a sentence on how to restore the database; `database` is None if it is not a file."""
        if database is not None:
            return self.backups(database).way_out()
        anew = "begin anew, without the jobs of the past, with: clary up --new-database"
        return f"bring back a backup of that server, or {anew}"

    def prepare_file(self, database: Path) -> None:
        """Check the file of a SQLite database before it is opened; if a new database was requested, set the file aside.

        Raises: StoreError if it is damaged, no database or unreadable; also if it is missing, empty or without Clary's
            tables, though the folder had a database.
        """
        way_out = self.backups(database).way_out
        if self._begins_anew:
            backups.set_aside(database, datetime.now(UTC))
            return
        try:
            with database.open("rb") as file:
                header = file.read(len(_HEADER))
        except FileNotFoundError:
            self._require_new(f"the database {database} is missing", way_out())
            return
        except OSError as error:
            raise StoreError(
                f"the database {database} cannot be read: {error.strerror}", fault=Fault.INFRASTRUCTURE
            ) from error
        if not header:
            self._require_new(f"the database {database} is empty (0 bytes)", way_out())
            return
        wrong = "file is not a database" if header != _HEADER else backups.check(database, monotonic=time.monotonic)
        if wrong:
            raise StoreError(f"the database {database} is damaged: {wrong}; {way_out()}", fault=Fault.INFRASTRUCTURE)
        if not backups.has_table(database, "schema_version"):
            self._require_new(f"the database {database} has none of Clary's tables", way_out())

    def require_own(self, connection: Connection, place: str, way_out: str) -> None:
        """Refuse a database without Clary's tables if the folder had a database before; raises StoreError.

        Args:
            connection: connection to the database before its tables are made or changed.
            place: path or URL of the database, for the error.
            way_out: sentence on how to restore the database, for the error.
        """
        if self._begins_anew:
            return
        if read_version(connection) == 0:
            self._require_new(f"the database {place} has none of Clary's tables", way_out)

    def take_note(self, connection: Connection, place: str, way_out: str) -> None:
        """Compare the id of a migrated database with the folder's, and record it; raises StoreError.

        Args:
            connection: connection to the migrated database.
            place: as for `require_own`; the folder records it, too.
            way_out: as for `require_own`.
        """
        statement = select(properties.c.value).where(properties.c.name == "database_id")
        found = str(connection.execute(statement).scalar_one())
        known = self._known_id()
        if known not in ("", found) and not self._begins_anew:
            raise StoreError(
                f"the database {place} is not the one that {self._home} had before (it is {found[:8]}, expected "
                f"{known[:8]}); set database_url to the expected one; {way_out}",
                fault=Fault.USER,
            )
        if known != found:
            _write(self._home / MARK_FILE, json.dumps({"database_id": found, "database": place}))

    def _require_new(self, what: str, way_out: str) -> None:
        evidence = self._evidence()
        if evidence:
            raise StoreError(
                f"{what}, but {self._home} had one before: it holds {', '.join(evidence)}. No new one was made: "
                f"{way_out}",
                fault=Fault.USER,
            )

    def _evidence(self) -> Sequence[str]:
        found = [f"its id ({MARK_FILE})"] if (self._home / MARK_FILE).exists() else []
        for name, pattern in _TRACES:
            folder = self._home / name
            number = sum(1 for _ in folder.glob(pattern)) if folder.is_dir() else 0
            if number:
                found.append(f"{name} ({number})")
        return found

    def _known_id(self) -> str:
        try:
            return str(json.loads((self._home / MARK_FILE).read_text(encoding="utf-8"))["database_id"])
        except FileNotFoundError:
            return ""
        except (OSError, ValueError, KeyError, TypeError):
            # The file shows that the folder had a database; without a readable id, any database is accepted.
            return ""


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StoreError(
            f"{path} cannot be written: {error.strerror}; free space at {path.parent}", fault=Fault.INFRASTRUCTURE
        ) from error
