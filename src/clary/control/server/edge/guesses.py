"""Slows down guessing: answers to wrong tokens are delayed, and a right token is always accepted.

Where: `sign_in` and `clary_handler` call this only for wrong tokens. Pure but for the clock.
Each further refusal to an address that has sent many wrong tokens is delayed longer, up to a limit. Its next tokens are
still checked: a job may guess from the same address as the owner, whose token must still be accepted.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass

from clary.base.clock import Clock
from clary.base.errors import WireError

MAX_WRONG = 10  # number of wrong tokens of one address within WRONG_S that are answered at once
WRONG_S = 60.0
MAX_ADDRESSES = 1000  # remembered addresses; the address whose last wrong token is the oldest is dropped first
FIRST_DELAY_S = 0.05
MAX_DELAY_S = 1.0


@dataclass(frozen=True)
class WrongGuess:
    """The answer to one wrong token."""

    delay_s: float  # seconds before the answer is sent
    retry_after_s: float  # if 0, an ordinary refusal; else the answer is 429 with this value


class GuessLimiter:
    """Counts wrong tokens by address."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()
        self._excess: dict[str, int] = {}

    def note_wrong(self, address: str) -> WrongGuess:
        """Count a wrong token and return how to answer it."""
        now_s = self._clock.monotonic()
        moments = self._wrong.setdefault(address, deque(maxlen=MAX_WRONG))
        self._wrong.move_to_end(address)
        while len(self._wrong) > MAX_ADDRESSES:
            forgotten, _ = self._wrong.popitem(last=False)
            self._excess.pop(forgotten, None)
        is_over = len(moments) == MAX_WRONG and now_s - moments[0] < WRONG_S
        retry_after_s = moments[0] + WRONG_S - now_s if is_over else 0.0
        moments.append(now_s)
        if not is_over:
            self._excess.pop(address, None)
            return WrongGuess(delay_s=0.0, retry_after_s=0.0)
        excess = self._excess[address] = self._excess.get(address, 0) + 1
        delay_s = min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(excess, 10))
        return WrongGuess(delay_s=delay_s, retry_after_s=retry_after_s)


def too_many_guesses(address: str, wrong: WrongGuess) -> WireError:
    """Return the error for a wrong token after many other wrong tokens."""
    message = f"too many wrong tokens from {address}: try again in {math.ceil(wrong.retry_after_s)} s"
    return WireError("TooManyRequests", message, http_status=429)
