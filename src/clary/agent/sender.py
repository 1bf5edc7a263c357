"""Delivery of numbered items to the service: a batch is sent until the service names the item that it wants next.

Where: `metrics.shipper`, `training.training_watch` and `log.log_shipper` are senders, each with the policy of its
items; dumps and profiles, one message each, go by `send_until_taken`.

[Note: what is promised of numbered items]
Items arrive in order, each once: the service skips numbers that it has, and names the number that it wants next, so
that a batch whose answer was lost may be sent again. A service that is unreachable, hangs or was restarted costs only
room in the outbox. Where later items matter more, items that the service refuses or never takes are given up and
counted; elsewhere they are sent until it takes them. Items that a killed agent had not sent are lost, except log
lines, which lie on disk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from clary.agent.service_client import BackOff, ServiceRefused, ServiceUnreachable
from clary.agent.worker import Worker
from clary.base.errors import AgentError

MOST_VAIN = 3  # answers without progress, after which a batch is given up
_VAIN_LOOK_S = 0.2

logger = logging.getLogger(__name__)


class NotWanted(AgentError):
    """Raised when the service is of an older release and has no such request."""


@dataclass(frozen=True)
class Parcel:
    """A batch that is ready to be sent.

    Attributes:
        first: number of its first item.
        end: number behind its last; `first` if none of its items has a number.
        send: sends the batch; returns the number of the item that the service wants next. Raises: ServiceUnreachable,
            ServiceRefused, AttemptOver.
    """

    first: int
    end: int
    send: Callable[[], int]


class Source(Protocol):
    """The store that batches come from: an `Outbox`, or the log's spool."""

    @property
    def first(self) -> int:
        """Number of the first item that the service has not acknowledged."""

    def acknowledge(self, end: int) -> None:
        """Take note that the service has the items below a number."""


class Sender(Worker):
    """Sends one parcel after the other from a thread of its own; base class.

    Args:
        name: of the thread.
        failure: as for `Worker`.
        what: the items, in words.
        source: holds them.
        give_up: drops items below a number that the service refuses or never takes; None: they are sent for ever.
        back_off: gives the pauses between tries.
        first_pause_s: as for `Worker`.
    """

    def __init__(
        self,
        name: str,
        *,
        failure: str,
        what: str,
        source: Source,
        give_up: Callable[[int], None] | None,
        back_off: BackOff,
        first_pause_s: float = 0.0,
    ) -> None:
        super().__init__(name, failure=failure, first_pause_s=first_pause_s)
        self._what = what
        self._source = source
        self._give_up = give_up
        self._back_off = back_off
        self._is_waiting = False  # whether the last try has failed
        self._is_away = False  # whether the last try did not reach the service
        self._has_refused = False
        self._num_vain = 0
        self._moved_at_s = 0.0  # last time that the service accepted new items

    def wait_sent(
        self,
        end: int,
        timeout_s: float,
        *,
        outlasts_outages: bool = False,
        is_vain: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Wait until items below a number are acknowledged or given up; return whether they are.

        Args:
            end: the number.
            timeout_s: longest wait.
            outlasts_outages: whether `timeout_s` counts only time without progress while the service answers: time in
                which it cannot be reached does not count.
            is_vain: asked several times a second whether to stop waiting.
        """
        self._moved_at_s = began_s = time.monotonic()
        with self._changed:
            while self._source.first < end and not self.has_ended and not is_vain():
                now_s = time.monotonic()
                if self._is_away:
                    self._moved_at_s = now_s
                left_s = (self._moved_at_s if outlasts_outages else began_s) + timeout_s - now_s
                if left_s <= 0:
                    break
                self._changed.wait(min(left_s, _VAIN_LOOK_S))
            return self._source.first >= end

    def _parcel(self) -> Parcel | None:
        """Return the next batch, None if nothing waits."""
        raise NotImplementedError

    def _send_all(self) -> float:
        """Send every batch; return 0, or the seconds after which to try again. Raises: AttemptOver, NotWanted."""
        while not self.is_aborted and (parcel := self._parcel()) is not None:
            if pause_s := self._deliver(parcel):
                return pause_s
        return 0.0

    def _deliver(self, parcel: Parcel) -> float:
        """Send one batch; return 0, or the seconds after which to try again. Raises: AttemptOver, NotWanted."""
        try:
            wanted = parcel.send()
        except ServiceRefused as error:
            if self._give_up is None:
                return self._try_again(error)
            if error.details.get("status") == HTTPStatus.NOT_FOUND:
                raise NotWanted(error.message) from error
            # It would be refused again: losing these items is better than losing all later ones.
            if not self._has_refused:  # logged once: later items would be refused for the same reason
                logger.warning("%s %d to %d are given up: %s", self._what, parcel.first, parcel.end - 1, error)
            self._has_refused = True
            self._give_up(parcel.end)
            self._note_moved()
            return 0.0
        except ServiceUnreachable as error:
            return self._try_again(error)
        if self._is_waiting:
            logger.info("the service takes %s again", self._what)
        self._is_waiting = self._is_away = False
        self._source.acknowledge(wanted)
        if wanted > parcel.first or parcel.first == parcel.end:
            self._back_off.reset()
            self._num_vain = 0
            self._note_moved()
            return 0.0
        # The service wants items that were acknowledged or dropped; it accepts a gap that a later batch explains.
        self._num_vain += 1
        if self._give_up is not None and self._num_vain >= MOST_VAIN:
            self._num_vain = 0
            self._give_up(parcel.end)
            self._note_moved()
        words = f"{parcel.first} to {parcel.end - 1} were sent, the service wants {wanted}"
        return self._try_again(ServiceUnreachable(words, retryable=True, details={"status": HTTPStatus.OK}))

    def _try_again(self, error: AgentError) -> float:
        if not self._is_waiting:
            logger.warning("%s wait: %s", self._what, error)
        self._is_waiting = True
        self._is_away = "status" not in error.details
        return self._back_off.next_s()

    def _note_moved(self) -> None:
        with self._changed:
            self._moved_at_s = time.monotonic()
            self._changed.notify_all()


def send_until_taken(
    send: Callable[[], None], *, limit_s: float, ending: threading.Event, lock: threading.Lock
) -> bool:
    """Send one message, with retries while the service is unreachable; return whether the service has it.

    Args:
        send: sends the message. Raises: ServiceUnreachable, ServiceRefused, AttemptOver; the last two pass.
        limit_s: after which no further try begins.
        ending: event that ends the sending.
        lock: held while `send` runs.
    """
    end_s, back_off = time.monotonic() + limit_s, BackOff()
    while not ending.is_set() and time.monotonic() < end_s:
        try:
            with lock:
                send()
            return True
        except ServiceUnreachable as error:
            logger.info("a message is not delivered yet: %s", error)
            ending.wait(back_off.next_s())
    return False
