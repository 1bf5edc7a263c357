"""Decides which connections may be open at once, and which connection is evicted for a new one.

Where: `connections` and `connect_proxy` call it when a connection arrives, and close the evicted connection. Pure: keys
represent connections.

Half of all places are for this machine's own address. All other addresses, also those of jobs, share the other half, of
which one address gets at most half. So strangers and jobs cannot use up the owner's places. A connection may be evicted
while it serves no known client: it is idle, its request is incomplete, or its client has not read an answer yet. The
connection that has been in this state the longest is evicted first. So a client that sends its request a byte at a time
is evicted for the next client.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

_LOOPBACK = "127.0.0.1"
OWN_ADDRESSES = frozenset({_LOOPBACK, "::1"})  # jobs use other addresses of the loopback network

Key = TypeVar("Key")


def counted_address(peer: object, end: object) -> str:
    """Return the address under which a client's connections are counted, or an empty text if it has no address.

    A client on this machine may connect to an address other than loopback, such as setting `host`. Then both ends have
    that address, and the connection counts as a loopback connection.

    Args:
        peer: address of the client's end, as the socket returns it.
        end: the service's end.
    """
    if not isinstance(peer, tuple):
        return ""
    address = str(peer[0])
    return _LOOPBACK if isinstance(end, tuple) and address == end[0] else address.removeprefix("::ffff:")


@dataclass(frozen=True)
class Arrival(Generic[Key]):
    """Decision on a new connection."""

    is_accepted: bool
    evicted: Key | None = None  # the caller must close it; it is no longer in the table
    reason: str = ""  # why the connection is refused, or why another connection is evicted


class ConnectionTable(Generic[Key]):
    """Counts connections by address.

    Args:
        most: largest number of connections at once, at least 4.
    """

    def __init__(self, most: int) -> None:
        self._most_own = most - most // 2
        self._most_others = most // 2
        self._most_of_one = max(1, most // 4)
        self._peers: dict[Key, str] = {}
        self._counts: Counter[str] = Counter()
        self._num_others = 0
        self._yielding: dict[str, OrderedDict[Key, None]] = {}  # address -> evictable connections, the oldest first

    def __len__(self) -> int:
        return len(self._peers)

    def arrive(self, key: Key, peer: str) -> Arrival[Key]:
        """Accept a connection from an address if there is a free place or a connection to evict."""
        evicted, reason = None, ""
        limit = self._most_own if peer in OWN_ADDRESSES else self._most_of_one
        if self._counts[peer] >= limit:
            evicted, reason = self._first_yielding(peer), f"{peer} has {limit} connections, the most that it may have"
        elif peer not in OWN_ADDRESSES and self._num_others >= self._most_others:
            greediest = max(self._yielding, key=self._num_yielding_of_others, default=peer)
            evicted = self._first_yielding(greediest) if greediest not in OWN_ADDRESSES else None
            reason = f"other addresses than this machine's have {self._most_others} connections, the most in all"
        if reason and evicted is None:
            return Arrival(is_accepted=False, reason=reason)
        if evicted is not None:
            self.leave(evicted)
        self._peers[key] = peer
        self._counts[peer] += 1
        self._num_others += peer not in OWN_ADDRESSES
        self.unsettle(key)
        return Arrival(is_accepted=True, evicted=evicted, reason=reason)

    def settle(self, key: Key) -> None:
        """Record that a connection serves a known client, so that it is not evicted."""
        peer = self._peers.get(key)
        if peer is not None and peer in self._yielding:
            self._yielding[peer].pop(key, None)
            if not self._yielding[peer]:
                del self._yielding[peer]

    def unsettle(self, key: Key) -> None:
        """Record that a connection serves no known client from now on, so that it may be evicted."""
        peer = self._peers.get(key)
        if peer is not None:
            waiting = self._yielding.setdefault(peer, OrderedDict())
            waiting[key] = None
            waiting.move_to_end(key)

    def leave(self, key: Key) -> None:
        """Remove a connection, if it is in the table."""
        self.settle(key)
        peer = self._peers.pop(key, None)
        if peer is None:
            return
        self._num_others -= peer not in OWN_ADDRESSES
        self._counts[peer] -= 1
        if not self._counts[peer]:
            del self._counts[peer]

    def _first_yielding(self, peer: str) -> Key | None:
        waiting = self._yielding.get(peer)
        return next(iter(waiting)) if waiting else None

    def _num_yielding_of_others(self, peer: str) -> int:
        return -1 if peer in OWN_ADDRESSES else len(self._yielding[peer])
