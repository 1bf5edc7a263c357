"""The machinery of the reference core: one exchange per collective, tickets, send and receive, and failure.

Where: `reference.ReferenceCore` adds the meaning of each collective. Two threads: one moves frames
(`reference_streams`), one runs collectives in the order of their calls. One lock guards all state; except for the copy
that a send makes before it returns, the memory of callers is accessed only under this lock, and never after their
operation has failed.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from clary.train._native.errors import error_of
from clary.train._native.interface import ANY_RANK, Code, GroupConnections, Operation
from clary.train._native.reference_streams import Callbacks, Frame, FrameKind, StreamLoop
from clary.train._native.reference_transfers import EAGER_BYTES, Arrival, Match, Receive, Send, TransferBook

_CLOSE_LIMIT_S = 5.0  # longest time to hand the last frames to the kernel
_POISONED_CLOSE_LIMIT_S = 1.0  # the same in a poisoned group, where peers may have ended or hang


@dataclass(frozen=True)
class _Failure:
    code: Code
    culprit: int
    text: str


@dataclass
class _Ticket:
    number: int
    has_ended: bool = False
    is_watched: bool = False
    failure: _Failure | None = None
    source: int = 0


class Meaning(NamedTuple):
    """Functions that carry out a collective on this rank.

    Args:
        outgoing: returns the bytes to send to a rank.
        expected: returns the number of bytes expected from a rank.
        finish: writes the result from the bytes of every rank, including this rank, in rank order; returns the number
            of reduced bytes.
    """

    outgoing: Callable[[int], bytes]
    expected: Callable[[int], int]
    finish: Callable[[list[bytes]], int]


@dataclass(frozen=True)
class _Call:
    """A collective that this rank has called."""

    ticket: _Ticket
    label: str  # must be equal on all ranks
    meaning: Meaning
    limit_s: float  # seconds from its start


class PeerExchange:
    """All methods of `interface.Core` except `run`, `explain` and short calls; owns `connections`' descriptors."""

    def __init__(self, connections: GroupConnections) -> None:
        self.rank = connections.rank
        self.size = connections.size
        self._connections = connections
        self._changed = threading.Condition(threading.RLock())  # guards all fields below
        self._failure: _Failure | None = None
        self._is_closed = False
        self._numbers = itertools.count(1)
        self._tickets: dict[int, _Ticket] = {}
        self._ended_watched: deque[int] = deque()
        self._inbox: dict[tuple[int, int], Frame] = {}  # (sequence number, peer) -> frame
        self._departed: set[int] = set()
        self._book = TransferBook()
        self._counts = {"operations": 0, "bytes_reduced": 0, "lane_bytes_sent": 0, "lane_bytes_received": 0}
        self._queue: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        if connections.segment_fd >= 0:
            os.close(connections.segment_fd)
        name = f"{connections.name}-{self.rank}"
        callbacks = Callbacks(self._on_frame, self._on_goodbye, self._on_loss, self._before_wait)
        self._streams = StreamLoop(connections.side_fds, connections.lane_fds, callbacks, name=name)
        self._streams.start()
        self._executor = threading.Thread(target=self._execute, name=f"clary-collectives-{name}", daemon=True)
        self._executor.start()

    # Point to point

    def _send(self, message: Operation) -> int:
        self._check_peer(message.root, message.count)
        payload = read_memory(message.source, message.count)
        with self._changed:
            self._check_open()
            self._check_present(message.root)
            ticket = self._new_ticket()
            if message.count <= EAGER_BYTES:
                self._end(ticket)
            else:
                deadline_s = time.monotonic() + self._limit_s(message.timeout_s)
                send = Send(ticket.number, message.root, message.tag, message.count, deadline_s)
                self._book.sends[ticket.number] = send
            self._streams.post(message.root, Frame(FrameKind.MESSAGE, message.tag, ticket.number, payload=payload))
            return ticket.number

    def _receive(self, message: Operation) -> int:
        self._check_peer(message.root, message.count, may_be_any=True)
        with self._changed:
            self._check_open()
            ticket = self._new_ticket()
            deadline_s = time.monotonic() + self._limit_s(message.timeout_s)
            call = Receive(ticket.number, message.root, message.tag, message.target, message.count, deadline_s)
            if match := self._book.receive(call):
                self._settle(match)
            elif message.root != ANY_RANK:
                self._check_present(message.root)
            self._streams.wake()
            return ticket.number

    # Tickets

    def wait(self, ticket: int, limit_s: float | None) -> int | None:
        """Wait until the operation has ended. Return the peer of a receive, else 0; None if `limit_s` passed first.

        Raises: the error of the operation, if it failed.
        """
        with self._changed:
            entry = self._ticket(ticket)
            if not self._changed.wait_for(lambda: entry.has_ended, limit_s):
                return None
            self._tickets.pop(ticket, None)
            if entry.failure is not None:
                raise self._error(entry.failure)
            return entry.source

    def is_done(self, ticket: int) -> bool:
        """Whether the operation has ended, with success or failure."""
        with self._changed:
            return self._ticket(ticket).has_ended

    def watch(self, ticket: int) -> None:
        """Make `next_watched` return this ticket once its operation has ended."""
        with self._changed:
            entry = self._ticket(ticket)
            if entry.has_ended:
                self._ended_watched.append(ticket)
                self._changed.notify_all()
            else:
                entry.is_watched = True

    def next_watched(self, limit_s: float) -> int:
        """Wait for a watched operation to end; return its ticket, 0 if `limit_s` passed, -1 once the core is closed."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._ended_watched) or self._is_closed, max(limit_s, 0.0))
            if self._ended_watched:
                return self._ended_watched.popleft()
            return -1 if self._is_closed else 0

    # Lifetime

    def abort(self, reason: str) -> None:
        """Poison the group on all ranks."""
        self._poison(_Failure(Code.CLOSED, self.rank, f"{self._words()} aborted the group: {reason}"))

    def counters(self) -> dict[str, int]:
        """Count operations, bytes reduced and bytes on lanes since creation."""
        with self._changed:
            return dict(self._counts)

    def close(self) -> None:
        """Leave the group properly; pending operations fail. A second call does nothing."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            is_whole = self._failure is None
            if self._failure is None:
                self._failure = _Failure(Code.CLOSED, -1, f"{self._words()} was closed by this rank; make another")
            self._fail_tickets(self._failure)
        self._queue.put(None)
        self._executor.join()
        self._streams.close(says_goodbye=is_whole, limit_s=_CLOSE_LIMIT_S if is_whole else _POISONED_CLOSE_LIMIT_S)

    # Running collectives

    def _call(self, operation: Operation, label: str, meaning: Meaning) -> int:
        with self._changed:
            self._check_open()
            ticket = self._new_ticket()
            self._queue.put(_Call(ticket, label, meaning, self._limit_s(operation.timeout_s)))
        if operation.asynchronous:
            return ticket.number
        self.wait(ticket.number, None)
        return 0

    def _execute(self) -> None:
        for sequence in itertools.count(1):
            call = self._queue.get()
            if call is None:
                return
            self._run(sequence, call)

    def _run(self, sequence: int, call: _Call) -> None:
        deadline_s = time.monotonic() + call.limit_s
        others = [peer for peer in range(self.size) if peer != self.rank]
        with self._changed:
            if self._failure is not None:
                return
            try:
                own = call.meaning.outgoing(self.rank)
                for peer in others:
                    data = call.meaning.outgoing(peer)
                    frame = Frame(FrameKind.COLLECTIVE, sequence, label=call.label, payload=data)
                    self._counts["lane_bytes_sent"] += self._streams.post(peer, frame)
                failure = self._await_inputs(sequence, call, others, deadline_s)
                if failure is None:
                    frames = {peer: self._inbox.pop((sequence, peer)) for peer in others}
                    failure = self._disagreement(sequence, call, frames)
                if failure is None:
                    inputs = [own if rank == self.rank else frames[rank].payload for rank in range(self.size)]
                    self._counts["bytes_reduced"] += call.meaning.finish(inputs)
                    self._counts["operations"] += 1
                    self._end(call.ticket)
                    return
            except MemoryError:
                words = f"{self._words()}: {call.label}, operation {sequence}: no memory is left"
                failure = _Failure(Code.SYSTEM, self.rank, words)
            self._poison(failure)

    def _await_inputs(self, sequence: int, call: _Call, others: list[int], deadline_s: float) -> _Failure | None:
        """Wait, under the lock, for the inputs of the other ranks; return the failure, or None if all have arrived."""
        while True:
            missing = [peer for peer in others if (sequence, peer) not in self._inbox]
            if self._failure is not None or not missing:
                return self._failure
            words = f"{self._words()}: {call.label}, operation {sequence}"
            if gone := [peer for peer in missing if peer in self._departed]:
                return _Failure(
                    Code.PEER_LOST,
                    gone[0],
                    f"{words}: {self._name_of(gone[0])} has left the group: let all ranks call the same collectives",
                )
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                names = ", ".join(map(self._name_of, missing))
                return _Failure(
                    Code.TIMEOUT,
                    missing[0],
                    f"{words}: timeout after {call.limit_s:g} s of waiting for {names}, which have not called it: "
                    f"check what they do instead, or raise CLARY_COLLECTIVE_TIMEOUT_S",
                )
            self._changed.wait(remaining_s)

    def _disagreement(self, sequence: int, call: _Call, frames: dict[int, Frame]) -> _Failure | None:
        for peer, frame in frames.items():
            expected = call.meaning.expected(peer)
            if frame.label == call.label and len(frame.payload) == expected:
                continue
            theirs = frame.label if frame.label != call.label else f"{frame.label} with {len(frame.payload)} bytes"
            ours = call.label if frame.label != call.label else f"{call.label} with {expected} bytes"
            return _Failure(
                Code.ORDER_MISMATCH,
                peer,
                f"{self._words()}: operation {sequence} is {ours} here and {theirs} on {self._name_of(peer)}: let all "
                f"ranks call the same collectives in the same order",
            )
        return None

    # Called by the stream thread

    def _on_frame(self, peer: int, frame: Frame) -> None:
        with self._changed:
            if frame.kind is FrameKind.COLLECTIVE:
                self._inbox[frame.number, peer] = frame
                if self._connections.lane_fds[peer] >= 0:
                    self._counts["lane_bytes_received"] += len(frame.encode())
                self._changed.notify_all()
            elif frame.kind is FrameKind.MESSAGE:
                if match := self._book.arrive(Arrival(peer, frame.number, frame.second, frame.payload)):
                    self._settle(match)
            elif frame.kind is FrameKind.RECEIPT:
                if self._book.sends.pop(frame.second, None) is not None:
                    problem = _Failure(Code.INVALID, -1, frame.label) if frame.label else None
                    self._end(self._tickets[frame.second], problem)
            elif frame.number in (code.value for code in Code):
                self._poison(_Failure(Code(frame.number), frame.second, frame.label))

    def _on_goodbye(self, peer: int) -> None:
        with self._changed:
            self._departed.add(peer)
            waiting = [send for send in self._book.sends.values() if send.peer == peer]
            if waiting or any(call.peer == peer for call in self._book.receives):
                words = f"{self._words()}: {self._name_of(peer)} has left the group with a transfer under way"
                self._poison(_Failure(Code.PEER_LOST, peer, words))
            self._changed.notify_all()

    def _on_loss(self, peer: int, words: str) -> None:
        text = f"{self._words()}: {self._name_of(peer)} is lost: {words}; its process has ended: look at its log"
        self._poison(_Failure(Code.PEER_LOST, peer, text))

    def _before_wait(self) -> float | None:
        with self._changed:
            if self._failure is not None:
                return None
            overdue = self._book.overdue(time.monotonic(), self._name_of)
            if overdue is not None:
                code, culprit, words = overdue
                self._poison(_Failure(code, culprit, f"{self._words()}: {words}"))
                return None
            deadline_s = self._book.next_deadline_s()
            return None if deadline_s is None else max(0.0, deadline_s - time.monotonic())

    # State

    def _poison(self, failure: _Failure) -> None:
        """Keep the first cause, fail all open operations, and send the cause to the other ranks.

        A cause from another rank is forwarded, since a third rank may see this rank leave before it receives the cause.
        """
        with self._changed:
            if self._failure is not None:
                return
            self._failure = failure
            self._fail_tickets(failure)
            frame = Frame(FrameKind.BAD_NEWS, failure.code, failure.culprit, label=failure.text)
            for peer in range(self.size):
                if peer != self.rank:
                    self._streams.post(peer, frame)

    def _fail_tickets(self, failure: _Failure) -> None:
        for ticket in self._tickets.values():
            self._end(ticket, failure)
        self._book = TransferBook()
        self._changed.notify_all()

    def _settle(self, match: Match) -> None:
        """End a receive, and send the sender a receipt."""
        arrival = match.arrival
        failure = _Failure(Code.INVALID, -1, f"{self._words()}: {match.problem}") if match.problem else None
        self._end(self._tickets[match.ticket], failure, source=arrival.peer)
        receipt = Frame(FrameKind.RECEIPT, arrival.tag, arrival.sender_ticket, label=match.problem)
        self._streams.post(arrival.peer, receipt)

    def _new_ticket(self) -> _Ticket:
        ticket = _Ticket(next(self._numbers))
        self._tickets[ticket.number] = ticket
        return ticket

    def _ticket(self, number: int) -> _Ticket:
        if number not in self._tickets:
            raise ValueError(f"{self._words()}: ticket {number} is unknown: each can be waited for once")
        return self._tickets[number]

    def _end(self, ticket: _Ticket, failure: _Failure | None = None, *, source: int = 0) -> None:
        if ticket.has_ended:
            return
        ticket.has_ended, ticket.failure, ticket.source = True, failure, source
        if ticket.is_watched:
            self._ended_watched.append(ticket.number)
        self._changed.notify_all()

    # Checks and error texts

    def _check_peer(self, peer: int, num_bytes: int, *, may_be_any: bool = False) -> None:
        is_rank = 0 <= peer < self.size and peer != self.rank
        if not is_rank and not (may_be_any and peer == ANY_RANK):
            raise ValueError(f"{self._words()}: peer {peer} is not another rank of a group of {self.size}")
        if num_bytes < 0:
            raise ValueError(f"{self._words()}: {num_bytes} bytes; expected 0 or more")

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._error(self._failure)

    def _check_present(self, peer: int) -> None:
        if peer in self._departed:
            words = f"{self._words()}: {self._name_of(peer)} has left the group"
            self._poison(_Failure(Code.PEER_LOST, peer, words))
            self._check_open()

    def _limit_s(self, timeout_s: float) -> float:
        return timeout_s if timeout_s > 0 else self._connections.timeout_s

    def _error(self, failure: _Failure) -> Exception:
        return error_of(failure.code, failure.culprit, failure.text)

    def _words(self) -> str:
        return f"group {self._connections.name!r}, {self._name_of(self.rank)}"

    def _name_of(self, rank: int) -> str:
        connections = self._connections
        return f"rank {rank} on {connections.host_names[connections.host_of_rank[rank]]}"


def read_memory(address: int, num_bytes: int) -> bytes:
    """Return a copy of memory."""
    return ctypes.string_at(address, num_bytes) if num_bytes else b""
