"""Copies of system folders that change while hosts run: a host shows the open files of its start, and no later ones.

Where: `machine_view` lays the host's private layer over the copy instead of over the machine's own folder. In system
folders the machine's root is the programs' root (`shown_folders`), and closed files are hidden when a host is made. A
closed file that appears later in a live folder, such as the new user database during passwd(1), could be read. A copy
has only files that everybody may read.

Copying /etc takes 0.3 s on a slow disk, checking it 7 ms. So hosts share a copy until the folder changes; a job's agent
makes it in the background while the job is prepared. Each host locks its copy as long as its first process lives, and
whoever makes a new copy removes those that nobody has locked.

    /var/cache/clary/copies/lock            held while copies are looked for, made and removed
    /var/cache/clary/copies/NUMBER/files/   the copy
    /var/cache/clary/copies/NUMBER/state    the folder's entries with their times of change, when it was copied
    /var/cache/clary/copies/NUMBER/users    locked by every host that shows the copy
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from clary.agent.host.leftovers import remove_tree
from clary.agent.host.mounts.closed_files import CACHE_FOLDER, OPEN_FOLDER, RACY_NS
from clary.base.beneath import Folder

MAX_ENTRIES = 100_000
MAX_BYTES = 512 * 1024 * 1024
_COPIES, _LOCK, _FILES, _STATE, _USERS = "copies", "lock", "files", "state", "users"
_PARTIAL = ".partial"
_BOOT_FILE = "/proc/sys/kernel/random/boot_id"  # copies are not synced, so they may be damaged after a crash
_TURN_S = 10.0  # wait for another process that makes a copy
_TURN_LOOK_S = 0.005
_CHUNK_BYTES = 1 << 20
_REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EPERM, errno.EISDIR)


@dataclass
class OpenCopy:
    """A copy of a folder, in use until `close`, or until this process ends.

    Attributes:
        path: folder with the copied files.
        closed: paths of the folder that not all users may read or enter, and that the copy lacks.
    """

    path: str
    closed: list[str]
    _users: int | None = None  # descriptor of the locked file of a shared copy

    @property
    def is_shared(self) -> bool:
        """Whether other hosts may show the copy too."""
        return self._users is not None

    def close(self) -> None:
        """Let the copy be removed once it is outdated; a second call does nothing."""
        if self._users is not None:
            os.close(self._users)
            self._users = None


def open_copy(
    folder: str, *, skipped: Collection[str], own_place: str | None, cache_folder: str = CACHE_FOLDER
) -> OpenCopy:
    """Return a copy of the open files of a folder, as they are now.

    Args:
        folder: canonical path.
        skipped: folders inside of which the copy has only their names.
        own_place: missing folder for a copy of the caller's own, if shared copies cannot be used; None: raise instead.
        cache_folder: where shared copies are kept.
    Raises: OSError if no copy could be made; also if the folder has more than `MAX_ENTRIES` entries or `MAX_BYTES`.
    """
    found = _look(folder, skipped)
    try:
        return _shared(found, f"{cache_folder}/{_COPIES}")
    except OSError:
        if own_place is None:
            raise
    return _own(found, own_place)


def own_copy(folder: str, *, skipped: Collection[str], own_place: str) -> OpenCopy:
    """Return a copy of the caller's own, where a shared one cannot be mounted.

    Args: as `open_copy`.
    Raises: as there.
    """
    return _own(_look(folder, skipped), own_place)


def _own(found: _Found, place: str) -> OpenCopy:
    os.mkdir(place)
    _copy(found, place)
    return OpenCopy(place, sorted(found.closed))


def _shared(found: _Found, copies: str) -> OpenCopy:
    state = found.state()
    with _turn(copies):
        numbers = [name for name in os.listdir(copies) if name.isdigit()]
        place = next((f"{copies}/{name}" for name in numbers if _state_of(f"{copies}/{name}") == state), "")
        is_new = not place
        if is_new:
            place = _make_shared(found, state, copies)
        users = os.open(f"{place}/{_USERS}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if is_new:
                _remove_unused(copies, kept=place)
        except OSError:
            os.close(users)
            raise
        return OpenCopy(f"{place}/{_FILES}", sorted(found.closed), users)


def _state_of(place: str) -> bytes:
    try:
        with open(f"{place}/{_STATE}", "rb") as file:
            return file.read()
    except OSError:
        return b""


@dataclass
class _Found:
    """The entries of a folder at one moment."""

    folder: str
    folders: dict[str, os.stat_result] = field(default_factory=dict)  # path below `folder`; parents first
    files: dict[str, os.stat_result] = field(default_factory=dict)
    links: dict[str, os.stat_result] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)  # whole paths

    def state(self) -> bytes:
        """Return a text for this state of the folder; no other state since the machine's start has it."""
        with open(_BOOT_FILE, "rb") as file:
            parts = [file.read(), os.fsencode(self.folder)]
        now_ns = time.time_ns()
        is_racy = False
        for kind in (self.folders, self.files, self.links):
            for path, status in kind.items():
                facts = (status.st_dev, status.st_ino, status.st_ctime_ns, status.st_mode, status.st_size)
                parts.append(os.fsencode(f"{facts}{path}"))
                # A file may change again without a new time of change, unless its time is in the future.
                is_racy = is_racy or 0 <= now_ns - status.st_ctime_ns < RACY_NS
        if is_racy:
            parts.append(f"{now_ns} {os.getpid()}".encode())
        return b"\0".join(parts)


