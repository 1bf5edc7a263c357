"""Files below an open folder, opened without following a link.

Where: the agent and the service use this module for every folder that a program owns or has owned. The program may put
a link, a named pipe, a socket or a device in the place of any file or folder at any moment, and the agent has more
rights than the program. So the kernel resolves a path from a descriptor, and the kind of file is checked before the
file is opened.

A path is resolved by openat2(2) in one call (Linux 5.6), and on other kernels folder by folder, each opened with
O_NOFOLLOW. Both methods refuse the same paths, among them absolute paths and `..`.

[Note: checked before opened] Opening a file has effects: it wakes the writer of a pipe, rewinds a tape, and hangs on a
pipe that has no writer. So a path is first opened with O_PATH, which has no effect on the file. fstat(2) then gives the
kind of file, and the same inode is opened through /proc/self/fd, which no rename can change.
Source: openat2(2), open(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import stat
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing since Python 3.11

FILE_MODE = 0o644
FOLDER_MODE = 0o755

_SYS_OPENAT2 = 437  # number of the call on every architecture but alpha
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_RESOLVE = _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS
_ABSENT = (errno.ENOSYS, errno.EPERM)  # an old kernel; a system call filter that does not know openat2
_MAX_BLOCKED = 16  # retries after EAGAIN, which openat2 returns when folders are moved meanwhile

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_SAFE_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

_KINDS = {
    stat.S_IFREG: "a regular file",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Folder:
    """An open folder, and access to the files below it.

    A path is text below the folder, with `/`; empty text names the folder itself. Methods raise OSError: ELOOP for a
    link on the way to the last part of the path, or at the last part if the method opens it; ENOENT and ENOTDIR as
    usual; EINVAL for a path that is absolute or contains `..`; and EPERM, or EISDIR for a folder, for a file of another
    kind than the method opens.

    Args:
        descriptor: descriptor of the folder; the object owns it after the call.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def at(cls, path: Path | str, *, create: bool = False) -> Folder:
        """Open a folder by a path that only trusted users can change; links on the way are followed.

        Args:
            create: make the folder and its parents if they are missing.
        """
        if create:
            os.makedirs(path, exist_ok=True)
        return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor; harmless when repeated."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def fileno(self) -> int:
        """Return the descriptor, which the object still owns."""
        return self._descriptor

    def detach(self) -> int:
        """Return the descriptor, which the caller owns after the call."""
        descriptor, self._descriptor = self._descriptor, -1
        return descriptor

    @property
    def path(self) -> str:
        """Path by which this process reaches this folder even after a rename; valid while the descriptor is open."""
        return f"/proc/self/fd/{self._descriptor}"

    def folder(self, path: str = "", *, create: bool = False, mode: int = FOLDER_MODE) -> Folder:
        """Open a folder.

        Args:
            create: make the folder and its parents if they are missing.
            mode: permission bits of the folders that are made.
        """
        try:
            return Folder(open_beneath(self._descriptor, path, _FOLDER_FLAGS))
        except FileNotFoundError:
            if not create:
                raise
        here = os.dup(self._descriptor)
        try:
            for part in parts_of(path):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, mode, dir_fd=here)
                below = open_beneath(here, part, _FOLDER_FLAGS)
                os.close(here)
                here = below
        except BaseException:
            os.close(here)
            raise
        return Folder(here)

    def open_file(self, path: str, flags: int = os.O_RDONLY) -> int:
        """Return a descriptor of an existing regular file, for reading unless `flags` say otherwise."""
        return open_regular(self._descriptor, path, flags)

    def open_fifo(self, path: str, flags: int) -> int:
        """Open a named pipe without waiting for its other end; return a descriptor.

        Raises: ENXIO if it is opened for writing and has no reader.
        """
        return _open_judged(self._descriptor, path, flags, is_wanted=stat.S_ISFIFO, kind="a named pipe")

    def read(self, path: str, *, max_bytes: int) -> bytes:
        """Return the first `max_bytes` of a regular file."""
        with open(self.open_file(path), "rb", buffering=0) as file:
            pieces = []
            while max_bytes > 0 and (piece := file.read(max_bytes)):
                pieces.append(piece)
                max_bytes -= len(piece)
        return b"".join(pieces)

    def write(self, path: str, data: bytes, *, mode: int = FILE_MODE) -> None:
        """Write a file at `path`, whole or not at all, replacing any file there.

        Args:
            data: the whole content.
            mode: permission bits of the new file; the bits of the replaced file are not kept.
        """
        with self.replacing(path, mode=mode) as file:
            file.write(data)

    @contextlib.contextmanager
    def replacing(self, path: str, *, mode: int = FILE_MODE) -> Iterator[BinaryIO]:
        """Yield a new file, which replaces any file at `path` when the block ends without an error.

        An existing file at `path` is never written to, so another name of that file keeps its content.
        """
        with self._parent(path) as (folder, name):
            part = f".{name[:200]}.{os.urandom(4).hex()}.part"
            descriptor = os.open(part, _NEW_FILE_FLAGS, mode, dir_fd=folder)
            try:
                with open(descriptor, "wb") as file:
                    os.fchmod(descriptor, mode)  # independent of the umask
                    yield file
                os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(part, dir_fd=folder)
                raise

    def names(self, path: str = "", *, limit: int | None = None) -> list[str]:
        """Return the names in a folder, in no order, at most the first `limit` names that the kernel lists."""
        with self.folder(path) as folder, os.scandir(folder.fileno()) as entries:
            return [entry.name for entry in islice(entries, limit)]

    def status(self, path: str) -> os.stat_result:
        """Return the status of the entry at `path`; a link at its end is described, not followed."""
        if not parts_of(path):
            return os.fstat(self._descriptor)
        with self._parent(path) as (folder, name):
            return os.stat(name, dir_fd=folder, follow_symlinks=False)

    def exists(self, path: str) -> bool:
        """Return whether `path` exists; False if a link is on the way to it."""
        try:
            self.status(path)
        except OSError:
            return False
        return True

    def read_link(self, path: str) -> str:
        """Return the text of a link."""
        with self._parent(path) as (folder, name):
            return os.readlink(name, dir_fd=folder)

    def make_link(self, path: str, target: str) -> None:
        """Make a symbolic link. Raises: EEXIST."""
        with self._parent(path) as (folder, name):
            os.symlink(target, name, dir_fd=folder)

    def make_fifo(self, path: str, *, mode: int) -> None:
        """Make a named pipe. Raises: EEXIST."""
        with self._parent(path) as (folder, name):
            os.mkfifo(name, mode, dir_fd=folder)
            with _looked_at(folder, name) as (descriptor, status):
                # The program may have put another file at this path by now: only the new pipe's mode may change.
                if stat.S_ISFIFO(status.st_mode) and status.st_nlink == 1 and status.st_uid == os.geteuid():
                    os.chmod(f"/proc/self/fd/{descriptor}", mode)  # independent of the umask

    def set_mode(self, path: str, mode: int) -> None:
        """Set the permission bits of a regular file or folder.

        Raises: OSError: ELOOP for a link, EPERM for any other kind of entry.
        """
        with self._parent(path) as (folder, name), _looked_at(folder, name) as (descriptor, status):
            if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
                raise _other_kind(path, "a regular file or folder", status)
            os.chmod(f"/proc/self/fd/{descriptor}", mode)

    def remove(self, path: str, *, missing_ok: bool = False) -> None:
        """Remove a file; of a link, the link itself is removed."""
        with self._parent(path) as (folder, name):
            try:
                os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder."""
        with self._parent(path) as (folder, name):
            os.rmdir(name, dir_fd=folder)

    def rename(self, path: str, new_path: str) -> None:
        """Rename an entry below this folder, replacing a file at the new name."""
        with self._parent(path) as (folder, name), self._parent(new_path) as (new_folder, new_name):
            os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=new_folder)

    def holds(self, path: Path | str) -> bool:
        """Return whether `path` is this folder or lies in it, comparing inodes instead of names.

        Because inodes are compared, a bind mount or a link does not hide a folder. A missing path counts as lying in
        its nearest existing parent.
        """
        own = _identity(os.fstat(self._descriptor))
        place = Path(os.path.realpath(path))
        for folder in (place, *place.parents):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if _identity(os.stat(folder)) == own:
                    return True
        return False

    def lies_in(self, path: Path | str) -> bool:
        """Return whether this folder is `path` or lies in it, comparing inodes instead of names."""
        try:
            wanted = _identity(os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        here = os.dup(self._descriptor)
        try:
            while (found := _identity(os.fstat(here))) != wanted:
                above = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
                os.close(here)
                here = above
                if _identity(os.fstat(here)) == found:
                    return False  # the root
        finally:
            os.close(here)
        return True

    @contextlib.contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        """Yield the open parent folder of a path, and the path's last part."""
        *above, name = parts_of(path) or ("",)
        if not name:
            raise OSError(errno.EINVAL, "a path below the folder is expected, not the folder itself", path)
        if not above:
            yield self._descriptor, name
            return
        folder = open_beneath(self._descriptor, "/".join(above), _FOLDER_FLAGS)
        try:
            yield folder, name
        finally:
            os.close(folder)


