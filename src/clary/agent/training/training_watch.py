"""The thread that reads what a program writes about its training, and carries it to the service.

Where: `training.host_training` starts it with the program. A batch is sent until the service has it; a service
that is away costs findings only when the store is full. Nothing that happens here reaches the host's life.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from clary.agent.service_client import AttemptOver, ServiceRefused, ServiceUnreachable
from clary.agent.training.file_reading import FileReading
from clary.agent.training.finding_store import FindingStore
from clary.agent.training.progress_watch import ProgressWatch
from clary.base.clock import Clock
from clary.contract.training_values import TrainingBatch, TrainingProgress, TrainingReceipt

LOOK_S = 1.0  # from one look at the files to the next
SEND_S = 2.0  # from one batch to the next while a program writes
STATE_S = 10.0  # from one look for a state file to the next
MAX_LOAD = 0.01  # of one processor; looks that cost more are taken less often
AWAY_S = 2.0  # from one try to the next while the service is away

logger = logging.getLogger(__name__)


class TrainingReceiver(Protocol):
    """The service as the watch sees it."""

    def send_training(self, batch: TrainingBatch) -> TrainingReceipt:
        """Store a batch; raises ServiceUnreachable, ServiceRefused or AttemptOver."""


class TrainingWatch:
    """Reads and sends until `end`.

    Args:
        service: where findings go.
        reading: the files; from the thread alone, once that has begun.
        progress: what the log says of progress.
        clock: time of day of a state.
        on_note: told, in a sentence, what a user should know.
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
        self._service = service
        self._reading = reading
        self._progress = progress
        self._clock = clock
        self._on_note = on_note
        self._store = store or FindingStore()
        self._sent_progress: TrainingProgress | None = None
        self._next_state_s = 0.0
        self._changed = threading.Condition()
        self._is_last = False  # the program has ended: one more look, and all of it is sent
        self._is_hurried = False
        self._is_ending = False
        self._has_ended = False
        self._has_told = False  # that something is left out
        self._thread = threading.Thread(target=self._run, name="training-watch", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def finish(self) -> None:
        """Look once more, now that the program is gone, send what there is and end; returns at once."""
        with self._changed:
            self._is_last = self._is_hurried = True
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait until `finish` has come to its end; return whether it has."""
        if self._thread.ident is None:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: self._has_ended, max(0.0, timeout_s))

    def end(self) -> None:
        """Read and send no more; returns at once."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; return whether it did. A call that hangs has to be broken off first."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._watch()
        except Exception:  # boundary: what is told about a training must not end it
            logger.exception("values of the training are not read any more")
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    def _watch(self) -> None:
        next_look_s = next_send_s = time.monotonic()
        has_seen_all = False  # that the program, which has ended, has written
        while not self._is_ending:
            is_last, pause_s = self._is_last, LOOK_S
            if (is_last and not has_seen_all) or time.monotonic() >= next_look_s:
                used_s = time.thread_time()
                self._look()
                used_s = time.thread_time() - used_s
                next_look_s = time.monotonic() + used_s / MAX_LOAD
                has_seen_all = is_last and not self._reading.is_behind
            if is_last or time.monotonic() >= next_send_s:
                try:
                    self._send()
                    next_send_s = time.monotonic() + SEND_S
                    if has_seen_all:
                        self._store.admit_waiting(now_s=time.monotonic(), is_last=True)  # there is room for all now
                        self._send()
                        return
                    pause_s = 0.0 if is_last else LOOK_S
                except (AttemptOver, _NotKnownError) as error:
                    logger.info("values of the training are not wanted: %s", error)
                    return
                except ServiceUnreachable as error:
                    logger.info("values of the training wait: %s", error)
                    next_send_s = time.monotonic() + AWAY_S
                    pause_s = AWAY_S / 4
            with self._changed:
                self._changed.wait_for(lambda: self._is_ending or self._is_hurried, pause_s)
                self._is_hurried = False

    def _look(self) -> None:
        now_s = time.monotonic()
        for finding in self._reading.look():
            self._store.append(finding, now_s=now_s)
        self._store.admit_waiting(now_s=now_s, is_last=self._is_last and not self._reading.is_behind)
        if now_s >= self._next_state_s or self._is_last:
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

    def _send(self) -> None:
        """Send what there is. Raises: ServiceUnreachable if it has to be sent again, AttemptOver."""
        while True:
            progress = self._new_progress()
            batch = self._store.batch(progress)
            if not batch.findings and progress is None:
                return
            try:
                receipt = self._service.send_training(batch)
            except ServiceRefused as error:
                if error.details.get("status") == HTTPStatus.NOT_FOUND:
                    raise _NotKnownError(str(error)) from error
                # It would be refused again: better to lose these than all that come.
                logger.warning("%d values of the training are given up: %s", len(batch.findings), error)
                self._store.give_up(batch.first + len(batch.findings))
                self._sent_progress = progress or self._sent_progress
                continue
            self._sent_progress = progress or self._sent_progress
            if batch.findings and receipt.next <= batch.first:
                raise ServiceUnreachable(
                    f"values from {batch.first} on were sent, the service wants {receipt.next}", retryable=True
                )
            self._store.let_go(receipt.next)

    def _new_progress(self) -> TrainingProgress | None:
        """Return how far the program is, if the service does not know it yet."""
        current, sent = self._progress.current(), self._sent_progress
        if current is None or (sent is not None and _is_same(current, sent)):
            return None
        return current


class _NotKnownError(Exception):
    """The service has no such request."""


def _is_same(current: TrainingProgress, sent: TrainingProgress) -> bool:
    """Whether nothing has moved, whatever the time of day."""
    return (current.done, current.total, current.epoch, current.source) == (
        sent.done,
        sent.total,
        sent.epoch,
        sent.source,
    )
