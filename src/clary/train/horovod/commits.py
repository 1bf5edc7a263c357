"""Commits of elastic programs that outlive their processes.

In a job, a lost host ends the attempt, and the next attempt starts new processes: commits in memory would be lost. So
rank 0 also writes commits into the job's checkpoint folder, which the next attempt reads on any host. A write replaces
the earlier commit atomically. A commit made during a write waits; only the newest waiting commit is written. Without a
checkpoint folder, commits live in memory alone.

    file    MAGIC (8), length of the content (8), SHA-256 of the content (32), content

The content is a pickle, and unpickling can run code. So only a complete regular file is unpickled: no link, no pipe, no
truncated file, and no file of another program with the same name. A process that may write to the folder can still
forge a complete file: see docs/horovod.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import struct
import threading
from collections.abc import Callable, Mapping

from clary.base.beneath import FILE_MODE, Folder
from clary.train.horovod.errors import CommitError

FILE_NAME = "horovod-elastic.commit"
FOLDER_VARIABLE = "CLARY_HOROVOD_COMMITS"  # path of a folder; "" keeps commits in memory
_JOB_VARIABLE = "CURRENT_HOST"  # set in every job, also in one with a ContainerEntrypoint
_TREE_VARIABLE = "SAGEMAKER_BASE_DIR"  # set if jobs share this machine's file system: root of the job's own tree
_TREE = "/opt/ml"
_CLOSE_LIMIT_S = 300.0
_MAGIC = b"CLARYHC1"
_HEADER = struct.Struct("<8sQ32s")
_NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOG = logging.getLogger("horovod")


def commit_folder(environ: Mapping[str, str]) -> str | None:
    """Return the folder into which commits are written; None keeps them in memory."""
    if FOLDER_VARIABLE in environ:
        return environ[FOLDER_VARIABLE] or None
    folder = os.path.join(environ.get(_TREE_VARIABLE) or _TREE, "checkpoints")
    is_job = _JOB_VARIABLE in environ and os.path.isdir(folder) and os.access(folder, os.W_OK)
    return folder if is_job else None


def read_commit(folder: str) -> bytes | None:
    """Return the content of the newest commit, or None before the first; follow no link, block on no pipe.

    Raises: CommitError naming the file and its defect.
    """
    try:
        with Folder.at(folder) as place, open(place.open_file(FILE_NAME), "rb") as file:
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                raise _no_commit(folder, f"it ends after {len(header)} bytes")
            magic, length, digest = _HEADER.unpack(header)
            if magic != _MAGIC:
                raise _no_commit(folder, f"it begins with {magic!r}, not with {_MAGIC!r}")
            there = os.fstat(file.fileno()).st_size - _HEADER.size
            if there != length:  # checked before reading, so that a wrong length allocates no memory
                raise _no_commit(folder, f"it holds {there} bytes, expected {length}")
            content = file.read(length)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _no_commit(folder, error.strerror or str(error)) from error
    if hashlib.sha256(content).digest() != digest:
        raise _no_commit(folder, "its content does not match its checksum")
    return content


def _no_commit(folder: str, why: str) -> CommitError:
    return CommitError(
        f"{os.path.join(folder, FILE_NAME)} is not a complete commit of this job: {why}. Training does not continue "
        f"from it, and nothing in it was run. Put an earlier version of the file back, or remove it to begin anew"
    )


class CommitWriter:
    """Writes commits in a thread of its own.

    Args:
        folder: an existing folder.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._changed = threading.Condition()
        self._next: Callable[[], bytes] | None = None
        self._is_busy = False
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def write(self, pack: Callable[[], bytes]) -> None:
        """Queue a commit to be written.

        Args:
            pack: returns the commit's bytes; called in the writer's thread, so it must not read objects that the
                program changes.
        """
        with self._changed:
            self._next = pack
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="horovod-commits", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> bool:
        """Wait until the newest commit is written or has failed; return False if that takes over five minutes."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_LIMIT_S)
            return not self._thread.is_alive()
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None or self._is_closed)
                pack, self._next = self._next, None
            if pack is None:
                return
            try:
                self._replace(pack())
            except Exception as error:  # noqa: BLE001 - training goes on; the commit before stays
                _LOG.warning(
                    "a commit could not be written to %s: %r. The one before stays; a new attempt goes back to it",
                    self._folder,
                    error,
                )

    def _replace(self, content: bytes) -> None:
        header = _HEADER.pack(_MAGIC, len(content), hashlib.sha256(content).digest())
        new = f"{FILE_NAME}.new"
        with Folder.at(self._folder) as place:
            place.remove(new, missing_ok=True)  # left by a killed process; a link is removed, not its target
            try:
                with open(os.open(new, _NEW_FLAGS, FILE_MODE, dir_fd=place.fileno()), "wb") as file:
                    file.write(header)
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                place.rename(new, FILE_NAME)
            except BaseException:
                with contextlib.suppress(OSError):
                    place.remove(new)
                raise
