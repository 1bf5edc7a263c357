"""Listening sockets of a rank while its group is formed, and connections to other ranks' listeners.

Where: `group.connect_group` opens the listeners and publishes them; `meeting` accepts on them and dials other ranks'
listeners. The kernel chooses ports; names of Unix sockets are random. Ranks of one host connect over an abstract Unix
socket (Linux): it has no file, and the kernel identifies the process at the other end. Source: unix(7).
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import struct
import sys
from dataclasses import dataclass

from clary.train._native.errors import BootstrapError
from clary.train.collective.bootstrap.hosts import HAS_SHARED_MEMORY
from clary.train.collective.bootstrap.records import RankRecord

_BACKLOG_OVER = 64  # backlog of connections, in addition to two per rank
_PEER_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_IDLE_S, _PROBE_S, _PROBES = 15, 5, 3  # the kernel detects a vanished host after 15 + 3 * 5 = 30 s


@dataclass(frozen=True)
class Listeners:
    """The listening sockets of one rank; non-blocking."""

    tcp: socket.socket
    unix: socket.socket | None
    unix_name: str
    place: tuple[str, int]  # address and port of `tcp`
    congestion: str = ""  # congestion control of connections between hosts; empty for the system's

    @property
    def all(self) -> tuple[socket.socket, ...]:
        """Every listening socket."""
        return (self.tcp,) if self.unix is None else (self.tcp, self.unix)

    def close(self) -> None:
        """Close the listeners; connections in the backlog are reset."""
        for listener in self.all:
            listener.close()


def open_listeners(address: str, size: int, *, congestion: str = "") -> Listeners:
    """Listen on `address` for a group of `size` ranks.

    Args:
        address: host name or IP address of an interface of this host.
        size: number of ranks.
        congestion: congestion control of the connections that are accepted; empty for the system's.

    Raises: BootstrapError naming the address, or the congestion control that the kernel refuses.
    """
    backlog = 2 * size + _BACKLOG_OVER
    tcp = None
    try:
        family, _, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        tcp = socket.create_server(place[:2], family=family, backlog=backlog, reuse_port=False)
        tcp.setblocking(False)
        if why := _refusal_of(tcp, congestion):
            tcp.close()
            raise BootstrapError(why, retryable=False)
        if not HAS_SHARED_MEMORY:
            return Listeners(tcp, None, "", tcp.getsockname()[:2], congestion)
        name = f"clary-{secrets.token_hex(16)}"
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            unix.setblocking(False)
            unix.bind(_abstract(name))
            unix.listen(backlog)
        except OSError:
            unix.close()
            raise
    except OSError as error:
        if tcp is not None:
            tcp.close()
        raise BootstrapError(
            f"cannot listen on {address}: {error.strerror or error}; CLARY_COLLECTIVE_INTERFACE chooses the interface"
        ) from error
    return Listeners(tcp, unix, name, tcp.getsockname()[:2], congestion)


def dial(record: RankRecord, *, is_local: bool, congestion: str = "") -> socket.socket:
    """Begin to connect to a rank; the non-blocking socket becomes writable when it is connected or has failed.

    Args:
        record: of the rank to connect to.
        is_local: whether it shares this rank's host.
        congestion: congestion control of a connection to another host; empty for the system's.

    Raises: OSError.
    """
    if is_local:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        place: object = _abstract(record.unix_name)
    else:
        family, kind, protocol, _, place = socket.getaddrinfo(
            record.address, record.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )[0]
        sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        tune(sock)
        if not is_local:
            # this rank's listener has set it already, so the kernel does not refuse it here
            _refusal_of(sock, congestion)
        code = sock.connect_ex(place)  # type: ignore[arg-type]  # text or a tuple, by the family
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
        if is_local and not is_of_same_user(sock):
            raise OSError(errno.EACCES, "a process of another user listens there")
    except OSError:
        sock.close()
        raise
    return sock


def tune(sock: socket.socket) -> None:
    """Set the options of TCP sockets between ranks: no delay, and keepalive probes that detect a vanished host."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


def _refusal_of(sock: socket.socket, name: str) -> str:
    """Set the congestion control of a TCP socket, which accepted connections inherit; return the error, or ""."""
    if not name:
        return ""
    if sys.platform != "linux":
        return "CLARY_COLLECTIVE_CONGESTION has an effect on Linux only: unset it"
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except OSError as error:
        with open("/proc/sys/net/ipv4/tcp_allowed_congestion_control", encoding="ascii") as file:
            permitted = file.read().strip()
        return (
            f"CLARY_COLLECTIVE_CONGESTION is {name!r}, which the kernel refuses: {error.strerror}; this user may take "
            f"{permitted}"
        )
    return ""


def is_of_same_user(sock: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket runs as this user, according to the kernel."""
    assert sys.platform == "linux", "only there are Unix sockets used (hosts.HAS_SHARED_MEMORY)"
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    _, uid, _ = _PEER_CREDENTIALS.unpack(raw)
    return bool(uid == os.getuid())


def _abstract(name: str) -> str:
    return f"\0{name}"
