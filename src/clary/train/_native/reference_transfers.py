"""Send and receive of the reference core: the matching of messages and calls.

Where: `reference_exchange` holds one book per core and guards it with its lock; this module never waits, locks, or does
input or output.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from clary.train._native.interface import ANY_RANK, Code

EAGER_BYTES = 1 << 16  # a send of at most this size ends once it is queued, a larger send once it is received


@dataclass(frozen=True)
class Send:
    """A message that its receiver has not acknowledged."""

    ticket: int
    peer: int
    tag: int
    num_bytes: int
    deadline_s: float  # time.monotonic


@dataclass(frozen=True)
class Receive:
    """A `receive` that this rank has called."""

    ticket: int
    peer: int  # or ANY_RANK
    tag: int
    address: int
    num_bytes: int
    deadline_s: float


@dataclass(frozen=True)
class Arrival:
    """A received message."""

    peer: int
    tag: int
    sender_ticket: int
    payload: bytes


@dataclass(frozen=True)
class Match:
    """A message and the `receive` that it matches. `problem` is "" if the bytes were copied."""

    arrival: Arrival
    ticket: int
    problem: str


class TransferBook:
    """Open sends, receives and messages, each in order of arrival."""

    def __init__(self) -> None:
        self.sends: dict[int, Send] = {}
        self.receives: list[Receive] = []
        self._arrivals: list[Arrival] = []

    def receive(self, call: Receive) -> Match | None:
        """Enter a `receive`; return its match, or None."""
        for arrival in self._arrivals:
            if _fits(arrival, call):
                self._arrivals.remove(arrival)
                return _meet(arrival, call)
        self.receives.append(call)
        return None

    def arrive(self, arrival: Arrival) -> Match | None:
        """Enter a message; return its match, or None."""
        for call in self.receives:
            if _fits(arrival, call):
                self.receives.remove(call)
                return _meet(arrival, call)
        self._arrivals.append(arrival)
        return None

    def next_deadline_s(self) -> float | None:
        """Return the next deadline (time.monotonic), None if no transfer is open."""
        deadlines = [send.deadline_s for send in self.sends.values()] + [call.deadline_s for call in self.receives]
        return min(deadlines, default=None)

    def overdue(self, now_s: float, describe: Callable[[int], str]) -> tuple[Code, int, str] | None:
        """Return code, culprit and text of the first transfer whose deadline has passed."""
        for send in self.sends.values():
            if send.deadline_s <= now_s:
                words = f"send of {send.num_bytes} bytes with tag {send.tag} was not received by {describe(send.peer)}"
                return Code.TIMEOUT, send.peer, f"{words} within its limit"
        for call in self.receives:
            if call.deadline_s <= now_s:
                source = "any rank" if call.peer == ANY_RANK else describe(call.peer)
                words = f"receive of {call.num_bytes} bytes with tag {call.tag} got nothing from {source}"
                return Code.TIMEOUT, call.peer, f"{words} within its limit"
        return None


def _fits(arrival: Arrival, call: Receive) -> bool:
    return arrival.tag == call.tag and call.peer in (arrival.peer, ANY_RANK)


def _meet(arrival: Arrival, call: Receive) -> Match:
    problem = ""
    if len(arrival.payload) != call.num_bytes:
        problem = (
            f"rank {arrival.peer} sent {len(arrival.payload)} bytes with tag {arrival.tag}, the receive is for "
            f"{call.num_bytes} bytes: make both sides equal"
        )
    else:
        ctypes.memmove(call.address, arrival.payload, call.num_bytes)
    return Match(arrival, call.ticket, problem)