def _look(folder: str, skipped: Collection[str]) -> _Found:
    with Folder.at(folder) as top:
        return _look_below(top, folder, skipped)


def _look_below(top: Folder, folder: str, skipped: Collection[str]) -> _Found:
    found = _Found(folder)
    found.folders[""] = os.fstat(top.fileno())
    device = found.folders[""].st_dev
    waiting = [""]
    num_entries = num_bytes = 0
    while waiting:
        above = waiting.pop()
        try:
            here = top.folder(above[1:])
        except OSError:  # removed or replaced meanwhile
            continue
        with here, os.scandir(here.fileno()) as entries:
            for entry in entries:
                path = f"{above}/{entry.name}"
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                num_entries += 1
                if stat.S_ISLNK(status.st_mode):
                    found.links[path] = status
                elif stat.S_ISDIR(status.st_mode):
                    if status.st_mode & OPEN_FOLDER != OPEN_FOLDER:
                        found.closed.add(folder + path)
                        continue
                    found.folders[path] = status
                    if status.st_dev == device and folder + path not in skipped:
                        waiting.append(path)
                elif stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IROTH:
                    found.files[path] = status
                    num_bytes += status.st_size
                else:
                    found.closed.add(folder + path)
        if num_entries > MAX_ENTRIES or num_bytes > MAX_BYTES:
            raise OSError(
                f"{folder} has more than {MAX_ENTRIES} entries or {MAX_BYTES} bytes, too much for a host's copy of it"
            )
    return found


def _copy(found: _Found, place: str) -> None:
    """Copy into an empty folder. Entries that were removed, replaced or closed meanwhile are left out.

    No link is followed: the owner of a folder may put a link to a closed one in the place of another.
    """
    with Folder.at(found.folder) as top:
        _copy_from(top, found, place)


def _copy_from(top: Folder, found: _Found, place: str) -> None:
    for path in found.folders:
        if path:
            os.mkdir(place + path, 0o700)
    for path, status in found.links.items():
        with contextlib.suppress(FileNotFoundError, OSError):  # no link any more (EINVAL)
            os.symlink(top.read_link(path[1:]), place + path)
            os.chown(place + path, status.st_uid, status.st_gid, follow_symlinks=False)
    for path in found.files:
        try:
            source = top.open_file(path[1:])
        except OSError as error:
            if error.errno not in _REPLACED:
                raise
            continue
        try:
            _copy_file(source, place + path)
        finally:
            os.close(source)
    for path, status in reversed(found.folders.items()):
        _give(place + path, status)


def _copy_file(source: int, target: str) -> None:
    status = os.fstat(source)
    if not stat.S_ISREG(status.st_mode) or not status.st_mode & stat.S_IROTH:
        return  # replaced or closed meanwhile
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        num_left = MAX_BYTES
        while num_left > 0 and (count := os.sendfile(descriptor, source, None, min(_CHUNK_BYTES, num_left))):
            num_left -= count
    finally:
        os.close(descriptor)
    _give(target, status)


def _give(target: str, status: os.stat_result) -> None:
    """Give a copy the owner, mode and time of the original."""
    os.chown(target, status.st_uid, status.st_gid)
    os.chmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _make_shared(found: _Found, state: bytes, copies: str) -> str:
    """Make a shared copy while holding the lock of the copies; return its folder."""
    place = f"{copies}/{time.time_ns()}"
    partial = f"{place}{_PARTIAL}"
    os.mkdir(partial, 0o700)
    try:
        os.mkdir(f"{partial}/{_FILES}")
        _copy(found, f"{partial}/{_FILES}")
        with open(f"{partial}/{_STATE}", "wb") as file:
            file.write(state)
        os.rename(partial, place)
    except BaseException:
        remove_tree(partial)
        raise
    return place


def _remove_unused(copies: str, *, kept: str) -> None:
    """Remove the copies that no host shows, and the unfinished copies of processes that have ended."""
    for name in os.listdir(copies):
        place = f"{copies}/{name}"
        if name == _LOCK or place == kept:
            continue
        users = None
        with contextlib.suppress(FileNotFoundError):  # unfinished, or its maker ended before it locked it
            users = os.open(f"{place}/{_USERS}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if users is not None:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not name.endswith(_PARTIAL):  # nobody may find a copy of which a part is missing
                os.rename(place, f"{place}{_PARTIAL}")
                place += _PARTIAL
            remove_tree(place)
        except BlockingIOError:
            continue  # shown by a host
        finally:
            if users is not None:
                os.close(users)


@contextlib.contextmanager
def _turn(copies: str) -> Iterator[None]:
    """Hold the lock of the copies. Raises: OSError, also if another process holds it for `_TURN_S`."""
    os.makedirs(copies, mode=0o700, exist_ok=True)
    status = os.stat(copies)
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{copies} belongs to user {status.st_uid}, or others may write into it")
    lock = os.open(f"{copies}/{_LOCK}", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        deadline_s = time.monotonic() + _TURN_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise
            time.sleep(_TURN_LOOK_S)
        yield
    finally:
        os.close(lock)
