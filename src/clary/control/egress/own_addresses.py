"""Finds out whether an address is this machine's own, by the kernel's routing table of all interfaces and aliases.

Where: `connect_proxy` and `outlets` use it for their decisions. A service that listens on the machine's public address
is still a local service.
Source: rtnetlink(7), RTM_GETROUTE; linux/rtnetlink.h.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct

from clary.control.egress.addresses import Address

RTM_NEWROUTE, RTM_GETROUTE = 24, 26
NLM_F_REQUEST = 0x1
NLMSG_ERROR = 2
RTA_DST = 1
RTN_UNICAST = 1
ANSWER_BYTES = 65536
ANSWER_TIMEOUT_S = 2.0
_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL, errno.EAFNOSUPPORT)


def is_own(address: Address) -> bool:
    """Whether packets to an address would stay on this machine, or be broadcast or multicast.

    Raises: OSError if the kernel does not answer.
    """
    family = socket.AF_INET if isinstance(address, ipaddress.IPv4Address) else socket.AF_INET6
    packed = address.packed
    route = struct.pack("BBBBBBBBI", family, len(packed) * 8, 0, 0, 0, 0, 0, 0, 0)
    body = route + struct.pack("HH", 4 + len(packed), RTA_DST) + packed
    request = struct.pack("IHHII", 16 + len(body), RTM_GETROUTE, NLM_F_REQUEST, 1, 0) + body
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as netlink:
        netlink.settimeout(ANSWER_TIMEOUT_S)
        netlink.send(request)
        answer = netlink.recv(ANSWER_BYTES)
    _, kind, _, _, _ = struct.unpack_from("IHHII", answer)
    if kind == NLMSG_ERROR:
        number = -struct.unpack_from("i", answer, 16)[0]
        if number in _UNREACHABLE:
            return False  # the machine has no route to it
        raise OSError(number, f"the kernel does not say where {address} is")
    # rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type
    return bool(struct.unpack_from("8B", answer, 16)[7] != RTN_UNICAST)
