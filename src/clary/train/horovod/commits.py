"""Commits of elastic programs that outlive their processes.

In a job a lost host ends the attempt, and the next one starts new processes: what a program commits to memory would be
gone. So rank 0 also writes each commit into the job's folder of checkpoints, which the next attempt finds, on whichever
hosts it runs. A write replaces the one before in one step. A commit that comes while another is being written waits;
only the newest of those that wait is written.
Without that folder commits live in memory alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Mapping

FILE_NAME = "horovod-elastic.commit"
FOLDER_VARIABLE = "CLARY_HOROVOD_COMMITS"  # a folder; "" keeps commits in memory
_JOB_VARIABLE = "SM_CURRENT_HOST"  # set in every job
_JOB_FOLDER = "/opt/ml/checkpoints"
_CLOSE_LIMIT_S = 300.0
_LOG = logging.getLogger("horovod")


def commit_folder(environ: Mapping[str, str]) -> str | None:
    """Return the folder into which commits are written; None keeps them in memory."""
    if FOLDER_VARIABLE in environ:
        return environ[FOLDER_VARIABLE] or None
    is_job = _JOB_VARIABLE in environ and os.path.isdir(_JOB_FOLDER) and os.access(_JOB_FOLDER, os.W_OK)
    return _JOB_FOLDER if is_job else None


def read_commit(folder: str) -> bytes | None:
    """Return the newest commit, or None before the first. Raises: OSError if it cannot be read."""
    try:
        with open(os.path.join(folder, FILE_NAME), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


class CommitWriter:
    """Writes commits in a thread of its own.

    Args:
        folder: that is there.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._changed = threading.Condition()
        self._next: Callable[[], bytes] | None = None
        self._is_busy = False
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def write(self, pack: Callable[[], bytes]) -> None:
        """Have a commit written soon.

        Args:
            pack: returns its bytes; called in the writer's thread, so it must not read what the program changes.
        """
        with self._changed:
            self._next = pack
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="horovod-commits", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> bool:
        """Wait until the newest commit is written; whether it was within five minutes."""
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
        path = os.path.join(self._folder, FILE_NAME)
        new = f"{path}.new"
        try:
            with open(new, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise
