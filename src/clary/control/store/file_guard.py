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

from clary.control.store.backups import SIDE_FILES

log = logging.getLogger(__name__)


class FileGuard:
    """Watches one database file.

    Args:
        file: the opened database file.
        engines: the writer's and the readers'; they connect again after the file was put back.
    """

    def __init__(self, file: Path, engines: tuple[Engine, Engine]) -> None:
        self._file = file
        self._writer, self._readers = engines
        self._sides = [f"{file}{suffix}" for suffix in SIDE_FILES]
        self._known = _identity(str(file))
        self._known_sides = [_identity(side) for side in self._sides]

    def look(self) -> None:
        """Put the file back if its path no longer leads to the opened file.

        Raises: OperationalError if it cannot be put back; then no transaction may begin.
        """
        found, sides = _identity(str(self._file)), [_identity(side) for side in self._sides]
        if found == self._known:  # side files are made at the first write
            self._known_sides = [known or side for known, side in zip(self._known_sides, sides, strict=True)]
        if found == self._known and sides == self._known_sides:
            return
        what = "deleted" if found is None else "replaced" if found != self._known else "left without its journal"
        log.error("the database %s was %s while the service ran; it is put back from the open file", self._file, what)
        self._put_back()

    def _put_back(self) -> None:
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
            self._readers.dispose()
            self._writer.dispose()
            for suffix in SIDE_FILES:  # SQLite would replay the deleted file's side files into the restored file
                Path(f"{self._file}{suffix}").unlink(missing_ok=True)
            draft.replace(self._file)
        except (OSError, sqlite3.Error) as error:
            draft.unlink(missing_ok=True)
            cause = error if isinstance(error, sqlite3.Error) else sqlite3.OperationalError(str(error))
            raise OperationalError(f"put {self._file} back", None, cause) from error
        self._known = _identity(str(self._file))
        self._known_sides = [None for _ in self._sides]


def _identity(path: str) -> tuple[int, int] | None:
    try:
        facts = os.stat(path)
    except FileNotFoundError:
        return None
    return facts.st_dev, facts.st_ino