def open_beneath(folder: int, path: str, flags: int) -> int:
    """Open the file or folder at `path` below an open folder; no part of the path may be a link.

    Where: `Folder` is built on it; use `Folder`, which also checks the kind of file.
    Args:
        folder: descriptor of the folder; stays open.
        flags: flags of open(2); no file is created.
    Raises: OSError: ELOOP if the path contains a link, EINVAL for an absolute path and for `..`.
    """
    parts = parts_of(path)
    try:
        descriptor = _openat2(folder, "/".join(parts) or ".", flags) if _has_openat2() else _walk(folder, parts, flags)
    except OSError as error:
        # With O_DIRECTORY, the error does not show that the last part is a link.
        if error.errno == errno.ELOOP or (isinstance(error, NotADirectoryError) and _ends_in_link(folder, parts)):
            raise _link_refused(path) from error
        error.filename = path
        raise
    try:
        if flags & os.O_PATH and stat.S_ISLNK(os.fstat(descriptor).st_mode):  # O_PATH opens the link itself
            raise _link_refused(path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_regular(folder: int, path: str, flags: int = os.O_RDONLY) -> int:
    """Open an existing regular file below an open folder, as `Folder.open_file` does.

    Args:
        folder: descriptor of the folder, which stays open.
        path: path below the folder, with `/`; no link on the way is followed.
        flags: flags of os.open; no file is created.
    Returns: a descriptor, which the caller closes.
    Raises: OSError.
    """
    return _open_judged(folder, path, flags, is_wanted=stat.S_ISREG, kind="a regular file")


def _open_judged(folder: int, path: str, flags: int, *, is_wanted: Callable[[int], bool], kind: str) -> int:
    descriptor = open_beneath(folder, path, _LOOK_FLAGS)
    try:
        status = os.fstat(descriptor)
        if not is_wanted(status.st_mode):
            raise _other_kind(path, kind, status)
        return os.open(f"/proc/self/fd/{descriptor}", flags | _SAFE_FLAGS)
    finally:
        os.close(descriptor)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def parts_of(path: str) -> list[str]:
    """Return the parts of a path below a folder. Raises: OSError: EINVAL for an absolute path, `..` and NUL."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise OSError(errno.EINVAL, "expected a path below the folder, without '..'", path)
    return parts


@contextlib.contextmanager
def _looked_at(folder: int, name: str) -> Iterator[tuple[int, os.stat_result]]:
    """Yield an O_PATH descriptor of a name in an open folder, and its status."""
    descriptor = os.open(name, _LOOK_FLAGS, dir_fd=folder)
    try:
        yield descriptor, os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _other_kind(path: str, kind: str, status: os.stat_result) -> OSError:
    if stat.S_ISLNK(status.st_mode):
        return _link_refused(path)
    if stat.S_ISDIR(status.st_mode):
        return IsADirectoryError(errno.EISDIR, f"expected {kind}, found a folder", path)
    return OSError(errno.EPERM, f"expected {kind}, found {_KINDS.get(stat.S_IFMT(status.st_mode), 'another')}", path)


def _link_refused(path: str) -> OSError:
    return OSError(errno.ELOOP, "a part of it is a symbolic link, which is not followed", path)


def _ends_in_link(folder: int, parts: list[str]) -> bool:
    try:
        above = open_beneath(folder, "/".join(parts[:-1]), _FOLDER_FLAGS)
    except OSError:
        return False
    try:
        return stat.S_ISLNK(os.stat(parts[-1] if parts else ".", dir_fd=above, follow_symlinks=False).st_mode)
    except OSError:
        return False
    finally:
        os.close(above)


class _OpenHow(ctypes.Structure):
    """struct open_how of linux/openat2.h."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@functools.cache
def _has_openat2() -> bool:
    """Return whether the kernel has openat2(2) and lets this process call it."""
    try:
        root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.close(_openat2(root, ".", os.O_PATH | os.O_CLOEXEC))
        finally:
            os.close(root)
    except OSError as error:
        if error.errno in _ABSENT:
            return False
        raise
    return True


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _openat2(folder: int, path: str, flags: int) -> int:
    how = _OpenHow(flags=flags, mode=0, resolve=_RESOLVE)
    number = 0
    for _ in range(_MAX_BLOCKED):
        descriptor = _libc().syscall(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(folder),
            ctypes.c_char_p(os.fsencode(path)),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if descriptor >= 0:
            return int(descriptor)
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(number, os.strerror(number), path)


def _walk(folder: int, parts: list[str], flags: int) -> int:
    """Open a path folder by folder, for kernels without openat2."""
    if not parts:
        return os.open(".", flags, dir_fd=folder)
    here = os.dup(folder)
    try:
        for depth, part in enumerate(parts[:-1], start=1):
            try:
                below = os.open(part, _FOLDER_FLAGS, dir_fd=here)
            except NotADirectoryError as error:
                if _ends_in_link(here, [part]):
                    raise _link_refused("/".join(parts[:depth])) from error
                raise
            os.close(here)
            here = below
        return os.open(parts[-1], flags | os.O_NOFOLLOW, dir_fd=here)
    finally:
        os.close(here)
