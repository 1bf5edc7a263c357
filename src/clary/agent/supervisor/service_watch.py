"""The two threads that keep in touch with the service: reports upwards, orders downwards.

Where: started by the supervisor; both threads only pass the service's answers on to the supervisor.
They survive an unreachable service: the program runs on, and the newest facts are reported when the service is back.
The host is given up when the service is unreachable for `ORPHAN_TIMEOUT_S`, or reports that the attempt has ended.
It is also given up when the service has refused this agent's token for `DISOWNED_TIMEOUT_S`: the job was deleted, and
another job has its name and attempt now, with a token of its own. The service cannot tell this agent from a stranger.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from clary.agent.fact_board import FactBoard
from clary.agent.service_client import (
    REQUEST_TIMEOUT_S,
    AttemptOver,
    BackOff,
    ServiceRefused,
    ServiceUnreachable,
)
from clary.agent.worker import Worker
from clary.contract.agent_protocol import HEARTBEAT_INTERVAL_S, ORDER_WAIT_S, Order, Report, ReportReceipt

ORPHAN_TIMEOUT_S = 24 * 3600.0
DISOWNED_TIMEOUT_S = 300.0  # of nothing but refusals of the token; any other outcome begins the time anew
_FORBIDDEN = 403
# The service gives a host up after three heartbeats of silence: the wait for a lost answer must be shorter. Only the
# first wait is short: a service that does not answer then is slow, and repeated requests do not help.
FIRST_SILENCE_S = 1.5 * HEARTBEAT_INTERVAL_S

logger = logging.getLogger(__name__)


class Talk(Protocol):
    """The service as the two threads see it."""

    def report(self, report: Report, *, timeout_s: float = ...) -> ReportReceipt:
        """Send the facts, and wait at most `timeout_s` for each part of the answer."""

    def next_order(self, after: int, *, wait_s: float) -> Order | None:
        """Wait for an order newer than number `after`."""

    def wake_orders(self) -> None:
        """Break off the wait for an order."""


class Heartbeat(Worker):
    """Reports the facts at each urgent change, such as a new phase, and each `interval_s` in between.

    Args:
        service: receives the reports.
        board: holds the facts.
        on_over: called with the reason when the attempt has ended, or the service was unreachable or refused the token
            for too long.
        on_receipt: called with each receipt; receipts repeat the service's requests until they are met.
        on_away: called once when the service stops taking reports, and once when it takes them again.
    """

    def __init__(
        self,
        service: Talk,
        *,
        board: FactBoard,
        on_over: Callable[[str], None],
        on_receipt: Callable[[ReportReceipt], None],
        on_away: Callable[[bool], None] = lambda is_away: None,
        interval_s: float = HEARTBEAT_INTERVAL_S,
        orphan_timeout_s: float = ORPHAN_TIMEOUT_S,
        disowned_timeout_s: float = DISOWNED_TIMEOUT_S,
    ) -> None:
        super().__init__("heartbeat", failure="nothing is reported any more")
        self._service = service
        self._board = board
        self._on_over = on_over
        self._on_receipt = on_receipt
        self._on_away = on_away
        self._interval_s = interval_s
        self._orphan_timeout_s = orphan_timeout_s
        self._disowned_timeout_s = disowned_timeout_s
        self._disowned_at_s: float | None = None  # since when every answer refuses the token
        self._heard_at_s = time.monotonic()
        self._is_away = False
        self._back_off = BackOff(cap_s=interval_s)

    def abort(self) -> None:
        """Stop reporting; return at once."""
        super().abort()
        self._board.close()

    def _on_end(self) -> None:
        self._board.close()  # no report is sent from here on, so threads that wait for one are woken

    def _round(self) -> float | None:
        try:
            receipt = self._tell(timeout_s=REQUEST_TIMEOUT_S if self._is_away else FIRST_SILENCE_S)
            self._note_answer()
        except AttemptOver as error:
            self._on_over(error.message)
            return None
        except (ServiceUnreachable, ServiceRefused) as error:
            self._note_refusal(error)
            if not self._is_away:
                logger.warning("the service does not take reports: %s", error)
                self._is_away = True
                self._on_away(True)
            return self._next_try()
        except Exception:  # boundary: heartbeat loop; without it the host would count as lost
            self._disowned_at_s = None
            logger.exception("a report could not be made")
            return self._next_try()
        try:
            self._on_receipt(receipt)
        except Exception:  # boundary: as above; the service has the report, and its next receipt repeats the request
            logger.exception("a receipt of the service could not be followed")
        self._board.wait_until_urgent(self._interval_s)
        return 0.0

    def _note_answer(self) -> None:
        away_s, was_away = time.monotonic() - self._heard_at_s, self._is_away
        self._heard_at_s, self._is_away, self._disowned_at_s = time.monotonic(), False, None
        self._back_off.reset()
        if was_away:
            logger.warning("the service is back after %.1f s", away_s)
            self._on_away(False)

    def _note_refusal(self, error: ServiceUnreachable | ServiceRefused) -> None:
        """Note since when the service does nothing but refuse the token."""
        is_token = error.details.get("status") == _FORBIDDEN and not error.details.get("is_misdirected")
        if not isinstance(error, ServiceRefused) or not is_token:
            self._disowned_at_s = None
        elif self._disowned_at_s is None:
            self._disowned_at_s = time.monotonic()

    def _next_try(self) -> float | None:
        """Return the seconds until the next report; None, after `on_over`, if no report was taken for too long."""
        now_s = time.monotonic()
        if self._disowned_at_s is not None and now_s - self._disowned_at_s > self._disowned_timeout_s:
            self._on_over(
                f"the service has refused this agent's token for {now_s - self._disowned_at_s:.0f} s: another job has "
                "its name now"
            )
            return None
        unheard_s = now_s - self._heard_at_s
        if unheard_s > self._orphan_timeout_s:
            self._on_over(f"the service has been away for {unheard_s:.0f} s")
            return None
        return self._back_off.next_s()

    def _tell(self, *, timeout_s: float) -> ReportReceipt:
        report, mark = self._board.next_report()
        receipt = self._service.report(report, timeout_s=timeout_s)
        if not receipt.accepted:
            raise AttemptOver("the service does not accept reports of this attempt any more")
        self._board.told(mark)
        return receipt


class OrderWatch(Worker):
    """Waits for orders and passes each on once, in the order of their numbers.

    Args:
        service: sends the orders.
        on_order: called with each order; never with the same number twice.
        on_over: called with the reason when the attempt has ended.
    """

    def __init__(
        self,
        service: Talk,
        *,
        on_order: Callable[[Order], None],
        on_over: Callable[[str], None],
        wait_s: float = ORDER_WAIT_S,
    ) -> None:
        super().__init__("orders", failure="no order is waited for any more")
        self._service = service
        self._on_order = on_order
        self._on_over = on_over
        self._wait_s = wait_s
        self._last_number = 0
        self._missed_number = 0  # number of the newest order that a receipt named before the order arrived
        self._back_off = BackOff(cap_s=1.0)

    def expect(self, number: int) -> None:
        """Record that order `number` exists; if a second call precedes the order's arrival, request the order again.

        Otherwise a long poll over a dead connection would hide an order until it times out.
        """
        if number > self._last_number and number == self._missed_number:
            self._service.wake_orders()
        self._missed_number = number

    def begin_after(self, number: int) -> None:
        """Wait only for orders after `number`; call it before `start`."""
        self._last_number = number

    def _round(self) -> float | None:
        try:
            order = self._service.next_order(self._last_number, wait_s=self._wait_s)
        except AttemptOver as error:
            self._on_over(error.message)
            return None
        except (ServiceUnreachable, ServiceRefused):
            return self._back_off.next_s()  # the heartbeat logs that the service is unreachable
        except Exception:  # boundary: as the heartbeat loop; an order may still arrive
            logger.exception("the wait for an order failed")
            return self._back_off.next_s()
        self._back_off.reset()
        if order is not None:
            self._last_number = order.number
            self._on_order(order)
        return 0.0
