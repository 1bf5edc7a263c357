"""The thread that carries rows to the service.

Where: `metrics.host_metrics` starts it beside `sampling`. A batch is sent until the service has it; a service that
is away, or that hangs, costs rows only when the store is full. One of an older release, which knows no rows, ends it.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from clary.agent.metrics.row_store import RowStore
from clary.agent.service_client import AttemptOver, BackOff, ServiceRefused, ServiceUnreachable
from clary.contract.metric_samples import SampleBatch, SampleReceipt

INTERVAL_S = 5.0
_MAX_PAUSE_S = 5.0  # between tries while the service is away
_MOST_VAIN = 3  # answers without progress, after which a batch is given up

logger = logging.getLogger(__name__)


class SampleReceiver(Protocol):
    """The service as the shipper sees it."""

    def send_samples(self, batch: SampleBatch) -> SampleReceipt:
        """Store a batch; raises ServiceUnreachable, ServiceRefused or AttemptOver."""


class SampleShipper:
    """Sends rows in order until `end`.

    Args:
        service: where rows go.
        store: where they come from.
        on_unwanted: told when there is no use in measuring any more; from the shipper's thread.
        interval_s: from one batch to the next.
    """

    def __init__(
        self,
        service: SampleReceiver,
        *,
        store: RowStore,
        on_unwanted: Callable[[], None],
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._service = service
        self._store = store
        self._on_unwanted = on_unwanted
        self._interval_s = interval_s
        self._back_off = BackOff(first_s=0.2, cap_s=_MAX_PAUSE_S)
        self._changed = threading.Condition()
        self._is_hurried = False  # somebody waits for what there is
        self._is_ending = False
        self._has_ended = False
        self._is_away = False  # whether the last try found no service
        self._has_refused = False
        self._num_vain = 0
        self._thread = threading.Thread(target=self._run, name="metrics-shipper", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def hurry(self) -> int:
        """Have all rows of now sent at once; returns the number that `wait` wants."""
        end = self._store.next_row
        with self._changed:
            self._is_hurried = True
            self._changed.notify_all()
        return end

    def wait(self, end_row: int, timeout_s: float) -> bool:
        """Wait until rows below a number are sent or given up; return whether they are."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._has_ended or self._store.first_row >= end_row, max(0.0, timeout_s)
            )

    def end(self) -> None:
        """Send no more; returns at once."""
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
            self._ship()
        except Exception:  # boundary: metrics must not end what they measure
            logger.exception("metrics are not sent any more")
            self._on_unwanted()
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    def _ship(self) -> None:
        # Hosts of a job begin together and need not post together.
        pause_s = self._interval_s * random.uniform(0.2, 1.0)
        while self._pause(pause_s):
            try:
                while (batch := self._store.batch()) is not None:
                    self._deliver(batch)
                pause_s = self._interval_s
            except AttemptOver:
                self._on_unwanted()
                return
            except _NotKnownError:
                logger.info("the service takes no metrics of hosts: nothing is measured")
                self._on_unwanted()
                return
            except ServiceUnreachable as error:
                if not self._is_away:
                    logger.warning("metrics wait: %s", error)
                self._is_away = True
                pause_s = self._back_off.next_s()
            with self._changed:
                self._changed.notify_all()

    def _pause(self, seconds: float) -> bool:
        """Wait, or less if somebody is in a hurry; false when it is time to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_ending or self._is_hurried, seconds)
            self._is_hurried = False
            return not self._is_ending

    def _deliver(self, batch: SampleBatch) -> None:
        """Send one batch; raises ServiceUnreachable if it has to be sent again."""
        end_row = batch.first_row + len(batch.at_ms)
        try:
            receipt = self._service.send_samples(batch)
        except ServiceRefused as error:
            if error.details.get("status") == HTTPStatus.NOT_FOUND:
                raise _NotKnownError from error
            # It would be refused again: better to lose these rows than all that come.
            if not self._has_refused:  # said once: the next would be refused for the same reason
                logger.warning("rows %d to %d of the metrics are given up: %s", batch.first_row, end_row - 1, error)
            self._has_refused = True
            self._store.give_up(end_row)
            return
        if self._is_away:
            logger.info("the service takes metrics again")
        self._is_away = False
        if receipt.next_row > batch.first_row:
            self._back_off.reset()
            self._num_vain = 0
            self._store.let_go(receipt.next_row)
            return
        # It wants rows that are gone. It takes a gap as soon as `num_dropped` explains it.
        self._num_vain += 1
        if self._num_vain >= _MOST_VAIN:
            self._num_vain = 0
            self._store.give_up(end_row)
        raise ServiceUnreachable(
            f"rows {batch.first_row} to {end_row - 1} were sent, the service wants row {receipt.next_row}",
            retryable=True,
        )


class _NotKnownError(Exception):
    """The service has no such request."""
