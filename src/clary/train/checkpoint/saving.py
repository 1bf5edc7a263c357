"""Writes a snapshot and makes it visible, on a thread of its own while training continues.

[Note: order] All ranks write and sync their parts; then each folder's leader writes the marker and renames. So a name
`step-...` means that every rank of every host has its part on disk, and a process that dies at any point leaves earlier
steps unchanged. The thread uses process groups of its own, separate from training's collectives.
"""

from __future__ import annotations

import atexit
import logging
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from clary.train.checkpoint.errors import CheckpointError
from clary.train.checkpoint.folders import METADATA, complete, prune, step_folder, writing_folder
from clary.train.checkpoint.parts import write_part, write_whole
from clary.train.checkpoint.peers import PeerMemory
from clary.train.checkpoint.places import Place
from clary.train.checkpoint.ranks import Ranks
from clary.train.checkpoint.snapshot import Snapshot
from clary.train.checkpoint.staging import Staging

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Writing:
    """One rank's snapshot that is being written."""

    ranks: Ranks  # ranks of a group that no other thread uses meanwhile
    root: Path
    places: Sequence[Place]
    snapshot: Snapshot
    keep: int
    staging: Staging | None = None  # still fills the snapshot; None if the snapshot is complete

    def write(self) -> None:
        """Write this rank's part, and make the step visible once all ranks have written theirs.

        State after failure: earlier steps are unchanged.
        Raises: CheckpointError on all ranks if one rank could not write; RuntimeError if a rank does not answer.
        """
        index = self.snapshot.index
        assert index is not None
        is_leader = self.places[self.ranks.rank].leader == self.ranks.rank
        folder = writing_folder(self.root, index.step, index.save)

        def part() -> None:
            if self.staging is not None:
                self.staging.finish()
            folder.mkdir(exist_ok=True)
            if is_leader:
                write_whole(folder / METADATA, self.snapshot.metadata)
            write_part(folder, index, self.snapshot.pieces)

        try:
            saved_at = self.ranks.map(
                f"writing step {index.step} to {self.root}", part, lambda parts: [time.time()] * len(parts)
            )
        except CheckpointError:
            shutil.rmtree(folder, ignore_errors=True)  # all ranks know that the save failed
            raise

        def show() -> None:
            if is_leader:
                complete(self.root, folder, index=index, saved_at=saved_at)

        self.ranks.together(f"making step {index.step} visible in {self.root}", show)

    def tidy(self, step: int, save: str) -> None:
        """Remove old steps if this rank leads its folder; a failure is only logged."""
        if self.places[self.ranks.rank].leader != self.ranks.rank:
            return
        try:
            prune(self.root, keep=self.keep, newest=step_folder(self.root, step), save=save)
        except OSError as error:
            _log.warning("%s: older checkpoints stay: %s", self.root, error)


class Background:
    """A thread that works while training continues, and its outcome.

    Args:
        before: called first, even while `previous` is still in its `afterwards`; never raises.
        work: the work that `finish` waits for.
        afterwards: called after successful work; `join` waits for it, `finish` does not.
        previous: the Background of the previous step.
    """

    def __init__(
        self,
        work: Callable[[], None],
        *,
        before: Callable[[], None] | None,
        afterwards: Callable[[], None],
        previous: Background | None,
        name: str,
        what: str,
    ) -> None:
        self._before, self._work, self._afterwards = before, work, afterwards
        self._previous, self._what = previous, what
        self._failure: BaseException | None = None
        self._over = threading.Event()
        # A daemon thread, since at exit Python waits without a limit for threads that are not daemons;
        # `_finish_at_exit` has a limit.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def finish(self, limit_s: float) -> BaseException | None:
        """Wait for the end of the work; return its error, once.

        Returns: CheckpointError also if the work has not ended within the limit; then `finish` may be called again.
        """
        if not self._over.wait(limit_s):
            return CheckpointError(f"{self._what} has not ended in {limit_s:g} s: a disk or a rank does not answer")
        failure, self._failure = self._failure, None
        return failure

    @property
    def is_over(self) -> bool:
        """Whether the work has ended."""
        return self._over.is_set()

    def join(self, limit_s: float) -> None:
        """Wait for the work and for `afterwards`."""
        self._thread.join(limit_s)

    def _run(self) -> None:
        if self._before is not None:
            self._before()
        if self._previous is not None:
            self._previous.join(PREVIOUS_LIMIT_S)
            self._previous = None
        try:
            self._work()
        except CheckpointError as error:
            self._failure = error
        except BaseException as error:  # noqa: BLE001 - raised by the next call, on the thread that trains
            self._failure = CheckpointError(f"{self._what} failed: {type(error).__name__}: {error}")
            self._failure.__cause__ = error
        ended_well = self._failure is None
        self._over.set()
        if ended_well:
            self._afterwards()


def start_writing(
    writing: Writing,
    *,
    copies: tuple[PeerMemory, Ranks, Sequence[int | None]] | None,
    told: Callable[[str], None],
    previous: Background | None,
) -> Background:
    """Begin to write, and to send copies to peers at the same time.

    Args:
        copies: memory for peers' copies, ranks that exchange them, and by rank the holder of its copy; None for no
            copies.
        previous: the Background of the previous save, whose work has ended.
        told: called on the thread that sends copies, with the reason if it fails; the step is still written.
    """
    index = writing.snapshot.index
    assert index is not None
    what = f"rank {writing.ranks.rank}: step {index.step} to {writing.root}"

    def work() -> None:
        sending = None
        if copies is not None:
            memory, ranks, partners = copies

            def exchange() -> None:
                try:
                    memory.exchange(ranks, writing.snapshot, partners)
                except Exception as error:  # noqa: BLE001 - copies are an extra: without them steps are on disks still
                    told(f"rank {ranks.rank}: step {index.step}: {error}")

            sending = threading.Thread(target=exchange, name="clary-checkpoint-copies", daemon=True)
            sending.start()
        try:
            writing.write()
        finally:
            if sending is not None:
                sending.join()  # every wait in it has the group's timeout

    step, save = index.step, index.save
    background = Background(
        work,
        before=None if writing.staging is None else writing.staging.copy,
        afterwards=lambda: writing.tidy(step, save),
        previous=previous,
        name=f"clary-checkpoint-{step}",
        what=what,
    )
    _pending.add(background)
    _wait_at_exit()
    return background


PREVIOUS_LIMIT_S = 600.0  # longest wait for the removal of old steps; then the next step is written anyway
EXIT_LIMIT_S = 1500.0  # below the default limit of the other ranks, so that they receive the reason
_pending: weakref.WeakSet[Background] = weakref.WeakSet()
_registered = threading.Event()


def _wait_at_exit() -> None:
    if not _registered.is_set():
        _registered.set()
        atexit.register(_finish_at_exit)


def _finish_at_exit() -> None:
    """Wait at the program's end until all steps are written, at most EXIT_LIMIT_S; log failed saves."""
    deadline_s = time.monotonic() + EXIT_LIMIT_S
    for background in list(_pending):
        failure = background.finish(max(deadline_s - time.monotonic(), 0.0))
        background.join(max(deadline_s - time.monotonic(), 0.0))
        if failure is not None:
            _log.error("%s", failure)
