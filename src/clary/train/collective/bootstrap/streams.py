"""Plain sockets between the ranks of a group, for callers with their own protocol.

Where: the pipeline's module server, whose requests have no fixed order and so cannot be collectives.
"""

from __future__ import annotations

import os
import socket

from clary.train.collective.bootstrap.group import connect_group
from clary.train.collective.bootstrap.store import Store
from clary.train.collective.settings import CollectiveSettings


def connect_streams(
    store: Store, *, rank: int, size: int, group_name: str, settings: CollectiveSettings
) -> dict[int, socket.socket]:
    """Connect this rank with all others; return one authenticated, blocking stream per peer, which the caller closes.

    Args: as `connect_group`.
    Raises: as `connect_group`.
    """
    connections = connect_group(store, rank=rank, size=size, group_name=group_name, settings=settings)
    for descriptor in (connections.segment_fd, *connections.lane_fds):
        if descriptor >= 0:
            os.close(descriptor)
    streams = {peer: socket.socket(fileno=fd) for peer, fd in enumerate(connections.side_fds) if fd >= 0}
    for stream in streams.values():
        stream.setblocking(True)
    return streams
