"""Finds the user of this machine that a connection belongs to, by the kernel's list of sockets.

Where: `connect_proxy` calls it, as its clients do not authenticate. Connections of root and of the service's own user,
such as its jobs' relays, have precedence over connections of other users.
Source: sock_diag(7), linux/inet_diag.h.
"""

from __future__ import annotations

import os
import socket
import struct

_NETLINK_SOCK_DIAG = 4  # from linux/netlink.h; Python 3.11 has no constant for it
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 0x1
_NO_COOKIE = b"\xff" * 8
_ANY_STATE = 0xFFFFFFFF
_ADDRESS_BYTES = 16
_USER_AT = 16 + 4 + 48 + 12  # nlmsghdr, head and id of inet_diag_msg, then expires, rqueue, wqueue
_ANSWER_BYTES = 8192
_ANSWER_TIMEOUT_S = 1.0


def user_of(client: object, end: object) -> int | None:
    """Return the user of a client on this machine; None for a remote client, and if the kernel does not answer.

    Args:
        client: address of the client's end of a TCP connection, as the socket returns it.
        end: address of the connection's other end.
    """
    if not isinstance(client, tuple) or not isinstance(end, tuple):
        return None
    try:
        is_v4 = ":" not in client[0]
        family = socket.AF_INET if is_v4 else socket.AF_INET6
        places = [socket.inet_pton(family, str(place[0]).partition("%")[0]) for place in (client, end)]
        packed = b"".join(place.ljust(_ADDRESS_BYTES, b"\0") for place in places)
        key = struct.pack("!HH", client[1], end[1]) + packed + struct.pack("=I", 0) + _NO_COOKIE
        body = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, _ANY_STATE) + key
        head = struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as netlink:
            netlink.settimeout(_ANSWER_TIMEOUT_S)
            netlink.send(head + body)
            answer = netlink.recv(_ANSWER_BYTES)
    except (OSError, ValueError):
        return None
    if len(answer) < _USER_AT + 4 or struct.unpack_from("=IH", answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    return int(struct.unpack_from("=I", answer, _USER_AT)[0])


def is_own_client(client: object, end: object) -> bool:
    """Whether a client on this machine belongs to this process's user, or to root."""
    return user_of(client, end) in (0, os.geteuid())
