"""Interfaces of this network namespace, and the kernel's route selection. Linux, IPv4.

Source: netdevice(7), tcp(7), ip(7).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct

_SIOCGIFFLAGS = 0x8913
_SIOCGIFADDR = 0x8915
_SIOCGIFMTU = 0x8921
_IFF_UP = 1
_REQUEST = "16s24x"  # struct ifreq: the name, then a union
_UNION = 16  # offset of the union
_IP_MTU_DISCOVER = 10
_IP_PMTUDISC_PROBE = 3  # set "do not fragment", and ignore the learned MTU of the path
_BYTES_ACKED = 120  # offset in struct tcp_info, kernel >= 4.1
_TCP_INFO_BYTES = 256
_DISCARD_PORT = 9


def addresses() -> dict[str, str]:
    """Return the interfaces that are up, except loopback, with their first address."""
    found = {}
    for _, name in socket.if_nameindex():
        if name == "lo":
            continue
        with contextlib.suppress(OSError):  # no address, or removed meanwhile
            flags = struct.unpack_from("h", _ask(name, _SIOCGIFFLAGS), _UNION)[0]
            if flags & _IFF_UP:
                found[name] = socket.inet_ntoa(_ask(name, _SIOCGIFADDR)[_UNION + 4 : _UNION + 8])
    return found


def mtu(interface: str) -> int:
    """Return the MTU of an interface in bytes; 0 if unknown."""
    try:
        return int(struct.unpack_from("i", _ask(interface, _SIOCGIFMTU), _UNION)[0])
    except OSError:
        return 0


def source_address(target: str) -> str:
    """Return the source address that the kernel would use for `target`. Raises: OSError without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((target, _DISCARD_PORT))  # sends no packet
        return str(probe.getsockname()[0])


def stream_through(interface: str, address: str) -> socket.socket:
    """Return a TCP socket bound to one interface and one address, independent of the routes."""
    stream = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.bind((address, 0))
    except OSError:
        stream.close()
        raise
    return stream


def datagrams_at(port: int, *, address: str, receive_bytes: int) -> socket.socket:
    """Return a UDP socket bound to `port` that never sends fragmented packets.

    Args:
        address: of this host, from which packets are sent; if no interface has it, the socket is bound to none, and
            the kernel chooses an address for each packet.
        receive_bytes: size of the receive buffer.
    """
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        datagrams.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
        datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        try:
            datagrams.bind((address, port))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            datagrams.bind(("0.0.0.0", port))  # noqa: S104 - a namespace that only the job's hosts share
    except OSError:
        datagrams.close()
        raise
    return datagrams


def is_taken(port: int) -> bool:
    """Whether a program already listens at a port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104 - only tried
        except OSError:
            return True
    return False


def bytes_acknowledged(stream: socket.socket) -> int:
    """Return the bytes sent on a connection that its peer has acknowledged; 0 on kernels that do not report it."""
    info = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    return int(struct.unpack_from("Q", info, _BYTES_ACKED)[0]) if len(info) >= _BYTES_ACKED + 8 else 0


def datagrams_overrun() -> int:
    """Return how many datagrams this namespace has dropped, since its creation, because of full buffers."""
    try:
        with open(f"/proc/{os.getpid()}/net/snmp", encoding="ascii") as file:
            names, values = [line.split() for line in file if line.startswith("Udp:")]
    except (OSError, ValueError):
        return 0
    return int(dict(zip(names, values, strict=False)).get("RcvbufErrors", 0))


def _ask(interface: str, request: int) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        return fcntl.ioctl(any_socket, request, struct.pack(_REQUEST, interface.encode()))
