"""Makes the sockets between this rank and all others: accepts and connects in one loop without threads.

Where: `group.connect_group` runs a `Meeting` once it has the records of all ranks. The higher rank of a pair connects
to the lower rank. `handshake` refuses all other connections (from port scanners, silent programs, ranks of another
job), each within its own time limit and without delaying other handshakes; refusals are counted for the error message
if no group is formed.

Connected side streams are watched meanwhile: a rank that gives up sends the reason there (`words`), and all other ranks
fail at once instead of waiting for their deadline.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from clary.train._native.errors import BootstrapError
from clary.train.collective.bootstrap.conversation import Conversation
from clary.train.collective.bootstrap.deadline import Deadline
from clary.train.collective.bootstrap.handshake import (
    Credentials,
    Guest,
    Refused,
    Role,
    SecretsDiffer,
    introduce,
    receive,
)
from clary.train.collective.bootstrap.listeners import Listeners, dial, is_of_same_user, tune
from clary.train.collective.bootstrap.records import Layout, RankRecord
from clary.train.collective.bootstrap.words import FAREWELL, cause_of, read_farewell

GUEST_LIMIT_S = 10.0  # longest handshake of a guest, from its connection
RETRY_S = 0.05  # seconds between attempts to connect
GONE_LIMIT_S = 5.0  # an address that refuses connections for so long has no process any more
_GUESTS_OVER = 64  # handshakes at a time, in addition to two per rank; a further one closes the oldest
_ACCEPTS_AT_ONCE = 64  # accepted in a row before handshakes run: a flood must not exhaust the descriptors
_MAX_REASONS = 100  # kinds of refusals that are counted separately
_EXHAUSTED = {errno.EMFILE, errno.ENFILE}
_TRANSIENT = {errno.EAGAIN, errno.EINTR, errno.ECONNABORTED, errno.EPROTO}  # transient errors of accept


@dataclass(frozen=True)
class Need:
    """One socket of this rank."""

    peer: int
    role: Role


@dataclass(eq=False)
class _Caller:
    """A socket in handshake: this rank connects it for a `Need`, or a guest has connected to this rank."""

    conversation: Conversation[Guest | None]
    need: Need | None  # None for guests
    source: str  # for messages
    deadline: Deadline

    @property
    def sock(self) -> socket.socket:
        return self.conversation.sock


@dataclass
class _Attempt:
    """A `Need` that this rank connects for, between or during attempts."""

    need: Need
    next_s: float = 0.0  # time.monotonic
    refused_since_s: float | None = None
    num_failures: int = 0
    last_error: str = ""


def needs_of(rank: int, layout: Layout) -> tuple[Need, ...]:
    """Return the sockets of a rank: to every other rank a side stream, to each rank on another host also a lane."""
    needs = []
    for peer, host in enumerate(layout.host_of_rank):
        if peer != rank:
            needs.append(Need(peer, Role.SIDE))
        if host != layout.host_of_rank[rank]:
            needs.append(Need(peer, Role.LANE))
    return tuple(needs)


class Meeting:
    """Makes all sockets of one rank.

    Args:
        credentials: credentials of the group.
        rank: rank of this process.
        records: records of all ranks, by rank.
        listeners: listeners of this rank, which stay open.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        rank: int,
        records: Sequence[RankRecord],
        layout: Layout,
        listeners: Listeners,
        deadline: Deadline,
    ) -> None:
        self.sockets: dict[Need, socket.socket] = {}
        self.refusals: Counter[str] = Counter()
        self._credentials = credentials
        self._rank = rank
        self._records = records
        self._layout = layout
        self._listeners = listeners
        self._deadline = deadline
        self._selector = selectors.DefaultSelector()
        self._expected = frozenset(need for need in needs_of(rank, layout) if need.peer > rank)
        self._attempts = {need: _Attempt(need) for need in needs_of(rank, layout) if need.peer < rank}
        self._connecting: set[Need] = set()
        self._guests: list[_Caller] = []  # oldest first

    def run(self) -> dict[Need, socket.socket]:
        """Return one connected, non-blocking socket per `Need`; the caller closes the sockets.

        Raises: BootstrapError naming the ranks that did not join or were not reachable, and the refusals. Then
            `sockets` has the connected sockets, over which the caller can send the reason to other ranks.
        """
        try:
            for listener in self._listeners.all:
                self._selector.register(listener, selectors.EVENT_READ, listener)
            while self._missing():
                if self._deadline.has_passed:
                    raise self._nobody_came()
                self._begin_attempts()
                for key, _ in self._selector.select(self._pause_s()):
                    self._handle(key.fileobj, key.data)
                self._drop_slow_guests()
        finally:
            for caller in self._callers():
                caller.sock.close()
            self._selector.close()
        return self.sockets

    def _missing(self) -> list[Need]:
        return [need for need in (*self._expected, *self._attempts) if need not in self.sockets]

    def _callers(self) -> list[_Caller]:
        mapped = self._selector.get_map() or {}
        return [key.data for key in mapped.values() if isinstance(key.data, _Caller)]

    def _pause_s(self) -> float:
        """Return the seconds until the next deadline or attempt."""
        now_s = time.monotonic()
        due = [attempt.next_s - now_s for need, attempt in self._attempts.items() if self._is_idle(need)]
        due += [guest.deadline.remaining_s for guest in self._guests[:1]]
        return max(0.0, min((*due, self._deadline.remaining_s)))

    def _is_idle(self, need: Need) -> bool:
        return need not in self.sockets and need not in self._connecting

    def _handle(self, fileobj: object, data: object) -> None:
        if isinstance(data, _Caller):
            self._advance(data)
        elif isinstance(data, Need):
            self._look_at_peer(data)
        else:
            assert isinstance(fileobj, socket.socket), "only listeners are left"
            self._accept(fileobj)

    # Connecting

    def _begin_attempts(self) -> None:
        now_s = time.monotonic()
        for need, attempt in self._attempts.items():
            if self._is_idle(need) and attempt.next_s <= now_s:
                self._connect(attempt)

    def _connect(self, attempt: _Attempt) -> None:
        record = self._records[attempt.need.peer]
        is_local = self._layout.host_of_rank[self._rank] == self._layout.host_of_rank[record.rank]
        try:
            sock = dial(record, is_local=is_local, congestion=self._listeners.congestion)
        except OSError as error:
            self._put_off(attempt, error)
            return
        talk = introduce(self._credentials, Guest(self._rank, attempt.need.role), record.rank)
        self._connecting.add(attempt.need)
        self._begin(_Caller(Conversation(sock, talk), attempt.need, record.in_words, self._deadline))

    def _put_off(self, attempt: _Attempt, error: OSError) -> None:
        """Schedule a retry; raise BootstrapError if no process listens at the address any more."""
        now_s = time.monotonic()
        attempt.next_s = now_s + RETRY_S
        attempt.num_failures += 1
        attempt.last_error = error.strerror or str(error)
        if error.errno != errno.ECONNREFUSED:
            attempt.refused_since_s = None
            return
        if attempt.refused_since_s is None:
            attempt.refused_since_s = now_s
        if now_s - attempt.refused_since_s > GONE_LIMIT_S:
            record = self._records[attempt.need.peer]
            raise BootstrapError(
                f"{self._words_on_group()}: {record.in_words} has refused connections for {GONE_LIMIT_S:g} s, so its "
                f"process has probably ended: look for the first error in its log",
                culprit=record.rank,
            )

    # Accepting

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                sock, place = listener.accept()
            except OSError as error:
                if error.errno in _TRANSIENT:
                    return
                if error.errno in _EXHAUSTED and self._guests:
                    self._drop(self._guests[0])
                    return
                raise BootstrapError(
                    f"{self._words_on_group()}: rank {self._rank} cannot accept connections: {error.strerror}; "
                    f"if descriptors ran out, raise `ulimit -n`",
                    culprit=self._rank,
                ) from error
            sock.setblocking(False)
            source = str(place[0]) if isinstance(place, tuple) else "a process of this host"
            if sock.family == socket.AF_UNIX and not is_of_same_user(sock):
                sock.close()
                self._count_refusal(source, "it runs as another user")
                continue
            tune(sock)
            talk = receive(self._credentials, self._rank, self._is_expected)
            self._begin(_Caller(Conversation(sock, talk), None, source, Deadline(GUEST_LIMIT_S)))

    def _is_expected(self, guest: Guest) -> bool:
        return Need(guest.rank, guest.role) in self._expected

    def _count_refusal(self, source: str, reason: str) -> None:
        words = f"{source} ({reason})"
        self.refusals[words if words in self.refusals or len(self.refusals) < _MAX_REASONS else "others"] += 1

    def _drop_slow_guests(self) -> None:
        limit = _GUESTS_OVER + 2 * len(self._records)
        while self._guests and (self._guests[0].deadline.has_passed or len(self._guests) > limit):
            self._drop(self._guests[0])

    def _drop(self, guest: _Caller) -> None:
        self._leave(guest)
        guest.sock.close()
        self._count_refusal(guest.source, "no complete greeting")

    # Connecting and accepting

    def _begin(self, caller: _Caller) -> None:
        if caller.need is None:
            self._guests.append(caller)
        self._selector.register(caller.sock, selectors.EVENT_WRITE, caller)

    def _advance(self, caller: _Caller) -> None:
        """Continue a handshake until its socket would block; keep or close the socket when it has ended."""
        try:
            has_succeeded = caller.conversation.advance()
        except (Refused, OSError) as problem:
            self._leave(caller)
            caller.sock.close()
            if caller.need is None:
                self._count_refusal(caller.source, str(problem) if isinstance(problem, Refused) else "it hung up")
            elif isinstance(problem, OSError):
                self._put_off(self._attempts[caller.need], problem)
            else:
                raise self._refused_by(caller.need, problem) from problem
            return
        if has_succeeded:
            self._leave(caller)
            self._keep(caller)
        else:
            events = selectors.EVENT_WRITE if caller.conversation.wants_to_write else selectors.EVENT_READ
            self._selector.modify(caller.sock, events, caller)

    def _leave(self, caller: _Caller) -> None:
        self._selector.unregister(caller.sock)
        if caller.need is None:
            self._guests.remove(caller)
        else:
            self._connecting.discard(caller.need)

    def _keep(self, caller: _Caller) -> None:
        """Keep an authenticated socket. It replaces an earlier socket, which the peer must have lost."""
        guest = caller.conversation.result
        need = caller.need or (Need(guest.rank, guest.role) if guest else None)
        assert need is not None, "a handshake without a need has a guest"
        if earlier := self.sockets.pop(need, None):
            with contextlib.suppress(KeyError):
                self._selector.unregister(earlier)
            earlier.close()
        self.sockets[need] = caller.sock
        if need.role is Role.SIDE:
            self._selector.register(caller.sock, selectors.EVENT_READ, need)

    def _look_at_peer(self, need: Need) -> None:
        """Peek at an early message of a side stream. Raises: BootstrapError if its rank gave up or has ended."""
        sock = self.sockets[need]
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        self._selector.unregister(sock)
        if first in (b"", FAREWELL):
            sides = {other.peer: side for other, side in self.sockets.items() if other.role is Role.SIDE}
            peer, words = cause_of(sides, need.peer, read_farewell(sock))
            raise BootstrapError(
                f"{self._words_on_group()}: {self._records[peer].in_words} gave up: {words}", culprit=peer
            )

    # Error texts

    def _words_on_group(self) -> str:
        return f"group {self._credentials.group!r} was not formed after {self._deadline.elapsed_s:.1f} s"

    def _refused_by(self, need: Need, refusal: Refused) -> BootstrapError:
        hint = (
            "do all ranks have the same CLARY_COLLECTIVE_SECRET, and does no rank of an earlier attempt still run?"
            if isinstance(refusal, SecretsDiffer)
            else "has another process taken that address?"
        )
        return BootstrapError(
            f"{self._words_on_group()}: {refusal} ({self._records[need.peer].in_words}): {hint}",
            culprit=need.peer,
            retryable=False,
        )

    def _nobody_came(self) -> BootstrapError:
        missing = self._missing()
        lines = []
        for need in sorted(missing, key=lambda need: (need.peer, need.role)):
            words = f"{self._records[need.peer].in_words}, {need.role.name.lower()} socket"
            attempt = self._attempts.get(need)
            if attempt is None:
                lines.append(f"did not connect to this rank: {words}")
            else:
                reason = f"{attempt.num_failures} failures, last {attempt.last_error}" if attempt.last_error else ""
                lines.append(f"did not answer: {words}" + (f" ({reason})" if reason else ""))
        refused = f" Refused meanwhile: {_listed(self.refusals)}." if self.refusals else ""
        return BootstrapError(
            f"{self._words_on_group()}, the limit being {self._deadline.limit_s:g} s; {'; '.join(lines)}.{refused} "
            f"This is {self._records[self._rank].in_words}. Check that hosts reach each other at these addresses on "
            f"any port (CLARY_COLLECTIVE_INTERFACE chooses the interface), or raise "
            f"CLARY_COLLECTIVE_CONNECT_TIMEOUT_S",
            culprit=min(need.peer for need in missing),
        )


def _listed(counts: Counter[str], most: int = 5) -> str:
    words = [f"{number} x {reason}" for reason, number in counts.most_common(most)]
    rest = sum(counts.values()) - sum(number for _, number in counts.most_common(most))
    return ", ".join([*words, f"{rest} more"] if rest else words)
