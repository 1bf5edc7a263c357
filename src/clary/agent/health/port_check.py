"""Whether anything comes back from the job's own ports of other hosts, found out within a few milliseconds.

Where: `network_program` asks before it imports what the other measurements need: a host's program waits for this alone.
A refusal is an answer, and comes from the peer's kernel: nothing needs to run there. What says nothing here is asked
again by `link_probe`, once the peer is met.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Mapping, Sequence

from clary.agent.health import interfaces

_COPIES = 2  # of each question: on a lossy link one is lost now and then, and the kernel repeats it after a second
_WAIT_S = 0.2  # beyond the longest planned round trip
_ANSWERS = (0, errno.ECONNREFUSED)


def unanswered_ports(
    peers: Mapping[str, str], ports: Sequence[int], *, interface: str, address: str, round_trip_s: float
) -> dict[str, list[int]]:
    """Ask all peers at all ports at once; return the ports that said nothing in time, by peer; empty if all answered.

    Args:
        peers: addresses by name.
        ports: to connect to; no connection outlasts the call.
        interface: through which to ask.
        address: of this host.
        round_trip_s: the longest that is planned for any of the links.
    """
    missing = {(name, port) for name in peers for port in ports}
    asked: dict[int, tuple[socket.socket, tuple[str, int]]] = {}
    num_open = 0  # of these, how many may still get an answer
    poll = select.poll()
    try:
        for name, port in [key for key in sorted(missing) for _ in range(_COPIES)]:
            try:
                stream = interfaces.stream_through(interface, address)
            except OSError:  # no such interface, or too many sockets: asked again later, and told then
                break
            asked[stream.fileno()] = stream, (name, port)
            outcome = stream.connect_ex((peers[name], port))
            if outcome in _ANSWERS:
                missing.discard((name, port))
            elif outcome == errno.EINPROGRESS:  # else there is no way to the peer
                poll.register(stream, select.POLLOUT)
                num_open += 1
        end_s = time.monotonic() + _WAIT_S + round_trip_s
        while missing and num_open and (left_s := end_s - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(left_s * 1000):
                poll.unregister(descriptor)
                num_open -= 1
                stream, key = asked[descriptor]
                if stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _ANSWERS:
                    missing.discard(key)
    finally:
        for stream, _ in asked.values():
            stream.close()
    by_peer: dict[str, list[int]] = {}
    for name, port in sorted(missing):
        by_peer.setdefault(name, []).append(port)
    return by_peer
