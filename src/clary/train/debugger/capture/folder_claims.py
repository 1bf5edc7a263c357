"""Claims on a folder by a worker's name: one program at a time, so that files of two programs are never mixed.

The claim is a lock on a file, which the kernel releases when the program ends, however it ends. If the file system has
no locks, or the file belongs to another user, the program saves without a claim.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
from pathlib import Path

from clary.train.debugger.errors import FolderTaken, TensorFileError
from clary.train.debugger.files import COLLECTIONS, ENDED, LocalFiles

_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)
_PID_BYTES = 32
_MAX_JSON = 64 * 1024  # bytes
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_log = logging.getLogger("clary.debugger")


class FolderClaim:
    """A worker's claim on an existing folder of tensors; the caller must `release` it.

    Raises: FolderTaken; then no lock is held.
    """

    def __init__(self, folder: Path, worker: str) -> None:
        self._handle = -1
        path = folder / COLLECTIONS / f".{worker}.lock"
        try:
            self._handle = os.open(path, _FLAGS, 0o644)
        except OSError as error:
            _log.info("debugger: %s is not claimed: %s", path, error)
            return
        try:
            _lock(self._handle, folder, worker)
        except BaseException:
            os.close(self._handle)
            raise

    def release(self) -> None:
        """Release the claim, so that other programs can save. A second call does nothing."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)  # forked processes share the lock
            os.close(handle)


def _lock(handle: int, folder: Path, worker: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(handle, _PID_BYTES, 0).decode("ascii", "replace")
        # Processes that a program has forked, such as data loaders, keep its lock after its end.
        if error.errno in _TAKEN and not (owner.isdigit() and not os.path.exists(f"/proc/{owner}")):
            raise FolderTaken(
                f"process {owner or 'unknown'} saves in {folder} as {worker}, and this is process {os.getpid()}: give"
                " one of them a RANK or an out_dir of its own, or USE_SMDEBUG=0"
            ) from None
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)


def has_ended_well(folder: Path, worker: str) -> bool:
    """Whether a worker's file tells that its program ended without an error; a killed program leaves no file."""
    try:
        said = json.loads(LocalFiles(folder).read(f"{ENDED}/{worker}.json", 0, _MAX_JSON))
        return said.get("program_failed") is False
    except (OSError, ValueError, AttributeError, RecursionError, TensorFileError):
        return False
