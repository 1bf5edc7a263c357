"""`host/network_rtt_ms` and `host/network_resent_percent`: the kernel's counters of a job's own connections.

Where: `host_metrics` creates one after the start of a program on several hosts, if hosts have a network of their own.
Descriptors of ranks' connections are duplicated (`pidfd_getfd`), queried for TCP_INFO and closed at once, so no packet
is sent, and only the job's own traffic is measured.

The round trip is the minimum over all connections, so it describes the nearest other host: acknowledgements may be
delayed on some connections, and a single slow host must not make all other hosts look slow.
Source: pidfd_getfd(2); struct tcp_info in include/uapi/linux/tcp.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from typing import NamedTuple

from clary.agent.metrics.sources import PERCENT, Slowly, Values
from clary.base.processes import live_descendants

INTERVAL_S = 5.0
MAX_CONNECTIONS = 256  # maximum number of connections queried per measurement
_PIDFD_GETFD = 438  # this number is the same on every architecture
_INFO_BYTES = 256
# Offsets in tcp_info: milliseconds, microseconds, counters of segments.
_LAST_SENT, _RTT, _RESENT, _SENT = 44, 68, 100, 136
_MOST_IDLE_MS = 10_000  # if the last segment was sent earlier, the round trip does not show the current state
_US_PER_MS = 1000.0


class Connection(NamedTuple):
    """One connection to another host at one moment."""

    inode: int
    rtt_ms: float | None  # None if no segment was sent recently
    num_resent: int  # segments since the connection was opened
    num_sent: int


class ConnectionSource:
    """Reads the connections of all processes of a host's program.

    Args:
        first_pid: pid of the host's first process on this machine.
    """

    def __init__(self, first_pid: int) -> None:
        self._first_pid = first_pid
        self._slowly = Slowly(INTERVAL_S)
        self._values: Values = {}
        self._last: dict[int, Connection] | None = None
        self._library = ctypes.CDLL(None, use_errno=True)

    def read(self, now_s: float) -> Values:
        """Return the values at a monotonic time; between measurements, the values of the last measurement."""
        if self._slowly.is_due(now_s):
            self._values = self._measured()
        return self._values

    def close(self) -> None:
        """Do nothing, because the source has no open files."""

    def _measured(self) -> Values:
        found: dict[int, Connection] = {}
        for pid in live_descendants(self._first_pid):
            for connection in self._connections_of(pid, MAX_CONNECTIONS - len(found)):
                found[connection.inode] = connection
        values: Values = {}
        rtts_ms = [item.rtt_ms for item in found.values() if item.rtt_ms is not None]
        if rtts_ms:
            values["host/network_rtt_ms"] = min(rtts_ms)
        if self._last is not None:
            both = [(self._last[inode], item) for inode, item in found.items() if inode in self._last]
            num_sent = sum(max(0, now.num_sent - then.num_sent) for then, now in both)
            num_resent = sum(max(0, now.num_resent - then.num_resent) for then, now in both)
            if num_sent:
                values["host/network_resent_percent"] = round(PERCENT * num_resent / num_sent, 3)
        self._last = found
        return values

    def _connections_of(self, pid: int, most: int) -> list[Connection]:
        found: list[Connection] = []
        try:
            process = os.pidfd_open(pid)
        except OSError:
            return found
        try:
            with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
                for entry in entries:
                    if len(found) >= most:
                        break
                    with contextlib.suppress(OSError, ValueError):
                        connection = self._look_at(process, entry)
                        if connection is not None:
                            found.append(connection)
        finally:
            os.close(process)
        return found

    def _look_at(self, process: int, entry: os.DirEntry[str]) -> Connection | None:
        target = os.readlink(entry.path)
        if not target.startswith("socket:["):
            return None
        descriptor = self._library.syscall(_PIDFD_GETFD, process, int(entry.name), 0)
        if descriptor < 0:
            return None
        with socket.socket(fileno=descriptor) as borrowed:
            if borrowed.type != socket.SOCK_STREAM or borrowed.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            if borrowed.getpeername()[0] == borrowed.getsockname()[0]:  # both ends are on this host
                return None
            info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        return connection_of(int(target[len("socket:[") : -1]), info)


def connection_of(inode: int, info: bytes) -> Connection:
    """Parse a tcp_info. Pure. Raises: ValueError if it is too short."""
    if len(info) < _SENT + 4:
        raise ValueError(f"expected a tcp_info of {_SENT + 4} bytes and more, got {len(info)}")
    idle_ms, rtt_us, num_resent, num_sent = (
        struct.unpack_from("I", info, at)[0] for at in (_LAST_SENT, _RTT, _RESENT, _SENT)
    )
    is_fresh = idle_ms <= _MOST_IDLE_MS and rtt_us > 0
    return Connection(inode, round(rtt_us / _US_PER_MS, 3) if is_fresh else None, num_resent, num_sent)
