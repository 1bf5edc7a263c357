"""Layout of the cache on disk: objects, trees of hard links to objects, and unfinished trees.

    objects/kept/ab/NAME          content of an object that was synced to the disk
    objects/boot-ID/ab/NAME       content written since this boot of the machine, perhaps not synced to the disk
    snapshots/boot-ID/NAME/       a channel: a tree of hard links
    filling/RANDOM/               an unfinished tree, locked by its maker
    object-locks, keeping-lock

[Note: what a crash leaves] A file is written inside `filling`, gets its stamp, and is linked into `objects`; a tree is
made inside `filling` and renamed. So no entry has its final name before it is complete, and a killed process leaves
only an unlocked folder in `filling`. After a loss of power, files may have lost content although their names exist. A
sync per file would be slow for many small files, so paths of files and trees contain the id of the boot in which they
were made, and entries of another boot are deleted unread. `settle_one` moves an object to `kept` once its content is on
the disk; trees are cheap to make again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from clary.agent.channels.cache.locks import hold_folder
from clary.agent.channels.cache.naming import is_as_stored, stamped_ns

if TYPE_CHECKING:
    from typing_extensions import Self

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_OWN_ONLY = 0o700
_FAN_OUT_CHARACTERS = 2  # first characters of names; subfolders keep folders below millions of entries
_MAX_NEW_FOLDERS = 20  # attempts: a sweep may remove a new folder before it is locked
_LOOKS = 2  # lookups: a file may move from this boot's folder to `kept` during the first


def boot_id() -> str:
    """Return the id of this boot of the machine. Raises: OSError."""
    return _BOOT_ID.read_text().strip()


@dataclass(frozen=True)
class StoredObject:
    """A file of the cache with its status."""

    path: Path
    status: os.stat_result

    @property
    def is_held(self) -> bool:
        """Whether a tree has a hard link to the object."""
        return self.status.st_nlink > 1


class CacheFolder:
    """Reads and changes the cache's folder; no method waits for a lock. Methods that use the disk raise OSError.

    Args:
        root: created if missing.
        boot: id of this boot of the machine.
    """

    def __init__(self, root: Path, *, boot: str) -> None:
        self.root = root
        self._fresh_objects = root / "objects" / f"boot-{boot}"
        self._kept_objects = root / "objects" / "kept"
        self._snapshots = root / "snapshots" / f"boot-{boot}"
        self._filling = root / "filling"
        self.object_locks = root / "object-locks"
        self.keeping_lock = root / "keeping-lock"

    def make(self) -> None:
        """Make the missing folders."""
        self.root.mkdir(mode=_OWN_ONLY, parents=True, exist_ok=True)
        for folder in (self._fresh_objects, self._kept_objects, self._snapshots, self._filling):
            folder.mkdir(parents=True, exist_ok=True)

    def find(self, name: str, *, size_bytes: int | None) -> Path | None:
        """Return the path of an object, None if it is not in the cache; remove an object that was changed.

        Args:
            size_bytes: expected size; None if unknown.
        """
        for folder in (self._fresh_objects, self._kept_objects) * _LOOKS:
            path = _place(folder, name)
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            if _is_whole(status, name=name, size_bytes=size_bytes):
                return path
            path.unlink(missing_ok=True)
        return None

    def link(self, name: str, target: Path, *, size_bytes: int | None) -> os.stat_result | None:
        """Link an object to `target`, which must not exist; return its status, or None if it is not in the cache.

        Args:
            name: of the object.
            target: on the cache's file system; becomes a hard link.
            size_bytes: as for `find`.
        """
        for _ in range(_LOOKS):
            path = self.find(name, size_bytes=size_bytes)
            if path is None:
                return None
            try:
                os.link(path, target)
            except FileNotFoundError:
                continue  # removed, or moved to `kept`, since it was found
            except OSError as error:
                if error.errno != errno.EMLINK:
                    raise
                # The file has reached the file system's maximum of links: trees keep it, the next fetch makes a new
                # file.
                path.unlink(missing_ok=True)
                return None
            status = target.lstat()
            if _is_whole(status, name=name, size_bytes=size_bytes):
                return status
            target.unlink()
        return None

    def publish(self, path: Path, name: str) -> None:
        """Add a complete file of a tree to the objects; if the object exists, replace the file by a link to it.

        Raises: OSError.
        """
        size_bytes = path.lstat().st_size
        time_ns = stamped_ns(time.time_ns(), name=name, size_bytes=size_bytes)
        os.utime(path, ns=(time_ns, time_ns))
        if path.lstat().st_mtime_ns != time_ns:
            raise OSError(f"the file system of {self.root} keeps times of files too coarsely for a cache")
        place = _place(self._fresh_objects, name)
        place.parent.mkdir(exist_ok=True)
        try:
            os.link(path, place)
        except FileExistsError:
            other = path.with_name(f".{secrets.token_hex(8)}")
            if self.link(name, other, size_bytes=size_bytes) is not None:
                other.replace(path)

    def fill(self) -> Filling:
        """Return a new, empty tree."""
        return Filling(self._filling)

    def put_in_place(self, filling: Filling, name: str) -> int | None:
        """Rename a tree to its final name; return the descriptor whose lock prevents its removal.

        Return None if a tree with that name exists already.
        """
        held = hold_folder(filling.tree, alone=False)
        assert held is not None, "a tree inside a folder that is locked cannot vanish"
        try:
            filling.tree.rename(self._snapshots / name)
        except OSError as error:
            os.close(held)
            if isinstance(error, FileExistsError) or self.snapshot(name).is_dir():
                return None
            raise
        return held

    def snapshot(self, name: str) -> Path:
        """Return the path of a tree, which need not exist."""
        return self._snapshots / name

    def hold_snapshot(self, name: str) -> int | None:
        """Return a descriptor whose lock prevents the removal of a tree.

        Returns: None if the tree does not exist or is being removed.
        """
        held = hold_folder(self.snapshot(name), alone=False)
        if held is not None:
            os.utime(held)  # the time of its last use, which sets the order of eviction
        return held

    def remove_snapshot(self, path: Path) -> bool:
        """Remove a tree unless it is used; objects stay."""
        held = hold_folder(path, alone=True)
        if held is None:
            return False
        try:
            # Rename it first: an agent that looks up the name from now on makes the tree anew.
            grave = self._filling / secrets.token_hex(8)
            path.rename(grave)
        finally:
            os.close(held)
        shutil.rmtree(grave, ignore_errors=True)
        return True

    def snapshots(self) -> list[Path]:
        """Return every tree, the least recently used first."""
        found = []
        for path in self._snapshots.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(found)]

    def objects(self) -> list[StoredObject]:
        """Return every object, the least recently used first."""
        found = list(_files(self._fresh_objects)) + list(_files(self._kept_objects))
        # ctime: set when a link to the object was last made or removed.
        return sorted(found, key=lambda stored: stored.status.st_ctime_ns)

    def settle_one(self, stored: StoredObject) -> None:
        """Sync the content of an object to the disk and move the object to `kept`."""
        path = stored.path
        if self._fresh_objects not in path.parents:
            return
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            place = _place(self._kept_objects, path.name)
            place.parent.mkdir(exist_ok=True)
            path.rename(place)

    def sweep(self) -> None:
        """Remove unusable trees: unfinished trees of ended processes, and all files of other boots.

        Several agents may sweep at once.
        """
        for path in self._filling.iterdir():
            held = hold_folder(path, alone=True)
            if held is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(held)
        for path in (self.root / "objects").iterdir():
            if path not in (self._fresh_objects, self._kept_objects):
                shutil.rmtree(path, ignore_errors=True)
        for folder in (self.root / "snapshots").iterdir():
            if folder != self._snapshots:
                with contextlib.suppress(FileNotFoundError):
                    for path in folder.iterdir():
                        self.remove_snapshot(path)
                with contextlib.suppress(OSError):
                    folder.rmdir()


class Filling:
    """An unfinished tree; a context manager that removes all files not put in place."""

    def __init__(self, parent: Path) -> None:
        self._folder, self._held = _new_held_folder(parent)
        self.tree = self._folder / "tree"
        try:
            self.tree.mkdir()
        except BaseException:
            os.close(self._held)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._held)


def _new_held_folder(parent: Path) -> tuple[Path, int]:
    for _ in range(_MAX_NEW_FOLDERS):
        folder = parent / secrets.token_hex(8)
        folder.mkdir(mode=_OWN_ONLY)
        held = hold_folder(folder, alone=False)
        if held is not None:
            return folder, held
    raise OSError(f"{parent}: new folders are taken away before they can be locked")


def _place(folder: Path, name: str) -> Path:
    return folder / name[:_FAN_OUT_CHARACTERS] / name


def _is_whole(status: os.stat_result, *, name: str, size_bytes: int | None) -> bool:
    return stat.S_ISREG(status.st_mode) and size_bytes in (None, status.st_size) and is_as_stored(status, name=name)


def _files(folder: Path) -> Iterator[StoredObject]:
    for part in folder.iterdir():
        with os.scandir(part) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    yield StoredObject(Path(entry.path), entry.stat(follow_symlinks=False))
