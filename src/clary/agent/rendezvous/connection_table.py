"""TCP connections of a process's network namespace, and the processes that hold them, read from /proc.

Where: `rendezvous_watch` reads it. A read of the table costs milliseconds even with few connections, because the kernel
walks all connections of the machine; `change_mark` shows cheaply whether the table may have new entries.
Source: proc(5): /proc/PID/net/{tcp,tcp6,snmp}, /proc/PID/fd; states in include/net/tcp_states.h.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from clary.base.processes import live_descendants

_LOCAL, _REMOTE, _STATE, _INODE = 1, 2, 3, 9  # indexes of fields in a line
_ESTABLISHED = "01"
# States of connections that were established and are ending: FIN_WAIT1 and 2, TIME_WAIT, CLOSE_WAIT, LAST_ACK, CLOSING.
_ENDED = frozenset({"04", "05", "06", "08", "09", "0B"})
_MAPPED = "::ffff:"  # prefix of an IPv4 address in IPv6's table
_IPV4_DIGITS = 8
_WORD_BYTES = 4
_SOCKET_LINK = "socket:["


@dataclass(frozen=True, kw_only=True)
class Connection:
    """One end of a connection in the namespace that was read."""

    local: tuple[str, int]  # address and port; IPv4 addresses are in IPv4 form, also for sockets of IPv6
    remote: tuple[str, int]
    is_established: bool  # False: the connection is being closed, or is closed
    inode: int  # inode of the socket; 0 if no process holds the socket


def read_connections(pid: int, ports: Collection[int]) -> list[Connection]:
    """Return a namespace's established or ended connections with one of `ports` at either end.

    Raises: OSError if the process has ended or its namespace may not be read.
    """
    endings = tuple(f"{port:04X}" for port in ports)
    found = list(_connections(f"/proc/{pid}/net/tcp", endings))
    if os.path.exists(f"/proc/{pid}/net/tcp6"):  # missing if the kernel lacks IPv6
        found += _connections(f"/proc/{pid}/net/tcp6", endings)
    return found


def change_mark(pid: int) -> tuple[int, ...]:
    """Return counters that change whenever a connection of the namespace is established.

    Refused attempts do not change them: programs retry every second until a process listens.

    Raises: OSError as `read_connections`.
    """
    with open(f"/proc/{pid}/net/snmp", encoding="ascii") as file:
        names, values = (line.split() for line in file if line.startswith("Tcp:"))
    counted = {name: int(value) for name, value in zip(names[1:], values[1:], strict=True)}
    return counted["ActiveOpens"] - counted["AttemptFails"], counted["PassiveOpens"], counted["CurrEstab"]


def socket_holders(first_pid: int) -> dict[int, int]:
    """Return inode of a socket -> pid of its holder, for a process and all its descendants.

    If several processes share a socket, the lowest pid is returned, which usually opened it. Unreadable processes are
    skipped.
    """
    holders: dict[int, int] = {}
    for pid in sorted((first_pid, *live_descendants(first_pid))):
        for inode in _sockets_of(pid):
            holders.setdefault(inode, pid)
    return holders


def _connections(path: str, endings: tuple[str, ...]) -> Iterator[Connection]:
    with open(path, encoding="ascii") as file:
        for line in islice(file, 1, None):  # line by line: a program may open a million sockets
            fields = line.split()
            local, remote, state = fields[_LOCAL], fields[_REMOTE], fields[_STATE]
            if (state == _ESTABLISHED or state in _ENDED) and (local.endswith(endings) or remote.endswith(endings)):
                yield Connection(
                    local=_end_point(local),
                    remote=_end_point(remote),
                    is_established=state == _ESTABLISHED,
                    inode=int(fields[_INODE]),
                )


def _end_point(text: str) -> tuple[str, int]:
    """Parse `0100007F:1E61`: words in the machine's byte order, which is little endian wherever Clary runs."""
    digits, _, port = text.partition(":")
    data = bytes.fromhex(digits)
    words = (data[start : start + _WORD_BYTES][::-1] for start in range(0, len(data), _WORD_BYTES))
    family = socket.AF_INET if len(digits) == _IPV4_DIGITS else socket.AF_INET6
    return socket.inet_ntop(family, b"".join(words)).removeprefix(_MAPPED), int(port, 16)


def _sockets_of(pid: int) -> Iterable[int]:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            target = os.readlink(f"{folder}/{name}")
        except OSError:  # closed meanwhile
            continue
        if target.startswith(_SOCKET_LINK):
            yield int(target[len(_SOCKET_LINK) : -1])
