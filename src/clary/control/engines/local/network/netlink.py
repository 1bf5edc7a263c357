"""The few rtnetlink requests of a job's network: bridge, veth pair, address, route, up, token bucket, neighbour.

Where: `network_building` and `network_faults` call this inside the namespace that they have joined. A `Netlink` socket
belongs to the network namespace in which it was created, even if its thread joins another namespace later. iproute2 is
not needed.
Source: rtnetlink(7), linux/if_link.h, linux/veth.h, linux/neighbour.h, linux/pkt_sched.h (tc_tbf_qopt); kernels 4.15
and later.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from types import TracebackType
from typing import Self

RTM_NEWROUTE = 24
RTM_NEWLINK, RTM_NEWADDR, RTM_NEWNEIGH, RTM_DELNEIGH, RTM_NEWQDISC = 16, 20, 28, 29, 36
NLM_F_REQUEST, NLM_F_ACK, NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x1, 0x4, 0x100, 0x200, 0x400
NLMSG_ERROR = 2
NLA_F_NESTED = 0x8000
IFF_UP = 0x1
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MASTER, IFLA_LINKINFO, IFLA_NET_NS_FD = 1, 3, 10, 18, 28
IFLA_INFO_KIND, IFLA_INFO_DATA = 1, 2
VETH_INFO_PEER = 1
IFA_ADDRESS, IFA_LOCAL = 1, 2
RTA_DST, RTA_OIF = 1, 4
RT_TABLE_LOCAL = 255
RTPROT_BOOT, RT_SCOPE_HOST, RTN_LOCAL = 3, 254, 2
NDA_DST, NDA_LLADDR = 1, 2
NUD_PERMANENT = 0x80
TCA_KIND, TCA_OPTIONS = 1, 2
TCA_TBF_PARMS, TCA_TBF_RATE64, TCA_TBF_BURST = 1, 4, 6
TC_H_ROOT = 0xFFFFFFFF
TC_LINKLAYER_ETHERNET = 1
TC_TICKS_PER_US = 15.625  # "psched" tick: 64 ns
MAX_U32 = 0xFFFFFFFF
SIOCGIFINDEX = 0x8933
ANSWER_BYTES = 65536
ANSWER_TIMEOUT_S = 10.0


class Netlink:
    """Requests to the network namespace in which this object was made.

    Raises: OSError with the kernel's errno from every method; a refused request has changed nothing.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._socket.settimeout(ANSWER_TIMEOUT_S)
        self._socket.bind((0, 0))
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def index(self, name: str) -> int:
        """Return the index of an interface."""
        # SIOCGIFINDEX on this socket: socket.if_nametoindex would look in the namespace that the thread has joined
        # since.
        request = struct.pack("16s16x", name.encode())
        answer = fcntl.ioctl(self._socket, SIOCGIFINDEX, request)
        return int(struct.unpack_from("i", answer, 16)[0])

    def add_bridge(self, name: str) -> None:
        """Create a bridge, down."""
        self._create_link(name, "bridge", b"")

    def add_veth(self, name: str, *, peer_name: str, peer_namespace_fd: int) -> None:
        """Create a veth pair whose other end appears in another network namespace, both ends down.

        Args:
            name: name of the end in this namespace.
            peer_name: name of the other end.
            peer_namespace_fd: open descriptor of the other end's network namespace.
        """
        peer = _interface(0) + _text(IFLA_IFNAME, peer_name) + _u32(IFLA_NET_NS_FD, peer_namespace_fd)
        self._create_link(name, "veth", _attribute(VETH_INFO_PEER | NLA_F_NESTED, peer))

    def set_up(self, name: str, *, up: bool = True) -> None:
        """Set an interface up or down."""
        self._request(RTM_NEWLINK, 0, _interface(self.index(name), IFF_UP if up else 0, IFF_UP))

    def set_master(self, name: str, *, bridge: str | None) -> None:
        """Make an interface a port of `bridge`, or remove it from its bridge if `bridge` is None."""
        master = _u32(IFLA_MASTER, self.index(bridge) if bridge else 0)
        self._request(RTM_NEWLINK, 0, _interface(self.index(name)) + master)

    def set_hardware_address(self, name: str, address: bytes) -> None:
        """Set the 6-byte Ethernet address of an interface."""
        self._request(RTM_NEWLINK, 0, _interface(self.index(name)) + _attribute(IFLA_ADDRESS, address))

    def add_address(self, name: str, address: str, *, prefix_length: int) -> None:
        """Give an interface an IPv4 address.

        Args:
            name: name of the interface.
            address: dotted.
            prefix_length: length of the network prefix in bits.
        """
        packed = socket.inet_aton(address)
        header = struct.pack("BBBBI", socket.AF_INET, prefix_length, 0, 0, self.index(name))
        body = header + _attribute(IFA_LOCAL, packed) + _attribute(IFA_ADDRESS, packed)
        self._request(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, body)

    def add_local_route(self, name: str, address: str) -> None:
        """Accept packets to an IPv4 address as if it were an address of the interface."""
        packed = socket.inet_aton(address)
        kinds = (0, 0, RT_TABLE_LOCAL, RTPROT_BOOT, RT_SCOPE_HOST, RTN_LOCAL)
        header = struct.pack("BBBBBBBBI", socket.AF_INET, 8 * len(packed), *kinds, 0)
        body = header + _attribute(RTA_DST, packed) + _u32(RTA_OIF, self.index(name))
        self._request(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, body)

    def set_neighbour(self, name: str, address: str, *, hardware_address: bytes | None) -> None:
        """Set a static Ethernet address for an IPv4 neighbour of an interface; None: the kernel asks for it again.

        Args:
            name: name of the interface.
            address: dotted IPv4 address of the neighbour.
            hardware_address: 6 bytes; None removes the entry, and raises OSError ENOENT without one.
        """
        state = 0 if hardware_address is None else NUD_PERMANENT
        header = struct.pack("BxxxiHBB", socket.AF_INET, self.index(name), state, 0, 0)
        body = header + _attribute(NDA_DST, socket.inet_aton(address))
        if hardware_address is None:
            self._request(RTM_DELNEIGH, 0, body)
            return
        body += _attribute(NDA_LLADDR, hardware_address)
        self._request(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, body)

    def set_rate(self, name: str, *, rate_bytes_s: int, burst_bytes: int, queue_bytes: int) -> None:
        """Limit an interface's sending rate by a token bucket (tc qdisc tbf), in place of its queueing discipline.

        Args:
            name: name of the interface.
            rate_bytes_s: bytes per second, above 0.
            burst_bytes: size of the bucket, which may pass at once; at least a whole packet.
            queue_bytes: size of the queue; packets beyond it are dropped.
        """
        # tc_tbf_qopt: ratespec(cell_log, linklayer, overhead, cell_align, mpu, rate), peak ratespec, limit, buffer,
        # mtu. With an Ethernet link layer the kernel needs no rate table; TCA_TBF_BURST wins over `buffer`.
        rate = struct.pack("BBHhHI", 0, TC_LINKLAYER_ETHERNET, 0, 0, 0, min(rate_bytes_s, MAX_U32))
        buffer_ticks = min(int(burst_bytes * 1e6 / rate_bytes_s * TC_TICKS_PER_US), MAX_U32)
        options = _attribute(TCA_TBF_PARMS, rate + bytes(len(rate)) + struct.pack("III", queue_bytes, buffer_ticks, 0))
        options += _u32(TCA_TBF_BURST, burst_bytes)
        if rate_bytes_s > MAX_U32:
            options += _attribute(TCA_TBF_RATE64, struct.pack("Q", rate_bytes_s))
        header = struct.pack("BxHiIII", socket.AF_UNSPEC, 0, self.index(name), 0, TC_H_ROOT, 0)
        body = header + _text(TCA_KIND, "tbf") + _attribute(TCA_OPTIONS | NLA_F_NESTED, options)
        self._request(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, body)

    def _create_link(self, name: str, kind: str, data: bytes) -> None:
        info = _text(IFLA_INFO_KIND, kind)
        if data:
            info += _attribute(IFLA_INFO_DATA | NLA_F_NESTED, data)
        body = _interface(0) + _text(IFLA_IFNAME, name) + _attribute(IFLA_LINKINFO | NLA_F_NESTED, info)
        self._request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body)

    def _request(self, kind: int, flags: int, body: bytes) -> None:
        self._sequence += 1
        header = struct.pack("IHHII", 16 + len(body), kind, NLM_F_REQUEST | NLM_F_ACK | flags, self._sequence, 0)
        self._socket.send(header + body)
        while True:
            answer = self._socket.recv(ANSWER_BYTES)
            _, answer_kind, _, sequence, _ = struct.unpack_from("IHHII", answer)
            if answer_kind == NLMSG_ERROR and sequence == self._sequence:
                break
        number = -struct.unpack_from("i", answer, 16)[0]
        if number:
            raise OSError(number, os.strerror(number), f"rtnetlink request {kind}")


def _interface(index: int, flags: int = 0, change: int = 0) -> bytes:
    return struct.pack("BxHiII", socket.AF_UNSPEC, 0, index, flags, change)


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def _text(kind: int, text: str) -> bytes:
    return _attribute(kind, text.encode() + b"\0")


def _u32(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack("I", value))
