"""Forces the files of a folder to their disk, for a program that leaves that to the kernel.

Where: `foundations` makes one `FolderFlush` for the folder of an embedded object store, which never calls fsync;
`agent_gateway` calls it before it stores that a job's results are complete, and after each set of checkpoints. Without
it a power cut within the next 30 s or so could leave a Completed job without its model.

[Note: fsync, not syncfs] A flush calls fsync for the files that have changed since the last one. So it waits for the
store's own data. syncfs would wait for everything that was written to the same disk: the local files of all jobs.

[Note: threads] A flush runs in a daemon thread, because a disk that hangs would hold a worker of the event loop's pool
for ever, and the end of the service with it. At most one flush runs at a time, and one waits behind it, which serves
everybody who has called meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path

LIMIT_S = 60.0  # longest wait for a flush; kernels hold back a fifth of the memory, which a slow disk takes as long for
SETTLED_S = 1.0  # a file that changed more recently may change again without a new time: it is flushed again
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # the file was removed or replaced meanwhile
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_log = logging.getLogger(__name__)


class FolderFlush:
    """Flushes of one folder; use it in one event loop.

    Args:
        folder: all regular files below it are flushed.
        limit_s: longest wait of a caller, in seconds.
    """

    def __init__(self, folder: Path, *, limit_s: float = LIMIT_S) -> None:
        self._folder = folder
        self._limit_s = limit_s
        self._flushed: dict[str, tuple[int, int, int]] = {}  # path -> inode, size and time of change, when flushed
        self._running: asyncio.Task[None] | None = None
        self._began_s = 0.0  # when the running flush began
        self._next: asyncio.Task[None] | None = None

    async def flush(self, what: str) -> None:
        """Return when all that was written before this call is on the disk, or is given up with a line in the log.

        Args:
            what: what has to survive a power cut, for the log.
        """
        task = self._begin(what)
        left_s = self._limit_s
        if self._running is not None:
            left_s = max(0.0, self._began_s + self._limit_s - time.monotonic())
        _, late = await asyncio.wait([task], timeout=left_s)
        if late:
            _log.warning(
                "%s: files below %s were not on the disk within %g s; a power cut now may damage them. Does the disk "
                "hang? The service goes on",
                what,
                self._folder,
                self._limit_s,
            )

    def begin(self, what: str) -> None:
        """Begin a flush that nobody waits for.

        Args: as `flush`.
        """
        self._begin(what)

    def _begin(self, what: str) -> asyncio.Task[None]:
        if self._next is None:
            self._next = asyncio.create_task(self._run(what, after=self._running), name="folder-flush")
        return self._next

    async def _run(self, what: str, *, after: asyncio.Task[None] | None) -> None:
        if after is not None and not after.done():
            await asyncio.wait([after])
        self._running, self._next, self._began_s = self._next, None, time.monotonic()
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def work() -> None:
            try:
                self._flush_changed()
            except OSError as error:
                _log.warning(
                    "%s: files below %s cannot be forced to the disk: %s; a power cut now may damage them. Look at "
                    "the disk's health in the kernel's log",
                    what,
                    self._folder,
                    error,
                )
            finally:
                with suppress(RuntimeError):  # the loop is closed: the service has ended meanwhile
                    loop.call_soon_threadsafe(done.set)

        threading.Thread(target=work, name="folder-flush", daemon=True).start()
        await done.wait()
        self._running = None

    def _flush_changed(self) -> None:
        """Flush the files that have changed since the last flush, and their folders. Raises: OSError."""
        found: set[str] = set()
        folders: set[str] = set()
        waiting = [str(self._folder)]
        while waiting:
            place = waiting.pop()
            try:
                listing = os.scandir(place)
            except FileNotFoundError:
                continue
            with listing:
                for entry in listing:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        found.add(entry.path)
                        if self._flush_file(entry.path):
                            folders.add(place)
        for place in folders:
            _fsync(place, _FOLDER_FLAGS)
        for path in self._flushed.keys() - found:
            del self._flushed[path]

    def _flush_file(self, path: str) -> bool:
        """Flush a file unless it is unchanged; return whether it is new or another one. Raises: OSError."""
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return False
        known, now = self._flushed.get(path), (status.st_ino, status.st_size, status.st_mtime_ns)
        if known == now:
            return False
        _fsync(path, _FILE_FLAGS)
        settled = time.time_ns() - status.st_mtime_ns > SETTLED_S * 1e9
        self._flushed[path] = now if settled else (status.st_ino, -1, 0)
        return known is None or known[0] != status.st_ino


def _fsync(path: str, flags: int) -> None:
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in _GONE:
            return
        raise
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
