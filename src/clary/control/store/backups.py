"""Backups of the database: a few complete copies, made while it is in use; each copy is read once to verify it.

Where: `backup_keeping` makes them while the service runs, `clary backup` lists, makes and restores them. SQLite only;
a PostgreSQL server has its own tools (pg_dump), and its administrator makes its backups.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from clary.base.errors import Fault, StoreError

SIDE_FILES = ("-wal", "-shm")
CHECK_TIMEOUT_S = 20.0  # longest check of a database; a longer check ends early and counts as passed
# free space that a backup needs, as a multiple of the database's size, so that it never fills the disk
SPARE_FACTOR = 2
_NAME = re.compile(r"clary-([0-9]{8}T[0-9]{12})Z\.db")
_TIME_FORMAT = "%Y%m%dT%H%M%S%f"
_STEPS = 100_000  # instructions of SQLite's virtual machine between checks of the time


@dataclass(frozen=True, kw_only=True)
class Backup:
    """One backup."""

    path: Path
    made_at: datetime
    size_bytes: int


class Backups:
    """The backups of one SQLite database.

    Args:
        database: its file.
        folder: folder of the backups.
        keep: number of backups that stay; older ones are removed.
        monotonic: clock in seconds, used to limit the duration of a check.
    """

    def __init__(self, database: Path, folder: Path, *, keep: int, monotonic: Callable[[], float]) -> None:
        self._database = database
        self._folder = folder
        self._keep = keep
        self._monotonic = monotonic

    def all(self) -> list[Backup]:
        """Return the backups, newest first. Raises: StoreError if their folder cannot be read."""
        try:
            paths = [path for path in self._folder.iterdir() if _NAME.fullmatch(path.name)]
            found = [backup for path in paths if (backup := _backup_at(path)) is not None]
        except FileNotFoundError:  # no backup was made yet
            return []
        except OSError as error:
            raise StoreError(
                f"the backups in {self._folder} cannot be listed: {error}", fault=Fault.INFRASTRUCTURE, retryable=True
            ) from error
        return sorted(found, key=lambda backup: backup.path.name, reverse=True)

    def make(self, now: datetime) -> Backup:
        """Copy the database as it is now, and remove the oldest copies.

        A copy is named after its time. If the name of the newest existing copy contains the same or a later time, the
        new copy is named after the next microsecond: otherwise, once the clock was set back, the new copy would count
        as the oldest and be removed.

        Raises: StoreError if there is no room, or the copy cannot be made or read; then older copies stay. Also if an
            old copy cannot be removed; then the new one is in place.
        """
        try:
            made = self._make(now)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(
                f"no backup of {self._database} could be made: {error}", fault=Fault.INFRASTRUCTURE, retryable=True
            ) from error
        try:
            for old in self.all()[self._keep :]:
                old.path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(
                f"{made.path} was made, but older backups could not be removed: {error}",
                fault=Fault.INFRASTRUCTURE,
                retryable=True,
            ) from error
        return made

    def _make(self, now: datetime) -> Backup:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for leftover in self._folder.glob("*.new*"):  # left by a killed service
            leftover.unlink(missing_ok=True)
        size = self._database.stat().st_size
        free = shutil.disk_usage(self._folder).free
        if free < SPARE_FACTOR * size:
            raise StoreError(
                f"no backup is made: {free} bytes are free at {self._folder}, and {SPARE_FACTOR * size} are needed to "
                "copy the database; free space there",
                fault=Fault.INFRASTRUCTURE,
                retryable=True,
            )
        now = max([now, *(backup.made_at + timedelta(microseconds=1) for backup in self.all()[:1])])
        target = self._folder / f"clary-{now.strftime(_TIME_FORMAT)}Z.db"
        draft = target.with_suffix(".db.new")
        try:
            copy(self._database, draft)
            wrong = check(draft, monotonic=self._monotonic)
            if wrong:
                raise StoreError(f"the backup of {self._database} is damaged: {wrong}", fault=Fault.INFRASTRUCTURE)
            draft.replace(target)
            sync_folder(self._folder)
            return Backup(path=target, made_at=now, size_bytes=target.stat().st_size)
        finally:
            with contextlib.suppress(OSError):  # must not hide the first error; the next call removes it
                draft.unlink(missing_ok=True)

    def sound(self, name: str | None) -> Backup:
        """Return a backup that can be read as a whole.

        Args:
            name: file of the backup; None for the newest.
        Raises: StoreError if there is no such backup, or it is damaged.
        """
        found = [backup for backup in self.all() if name is None or backup.path.name == name]
        if not found:
            raise StoreError(
                f"there is no backup {name or ''} in {self._folder}; see: clary backup list", fault=Fault.USER
            )
        wrong = check(found[0].path, monotonic=self._monotonic)
        if wrong:
            raise StoreError(f"{found[0].path} is damaged: {wrong}; name an older one", fault=Fault.USER)
        return found[0]

    def bring_back(self, name: str | None, now: datetime) -> tuple[Backup, Path | None]:
        """Replace the database by a backup; no process may have the database open.

        Args:
            name: file of the backup; None for the newest.
            now: time that becomes part of the new name of the former database.

        Returns: the backup, and the new path of the former database, or None if there was no database.
        Raises: StoreError if there is no such backup, it is damaged, or there is no room; then no file is moved.
        """
        backup = self.sound(name)
        draft = self._database.with_name(self._database.name + ".new")
        try:
            shutil.copyfile(backup.path, draft)
            draft.chmod(0o600)
            with draft.open("rb") as file:
                os.fsync(file.fileno())
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise StoreError(
                f"{backup.path} cannot be copied to {draft}: {error.strerror}; the database is as it was; free space "
                f"at {draft.parent}",
                fault=Fault.INFRASTRUCTURE,
            ) from error
        try:
            aside = set_aside(self._database, now)
            draft.replace(self._database)
            sync_folder(self._database.parent)
        except OSError as error:
            raise StoreError(
                f"{backup.path} cannot take the place of {self._database}: {error}; the former database is there or "
                f"beside it, with .set-aside- in its name; mend {self._database.parent} and try again",
                fault=Fault.INFRASTRUCTURE,
            ) from error
        return backup, aside

    def way_out(self) -> str:
        """Return one or two sentences on how to restore the database."""
        anew = "begin anew, without the jobs of the past, with: clary up --new-database"
        try:
            newest = next(iter(self.all()), None)
        except StoreError as error:  # this text is part of another error, which matters more
            return f"{error.message}; make that folder readable; or {anew}"
        if newest is None:
            return f"there is no backup in {self._folder}; {anew}"
        made = newest.made_at.strftime("%Y-%m-%d %H:%M UTC")
        return f"the newest backup is {newest.path}, of {made}; bring it back with: clary backup restore; or {anew}"


def _backup_at(path: Path) -> Backup | None:
    """Return the backup whose name a path has; None if it was removed meanwhile or is no backup. Raises: OSError."""
    try:
        made_at = datetime.strptime(path.name.removeprefix("clary-").removesuffix("Z.db"), _TIME_FORMAT)
        size_bytes = path.stat().st_size
    except (FileNotFoundError, ValueError):  # ValueError: digits that are no time; the service did not make that file
        return None
    return Backup(path=path, made_at=made_at.replace(tzinfo=UTC), size_bytes=size_bytes)


def copy(source: Path, target: Path) -> None:
    """Copy a database in use, as it is at one moment, and force the copy to disk; the call blocks.

    Raises: sqlite3.Error, OSError.
    """
    target.unlink(missing_ok=True)
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    with contextlib.closing(sqlite3.connect(source)) as origin, contextlib.closing(sqlite3.connect(target)) as draft:
        origin.backup(draft)
        draft.execute("PRAGMA journal_mode = DELETE").close()  # the copy needs no side files
    with target.open("rb") as file:
        os.fsync(file.fileno())


def check(database: Path, *, monotonic: Callable[[], float]) -> str:
    """Return the faults of a database as text; empty if it is intact, if it is locked, or if the time runs out."""
    deadline_s = monotonic() + CHECK_TIMEOUT_S
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=CHECK_TIMEOUT_S)) as connection:
            connection.set_progress_handler(lambda: int(monotonic() > deadline_s), _STEPS)
            words = [str(row[0]) for row in connection.execute("PRAGMA quick_check(3)")]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            return ""
        return "" if error.sqlite_errorcode == sqlite3.SQLITE_BUSY else str(error)
    except sqlite3.DatabaseError as error:
        return str(error)
    return "" if words == ["ok"] else "; ".join(" ".join(word.split()) for word in words)


def has_table(database: Path, name: str) -> bool:
    """Whether a database has a table; only reads it."""
    query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?"
    with contextlib.closing(sqlite3.connect(database, timeout=CHECK_TIMEOUT_S)) as connection:
        return bool(connection.execute(query, (name,)).fetchone()[0])


def set_aside(database: Path, now: datetime) -> Path | None:
    """Rename an unused database and its side files; return the database's new path, or None if it does not exist."""
    if not database.exists():
        return None
    target = database.with_name(f"{database.name}.set-aside-{now.strftime(_TIME_FORMAT)}Z")
    for suffix in ("", *SIDE_FILES):
        side = Path(f"{database}{suffix}")
        if side.exists():
            side.replace(Path(f"{target}{suffix}"))
    return target


def sync_folder(folder: Path) -> None:
    """Force a folder's list of names to disk, so that a renamed file is found after a power cut. Raises: OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
