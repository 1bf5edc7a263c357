"""Reads the files that are new since the last look. Damaged files are logged and left out; no step waits for them."""

from __future__ import annotations

import json
import logging
from typing import Any

from clary.train.debugger.collection import Collection, CollectionManager
from clary.train.debugger.errors import TensorFileError
from clary.train.debugger.files import (
    COLLECTIONS,
    GROUP,
    STEP_FILE,
    STEPS,
    STEPS_OF_A_FOLDER,
    WORKER_FILE,
    Files,
    step_file,
)
from clary.train.debugger.reading.ends import Ends
from clary.train.debugger.reading.saved_steps import SavedSteps
from clary.train.debugger.reading.tensor_catalog import TensorCatalog
from clary.train.debugger.tensor_files import StepIndex, read_index

_PREPARED = 64  # files whose beginnings are prefetched at once
_MAX_JSON = 16 * 1024**2  # bytes
_MISFITS = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, TensorFileError)
_log = logging.getLogger("clary.debugger")


class TrialReader:
    """Reads files into a trial's `steps`, `collections` and tensors.

    Args:
        tensors: receives the tensors of each step.
        first_step, end_step: range of global steps to read, without `end_step`; None for no end.
        since: seconds since 1970; older files belong to an earlier try and are left out.
        ends_by_mark: whether only agents' end marks end a training, not workers' marks.
    """

    def __init__(
        self,
        files: Files,
        tensors: TensorCatalog,
        *,
        first_step: int,
        end_step: int | None,
        since: float,
        ends_by_mark: bool,
    ) -> None:
        self.num_restarts = 0  # number of programs that have replaced an earlier program
        self.damaged: dict[str, str] = {}  # refused file -> the reason
        self.collections = CollectionManager()
        self._ends = Ends(by_mark=ends_by_mark)
        self.steps = SavedSteps(self._ends)
        self._files, self._tensors = files, tensors
        self._first, self._end, self._since = first_step, end_step, since
        self._known: dict[str, str] = {}  # file that was read -> its mark
        self._goes_on_after: dict[str, int] = {}  # worker -> step after which its last program continues

    def look(self) -> None:
        """Read new files. Raises: OSError; files read until then are kept."""
        for name, mark in self._files.listing(COLLECTIONS).items():
            if (match := WORKER_FILE.fullmatch(name)) is not None:
                self._take_collections(match[1], f"{COLLECTIONS}/{name}", mark)
        # Ends are read after collections, which have the number of workers, and before steps, so that no step is
        # missed.
        has_ended = self._ends.look(self._files)
        self._look_for_steps()
        self.steps.has_ended = has_ended

    def _take_collections(self, worker: str, name: str, mark: str) -> None:
        if self._known.get(name) == mark:
            return
        began_at, num_ends, goes_on_after = 0.0, 1, -1
        try:
            document: dict[str, Any] = json.loads(self._files.read(name, 0, _MAX_JSON))
            began_at = float(document.get("began_at", 0.0))
            if began_at < self._since:
                self._known[name] = mark
                return
            goes_on_after = int(document.get("goes_on_after", -1))
            self.steps.num_workers = max(1, int(document["num_workers"]))
            num_ends = int(document.get("num_ends", self.steps.num_workers))
            for coll_name, one in document["collections"].items():
                self.collections.add(Collection(coll_name, one["include_regex"], one["tensor_names"]))
            self.damaged.pop(name, None)
        except _MISFITS as error:
            self._refuse(name, error)
        except FileNotFoundError:
            return  # the file is being replaced
        self._known[name] = mark
        self._goes_on_after[worker] = goes_on_after
        if self._ends.begin(worker, began_at, num_ends):
            self._forget(worker)

    def _forget(self, worker: str) -> None:
        """Forget the files of an earlier program, which another program of the same worker has replaced."""
        self.num_restarts += 1
        self._known = {name: mark for name, mark in self._known.items() if f".{worker}." not in name}
        self._tensors.forget(worker, self.steps.forget(worker))

    def _look_for_steps(self) -> None:
        """Look for steps from the last one that all announced workers have passed; earlier steps are known."""
        begin = max(self.steps.next_look(), self._first)
        for group in self._files.listing(STEPS):
            if GROUP.fullmatch(group) is None or int(group) < begin // STEPS_OF_A_FOLDER:
                continue
            found = self._files.listing(f"{STEPS}/{group}", f"{begin:012d}")
            new = [name for name in found if STEP_FILE.fullmatch(name) and self._known.get(name) != found[name]]
            for at in range(0, len(new), _PREPARED):
                some = new[at : at + _PREPARED]
                self._files.prepare([f"{STEPS}/{group}/{name}" for name in some])
                for name in some:
                    self._take_step(f"{STEPS}/{group}/{name}")
                    self._known[name] = found[name]

    def _take_step(self, name: str) -> None:
        try:
            index = read_index(self._files, name)
            if name != f"{STEPS}/{step_file(index.step, index.worker)}":
                raise TensorFileError(f"{name} says that it is step {index.step} of {index.worker}")
        except (TensorFileError, FileNotFoundError) as error:
            self._refuse(name, error)
            if (match := STEP_FILE.search(name)) is not None:
                self.steps.take_passed(match[2], int(match[1]))
            return
        self.damaged.pop(name, None)
        if index.written_at < self._since or self._is_replaced(index):
            return
        self.steps.take_passed(index.worker, index.step)
        self.steps.num_workers = max(self.steps.num_workers, index.num_workers)
        if index.step < self._first or (self._end is not None and index.step >= self._end):
            return
        self.steps.take(index)
        self._tensors.take(index)

    def _is_replaced(self, index: StepIndex) -> bool:
        """Whether a step belongs to an earlier program, and the last program replaces it."""
        is_earlier = index.written_at < self._ends.began_at(index.worker)
        return is_earlier and index.step > self._goes_on_after.get(index.worker, -1)

    def _refuse(self, name: str, error: Exception) -> None:
        if name not in self.damaged:
            _log.warning("debugger: %s is left out: %s", name, error)
        self.damaged[name] = str(error)
