"""Check, within a few milliseconds, that the job's ports on other hosts answer.

Where: `network_program` calls it before the imports of the other measurements: a host's program waits only for this
check. A refusal counts as an answer of the peer's kernel, so no program needs to run there. `link_probe` probes silent
ports again once the peer answers.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Mapping, Sequence

from clary.agent.health import interfaces

_COPIES = 2  # connections per port: the kernel resends a lost packet only after a second
_WAIT_S = 0.2  # in addition to the longest planned round trip
_ANSWERS = (0, errno.ECONNREFUSED)


def unanswered_ports(
    peers: Mapping[str, str], ports: Sequence[int], *, interface: str, address: str, round_trip_s: float
) -> dict[str, list[int]]:
    """Connect to all ports of all peers at once; return peer -> ports without an answer in time.

    Args:
        peers: name -> address.
        ports: to connect to; all connections are closed before the return.
        interface: the interface to connect through.
        address: of this host.
        round_trip_s: the longest planned round trip of all links.
    """
    missing = {(name, port) for name in peers for port in ports}
    asked: dict[int, tuple[socket.socket, tuple[str, int]]] = {}
    num_open = 0  # pending connections
    poll = select.poll()
    try:
        for name, port in [key for key in sorted(missing) for _ in range(_COPIES)]:
            try:
                stream = interfaces.stream_through(interface, address)
            except OSError:  # no such interface, or too many sockets: probed again and reported later
                break
            asked[stream.fileno()] = stream, (name, port)
            outcome = stream.connect_ex((peers[name], port))
            if outcome in _ANSWERS:
                missing.discard((name, port))
            elif outcome == errno.EINPROGRESS:  # any other error: there is no route to the peer
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
