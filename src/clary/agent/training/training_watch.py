"""The thread that reads a program's files about its training, and sends values to the service.

Where: `training.host_training` starts it with the program. No error in this module ends the host's life.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from clary.agent.sender import NotWanted, Parcel, Sender
from clary.agent.service_client import AttemptOver, BackOff, ServiceRefused
from clary.agent.training.file_reading import FileReading
from clary.agent.training.finding_store import FindingStore
from clary.agent.training.progress_watch import ProgressWatch
from clary.base.clock import Clock
from clary.contract.training_values import TrainingBatch, TrainingProgress, TrainingReceipt

LOOK_S = 1.0  # from one poll of the files to the next
SEND_S = 2.0  # from one batch to the next while a program writes
STATE_S = 10.0  # from one poll for a state file to the next
MAX_LOAD = 0.01  # share of one processor; more expensive polls are made less often
_MAX_PAUSE_S = 5.0  # between retries while the service is unreachable

logger = logging.getLogger(__name__)


class TrainingReceiver(Protocol):
    """The service as the watch sees it."""

    def send_training(self, batch: TrainingBatch) -> TrainingReceipt:
        """Store a batch; raises ServiceUnreachable, ServiceRefused or AttemptOver."""


class TrainingWatch(Sender):
    """Reads and sends findings; after `stop` it continues until all findings of the program are sent.

    Args:
        service: receives the findings.
        reading: reader of the files; used by the thread alone, once the thread has begun.
        progress: finds progress in the log.
        clock: gives the time of day for progress that is read from a state file.
        on_note: called with a sentence for the user.
    """

    def __init__(
        self,
        service: TrainingReceiver,
        *,
        reading: FileReading,
        progress: ProgressWatch,
        clock: Clock,
        on_note: Callable[[str], None],
        store: FindingStore | None = None,
    ) -> None:
        self._store = store or FindingStore()
        super().__init__(
            "training-watch",
            failure="values of the training are not read any more",
            what="values of the training",
            source=self._store,
            give_up=self._store.give_up,
            back_off=BackOff(first_s=0.2, cap_s=_MAX_PAUSE_S),
        )
        self._service = service
        self._reading = reading
        self._progress = progress
        self._clock = clock
        self._on_note = on_note
        self._sent_progress: TrainingProgress | None = None
        self._next_look_s = self._next_send_s = self._next_state_s = 0.0
        self._has_seen_all = False  # whether all files of the ended program are read
        self._has_told = False  # whether the user knows that values are left out

    def _round(self) -> float | None:
        is_last = self.is_stopping
        if (is_last and not self._has_seen_all) or time.monotonic() >= self._next_look_s:
            used_s = time.thread_time()
            self._look(is_last=is_last)
            used_s = time.thread_time() - used_s
            self._next_look_s = time.monotonic() + used_s / MAX_LOAD
            self._has_seen_all = is_last and not self._reading.is_behind
        if not is_last and time.monotonic() < self._next_send_s:
            return LOOK_S
        try:
            again_s = self._send_all()
        except (AttemptOver, NotWanted) as error:
            logger.info("values of the training are not wanted: %s", error)
            return None
        self._next_send_s = time.monotonic() + (again_s or SEND_S)
        if again_s:
            return min(again_s, LOOK_S)
        if self._has_seen_all:
            self._store.admit_waiting(now_s=time.monotonic(), is_last=True)  # every sent finding has left the store
            if self._parcel() is None:
                return None
        return 0.0 if is_last else LOOK_S

    def _look(self, *, is_last: bool) -> None:
        now_s = time.monotonic()
        for finding in self._reading.look():
            self._store.offer(finding, now_s=now_s)
        self._store.admit_waiting(now_s=now_s, is_last=is_last and not self._reading.is_behind)
        if now_s >= self._next_state_s or is_last:
            self._next_state_s = now_s + STATE_S
            state = self._reading.state(int(self._clock.now().timestamp() * 1000))
            if state is not None:
                self._progress.take_state(state)
        if (self._store.num_dropped or self._store.num_unnamed) and not self._has_told:
            self._has_told = True
            self._on_note(
                "values or pictures of the training came faster, or under more names, than they are kept: "
                "some are left out; write fewer"
            )

    def _parcel(self) -> Parcel | None:
        progress = self._new_progress()
        batch = self._store.batch(progress)
        if not batch.findings and progress is None:
            return None

        def send() -> int:
            try:
                wanted = self._service.send_training(batch).next
            except ServiceRefused:
                self._sent_progress = progress or self._sent_progress  # it would be refused again
                raise
            self._sent_progress = progress or self._sent_progress
            return wanted

        return Parcel(batch.first, batch.first + len(batch.findings), send)

    def _new_progress(self) -> TrainingProgress | None:
        """Return the program's progress, if it was not yet sent to the service."""
        current, sent = self._progress.current(), self._sent_progress
        if current is None or (sent is not None and _is_same(current, sent)):
            return None
        return current


def _is_same(current: TrainingProgress, sent: TrainingProgress) -> bool:
    """Whether steps, epoch and source are the same; times and estimates may differ."""
    return (current.done, current.total, current.epoch, current.source) == (
        sent.done,
        sent.total,
        sent.epoch,
        sent.source,
    )
