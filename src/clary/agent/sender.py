"""Delivery of numbered items to the service, with retries; each answer has the number of the next wanted item.

Where: `metrics.shipper`, `training.training_watch` and `log.log_shipper` are senders, each with a policy for its items;
dumps and profiles, one message each, are sent by `send_until_taken`.

[Note: guarantees for numbered items]
Items are stored in order, each once: the service skips numbers that it has, and returns the number that it wants next,
so that a batch may be sent again after a lost answer. While the service is unreachable, hangs or restarts, items wait
in the outbox. Senders whose later items matter more than earlier ones (those with `give_up`) drop and count items that
the service refuses or never accepts; all other senders repeat items until the service accepts them. Items that a killed
agent had not sent are lost, except log lines, which are on disk.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from clary.agent.service_client import BackOff, ServiceRefused, ServiceUnreachable
from clary.agent.worker import Worker
from clary.base.errors import AgentError

MOST_VAIN = 3  # answers without progress after which a batch is dropped
_VAIN_LOOK_S = 0.2

logger = logging.getLogger(__name__)


class NotWanted(AgentError):
    """The service is an older release that does not know this request."""


@dataclass(frozen=True)
class Parcel:
    """A batch that is ready to be sent.

    Attributes:
        first: number of its first item.
        end: number after its last item; equals `first` if the batch has no numbered item.
        send: sends the batch; returns the number of the item that the service wants next. Raises: ServiceUnreachable,
            ServiceRefused, AttemptOver.
    """

    first: int
    end: int
    send: Callable[[], int]


class Source(Protocol):
    """The source of batches: an `Outbox`, or the log's spool."""

    @property
    def first(self) -> int:
        """Number of the first item that the service has not acknowledged."""

    def acknowledge(self, end: int) -> None:
        """Record that the service has the items below a number."""


class Sender(Worker):
    """Base class: sends one parcel after the other from a thread of its own.

    Args:
        name: of the thread.
        failure: as for `Worker`.
        what: a noun for the items in messages.
        source: has the items.
        give_up: drops items below a number, if the service refuses or never accepts them; None: they are sent for ever.
        back_off: returns the pauses between tries.
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
        self._moved_at_s = 0.0  # time of the last progress

    def wait_sent(
        self,
        end: int,
        timeout_s: float,
        *,
        outlasts_outages: bool = False,
        most_s: float = math.inf,
        is_vain: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Wait until items below a number are acknowledged or dropped; return whether they are.

        Args:
            end: the number.
            timeout_s: longest wait.
            outlasts_outages: if true, `timeout_s` limits the time without progress instead of the whole wait, and time
                in which the service is unreachable does not count.
            most_s: longest wait, whatever the progress; time in which the service is unreachable does not count.
            is_vain: called several times per second; True ends the wait.
        """
        self._moved_at_s = began_s = looked_s = time.monotonic()
        with self._changed:
            while self._source.first < end and not self.has_ended and not is_vain():
                now_s = time.monotonic()
                if self._is_away:
                    self._moved_at_s = now_s
                    most_s += now_s - looked_s
                looked_s = now_s
                left_s = (self._moved_at_s if outlasts_outages else began_s) + timeout_s - now_s
                left_s = min(left_s, began_s + most_s - now_s)
                if left_s <= 0:
                    break
                self._changed.wait(min(left_s, _VAIN_LOOK_S))
            return self._source.first >= end

    def _parcel(self) -> Parcel | None:
        """Return the next batch; None if no item waits."""
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
            # It would be refused again: the loss of these items is better than the loss of all later items.
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
        # The service asks for items that this sender no longer has, because they were acknowledged or dropped. It
        # accepts such a gap once a later batch reports it, so try again.
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
        send: sends the message. Raises: ServiceUnreachable, ServiceRefused, AttemptOver; the last two propagate.
        limit_s: time after which no further try begins.
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
