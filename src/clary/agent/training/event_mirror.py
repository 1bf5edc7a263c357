"""Mirrors the folder of TensorBoardOutputConfig to S3 while the program runs, so that a TensorBoard can read it there.

Where: `supervisor.host_training` starts it with the program; the last round is part of the upload. Files go to
S3OutputPath/JOB/tensorboard-output/ under their paths below LocalPath, as on SageMaker.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from clary.agent.object_store import ObjectStore, parse_s3_uri
from clary.agent.training.growing_files import FoundFile, opened_file, walk
from clary.contract.errors import ClaryError
from clary.contract.launch_plan import LaunchPlan

INTERVAL_S = 10.0  # from one round to the next
MAX_FILES = 5_000
_BYTES_PER_S = 8 * 1024 * 1024  # a file is sent whole each time it grew: large ones not as often
_READ_BYTES = 1024 * 1024
_STORE_ATTEMPTS = 3
MIRROR_FOLDER = "tensorboard-output"

logger = logging.getLogger(__name__)


def mirror_of(
    plan: LaunchPlan, ml_folder: Path, folder: str, *, prefix: str, on_note: Callable[[str], None]
) -> EventMirror | None:
    """Return the mirror of a job's folder; None, with a note, where there is no place for it.

    Args:
        plan: of the job.
        ml_folder: the host's `/opt/ml` on this machine.
        folder: below it.
        prefix: S3OutputPath of the request.
        on_note: as of EventMirror.
    """
    uri = f"{prefix.rstrip('/')}/{plan.job_name}/{MIRROR_FOLDER}"
    try:
        parse_s3_uri(uri)
    except ClaryError as error:
        on_note(f"TensorBoardOutputConfig: its files are not sent: {error}")
        return None
    return EventMirror(
        ml_folder,
        folder,
        uri=uri,
        open_store=lambda: ObjectStore(plan.object_store, attempts=_STORE_ATTEMPTS),
        on_note=on_note,
    )


class EventMirror:
    """Mirrors one folder; a thread of its own does the rounds.

    Args:
        root: the tree as the agent sees it.
        folder: below it.
        uri: prefix of the objects, with the job's name in it.
        open_store: makes the store; called when there is something to send.
        on_note: told once, in a sentence, that files could not be sent.
    """

    def __init__(
        self,
        root: Path,
        folder: str,
        *,
        uri: str,
        open_store: Callable[[], ObjectStore],
        on_note: Callable[[str], None],
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._root = root
        self._folder = folder
        self._uri = uri
        self._place = parse_s3_uri(uri)
        self._open_store = open_store
        self._on_note = on_note
        self._interval_s = interval_s
        self._store: ObjectStore | None = None
        self._sent: dict[str, tuple[int, int, float]] = {}  # path -> size, modification, when it may be sent again
        self._lock = threading.Lock()  # one round at a time
        self._ending = threading.Event()
        self._has_told = False
        self._thread = threading.Thread(target=self._run, name="event-mirror", daemon=True)

    def start(self) -> None:
        """Begin to mirror."""
        self._thread.start()

    def finish(self) -> None:
        """Send what is left, now that the program is gone; takes as long as that takes."""
        self._ending.set()
        self._round(is_last=True)

    def end(self) -> None:
        """Send no more; a request that is under way fails."""
        self._ending.set()
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; return whether it did."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._ending.wait(self._interval_s):
            self._round()

    def _round(self, *, is_last: bool = False) -> None:
        with self._lock:
            try:
                for number, found in enumerate(walk(self._root, self._folder)):
                    if number >= MAX_FILES or (self._ending.is_set() and not is_last):
                        return
                    if self._is_due(found, is_last=is_last):
                        self._send(found)
            except (ClaryError, OSError) as error:
                logger.warning("the mirror of %s: %s", self._folder, error)
                if is_last or not self._has_told:
                    self._has_told = True
                    self._on_note(f"files of TensorBoard could not be sent to {self._uri}: {error}")
            except Exception:  # boundary: pictures of a training must not end it
                logger.exception("the mirror of %s", self._folder)

    def _is_due(self, found: FoundFile, *, is_last: bool) -> bool:
        size_bytes, modified_ns, next_s = self._sent.get(found.path, (-1, 0, 0.0))
        if (size_bytes, modified_ns) == (found.size_bytes, found.modified_ns):
            return False
        return is_last or time.monotonic() >= next_s

    def _send(self, found: FoundFile) -> None:
        if self._store is None:
            self._store = self._open_store()
        key = f"{self._place.key.rstrip('/')}/{found.path.removeprefix(self._folder).lstrip('/')}"
        with opened_file(self._root, found.path) as descriptor:
            self._store.upload_stream(self._place.bucket, key, _Bounded(descriptor, found.size_bytes))
        again_s = time.monotonic() + found.size_bytes / _BYTES_PER_S
        self._sent[found.path] = (found.size_bytes, found.modified_ns, again_s)


class _Bounded:
    """The first bytes of an open file, which may be growing."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self._descriptor = descriptor
        self._left = size_bytes
        self._offset = 0

    def read(self, size: int = _READ_BYTES, /) -> bytes:
        """Return the next bytes; none at the end."""
        data = os.pread(self._descriptor, min(size, self._left), self._offset)
        self._offset += len(data)
        self._left -= len(data)
        return data
