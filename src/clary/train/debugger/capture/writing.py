"""Writes steps in a background thread, each to a file that appears only when it is complete.

The memory for copies bounds the number of waiting steps (`buffers`); this module has no bound of its own.
"""

from __future__ import annotations

import json
import logging
import queue
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from clary.train.debugger.capture.folder_claims import FolderClaim
from clary.train.debugger.files import COLLECTIONS, ENDED, STEPS, step_file
from clary.train.debugger.tensor_files import StepIndex, TensorEntry, write_step, write_whole

_log = logging.getLogger("clary.debugger")


class Copied(Protocol):
    """A step's tensors in host memory."""

    @property
    def index(self) -> StepIndex:
        """The index of the file, without tensors and their offsets."""

    def tensors(self) -> list[tuple[TensorEntry, memoryview | None]]:
        """Wait for the copies and return them."""

    def release(self) -> None:
        """Return the memory to its pool."""


class Writer:
    """Writes one worker's files; the caller must `close` it.

    Args:
        folder: created if missing.

    Raises: FolderTaken if another process writes there as the same worker, OSError.
    """

    def __init__(self, folder: Path, worker: str) -> None:
        self._folder, self._worker = folder, worker
        self._groups: set[Path] = set()
        self._waiting: queue.SimpleQueue[Copied | None] = queue.SimpleQueue()
        self.num_written = self.num_failed = self.num_bytes = 0
        self._last_step: int | None = None
        for name in (COLLECTIONS, STEPS, ENDED):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self._claim = FolderClaim(folder, worker)
        self.began_at = time.time()  # files that were saved here earlier belong to another program
        (folder / ENDED / f"{worker}.json").unlink(missing_ok=True)  # end mark of an earlier try in the same folder
        self._thread = threading.Thread(target=self._run, name="clary-debugger-writer", daemon=True)
        self._thread.start()

    def submit(self, step: Copied) -> None:
        """Queue a step for writing, and return at once."""
        self._waiting.put(step)

    def write_collections(
        self,
        collections: Mapping[str, Any],
        num_workers: int,
        num_ends: int | None = None,
        *,
        goes_on_after: int = -1,
    ) -> None:
        """Write the file of collections and of the number of workers that save.

        Args:
            num_ends: number of workers that must end before the training counts as ended; None for all that save.
            goes_on_after: step of an earlier program after which this program continues; -1 without such a program.

        Raises: OSError.
        """
        document = {
            "format": 1,
            "worker": self._worker,
            "num_workers": num_workers,
            "num_ends": num_workers if num_ends is None else num_ends,
            "began_at": self.began_at,
            "goes_on_after": goes_on_after,
            "collections": collections,
        }
        self._write_json(f"{COLLECTIONS}/{self._worker}.json", document)

    def close(self, *, limit_s: float, num_dropped: int = 0, failure: str = "") -> bool:
        """Wait until all steps are written, then mark this worker as ended; return False if that took too long.

        Args:
            limit_s: seconds to wait.
            num_dropped: number of steps that got no memory in time.
            failure: the error that ended saving before the training ended; empty without an error.

        Raises: OSError.
        """
        self._waiting.put(None)
        self._thread.join(limit_s)
        if self._thread.is_alive():
            return False
        document = {
            "last_step": self._last_step,
            "num_written": self.num_written,
            "num_dropped": num_dropped,
            "num_failed": self.num_failed,
            "failure": failure,
            "program_failed": getattr(sys, "last_value", None) is not None,  # set by Python for an uncaught error
            "ended_at": max(time.time(), self.began_at),
        }
        try:
            self._write_json(f"{ENDED}/{self._worker}.json", document)
        finally:
            self._claim.release()
        return True

    def _run(self) -> None:
        while (step := self._waiting.get()) is not None:
            try:
                self._write(step)
            except Exception as error:  # noqa: BLE001 - a full disk, or what a device says when it is asked for a copy
                self.num_failed += 1
                if self.num_failed == 1:
                    _log.warning(
                        "debugger: step %d was not saved: %r; training goes on, later steps are tried",
                        step.index.step,
                        error,
                    )
            finally:
                step.release()

    def _write(self, step: Copied) -> None:
        path = self._folder / STEPS / step_file(step.index.step, self._worker)
        if path.parent not in self._groups:
            path.parent.mkdir(exist_ok=True)
            self._groups.add(path.parent)
        self.num_bytes += write_step(path, step.index, step.tensors())
        self.num_written += 1
        self._last_step = step.index.step

    def _write_json(self, name: str, document: Mapping[str, Any]) -> None:
        write_whole(self._folder / name, [memoryview(json.dumps(document).encode())])
