"""Detects that the file of an open SQLite database was deleted or replaced, and puts it back.

Where: the writer's thread checks before each batch of changes; the renewal of the lease causes one every few seconds.
SQLite would continue to write to the deleted file, and all changes would be lost at the end of the process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from clary.control.store.backups import SIDE_FILES, sync_folder

log = logging.getLogger(__name__)


class FileGuard:
    """Watches one database file.

    Args:
        file: the opened database file.
        engines: the writer's and the readers'; they connect again after the file was put back.

    Raises: OSError if the file cannot be looked at.
    """

    def __init__(self, file: Path, engines: tuple[Engine, Engine]) -> None:
        self._file = file
        self._writer, self._readers = engines
        self._sides = [f"{file}{suffix}" for suffix in SIDE_FILES]
        self._known = _identity(str(file))
        self._known_sides = [_identity(side) for side in self._sides]

    def look(self) -> None:
        """Put the file back if its path no longer leads to the opened file.

        Raises: OperationalError if it cannot be looked at or put back; then no transaction may begin, and the next call
            tries again.
        """
        try:
            found, sides = _identity(str(self._file)), [_identity(side) for side in self._sides]
        except OSError as error:  # a file server that hangs for a moment: nothing shows that the file has changed
            raise _refusal(f"look at {self._file}", error) from error
        if found == self._known:  # side files are made at the first write
            self._known_sides = [known or side for known, side in zip(self._known_sides, sides, strict=True)]
        if found == self._known and sides == self._known_sides:
            return
        what = "deleted" if found is None else "replaced" if found != self._known else "left without its journal"
        log.error("the database %s was %s while the service ran; it is put back from the open file", self._file, what)
        self._put_back()

    def _put_back(self) -> None:
        """Copy the open database to its path.

        Until the copy lies there, the connections stay open: if the path's file was deleted, only they have the data.
        SQLite writes nothing of a moved file when its last connection is closed, so closing them later is safe.
        """
        draft = self._file.with_name(f"{self._file.name}.put-back")
        try:
            draft.unlink(missing_ok=True)
            os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            with self._writer.connect() as connection, contextlib.closing(sqlite3.connect(draft)) as target:
                source = connection.connection.dbapi_connection
                assert isinstance(source, sqlite3.Connection), "only SQLite has a file"
                source.backup(target)
            with draft.open("rb") as file:
                os.fsync(file.fileno())
                known = os.fstat(file.fileno())
            for side in self._sides:  # SQLite would replay the deleted file's side files into the restored file
                Path(side).unlink(missing_ok=True)
            draft.replace(self._file)
        except (OSError, sqlite3.Error) as error:
            with contextlib.suppress(OSError):  # a full disk is given back its room; the next call makes another copy
                draft.unlink(missing_ok=True)
            raise _refusal(f"put {self._file} back", error) from error
        self._known = known.st_dev, known.st_ino
        self._known_sides = [None for _ in self._sides]
        self._readers.dispose()
        self._writer.dispose()
        try:
            sync_folder(self._file.parent)
        except OSError as error:  # the file is in place; only a power cut within seconds could still undo that
            log.warning("%s: the folder of the database could not be synced: %s", self._file.parent, error.strerror)


def _refusal(doing: str, error: OSError | sqlite3.Error) -> OperationalError:
    cause = error if isinstance(error, sqlite3.Error) else sqlite3.OperationalError(str(error))
    return OperationalError(doing, None, cause)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        facts = os.stat(path)
    except FileNotFoundError:
        return None
    return facts.st_dev, facts.st_ino
