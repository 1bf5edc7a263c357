"""TCP connections of processes: unacknowledged bytes, unread bytes, retransmissions.

Where: `host_dump` reads them, once for all processes in one network namespace.
Source: Documentation/networking/proc_net_tcp.rst; proc_pid_fd(5).
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterable
from itertools import islice

from clary.contract.stack_dumps import MAX_SOCKETS, SocketState

_STATES = {
    1: "ESTABLISHED",
    2: "SYN_SENT",
    3: "SYN_RECV",
    4: "FIN_WAIT1",
    5: "FIN_WAIT2",
    6: "TIME_WAIT",
    7: "CLOSE",
    8: "CLOSE_WAIT",
    9: "LAST_ACK",
    10: "LISTEN",
    11: "CLOSING",
}  # fmt: skip - include/net/tcp_states.h
MAX_CONNECTIONS = 32_768  # of a namespace and a family: a program may open a million sockets
_INODE_FIELD = 9
_MAPPED = b"\0" * 10 + b"\xff\xff"  # an IPv4 address in an IPv6 socket


def read_connections(pid: int) -> dict[int, SocketState]:
    """Return the readable TCP sockets of a process's network namespace by inode."""
    found: dict[int, SocketState] = {}
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{name}", encoding="ascii") as file:
                found |= parse_connections(islice(file, 1, None))
        except (OSError, ValueError):
            continue
    return found


def parse_connections(lines: Iterable[str]) -> dict[int, SocketState]:
    """Parse the lines of /proc/net/tcp after its header, up to MAX_CONNECTIONS sockets. Pure.

    Raises: ValueError for lines of another format.
    """
    found: dict[int, SocketState] = {}
    for line in lines:
        if len(found) >= MAX_CONNECTIONS:
            break
        fields = line.split()
        if len(fields) <= _INODE_FIELD:
            raise ValueError(f"expected the fields of /proc/net/tcp, got {line[:80]!r}")
        unsent, unread = (int(text, 16) for text in fields[4].split(":"))
        state = int(fields[3], 16)
        found[int(fields[_INODE_FIELD])] = SocketState(
            local=_address(fields[1]),
            peer=_address(fields[2]),
            state=_STATES.get(state, str(state)),
            unsent_bytes=unsent,
            unread_bytes=unread,  # of a listener: connections not yet accepted
            num_retransmits=int(fields[6], 16),
        )
    return found


def sockets_of(pid: int, connections: dict[int, SocketState]) -> tuple[SocketState, ...]:
    """Return the open connections of a process, troubled connections first."""
    inodes = set()
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:  # the process has ended, or access is denied
        return ()
    for name in names:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            inodes.add(int(target[len("socket:[") : -1]))
    own = [connections[inode] for inode in inodes if inode in connections]
    own.sort(key=lambda item: (-item.num_retransmits, -item.unsent_bytes, -item.unread_bytes, item.local, item.peer))
    return tuple(own[:MAX_SOCKETS])


def addresses_in(connections: Iterable[SocketState]) -> set[str]:
    """Return the local addresses of a namespace's sockets, except addresses that every host has."""
    found = {item.local.rpartition(":")[0].strip("[]") for item in connections}
    parsed = {address: ipaddress.ip_address(address) for address in found}
    return {address for address, value in parsed.items() if not (value.is_loopback or value.is_unspecified)}


def _address(text: str) -> str:
    """Parse the kernel's hexadecimal address, words in the machine's byte order, into `10.0.0.1:7777`."""
    packed, port = text.split(":")
    words = [packed[at : at + 8] for at in range(0, len(packed), 8)]
    data = b"".join(struct.pack("=I", int(word, 16)) for word in words)
    if data.startswith(_MAPPED):
        data = data[len(_MAPPED) :]
    family = socket.AF_INET if len(data) == 4 else socket.AF_INET6
    shown = socket.inet_ntop(family, data)
    return f"{shown}:{int(port, 16)}" if family == socket.AF_INET else f"[{shown}]:{int(port, 16)}"
