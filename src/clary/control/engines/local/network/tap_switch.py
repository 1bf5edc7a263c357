"""A userspace Ethernet switch that delays and drops frames, for jobs whose links are configured so.

Where: a child of the anchor, one per job, with one TAP device (`eth0` of a host) per port. The kernel needs no netem
module. The one-way delay between two hosts is the larger of their links' delays; their loss likewise. A token bucket on
a host's `eth0` limits its sending (`network_building`); the switch limits its receiving, one frame after the other.
Addresses are known beforehand, so the switch learns nothing: unknown and group addresses go to every other port. TAP
devices pass TCP segments of up to 64 KiB as one frame (virtio header, TSO), except where frames may be lost: there a
frame is one packet, as on a wire.
Source: Documentation/networking/tuntap.rst; linux/if_tun.h; linux/virtio_net.h.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import heapq
import json
import os
import random
import select
import struct
import time
from typing import NamedTuple

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 0x01, 0x02, 0x04
VNET_HEADER_BYTES = 10  # struct virtio_net_hdr
MAC_BYTES = 6
GROUP_BIT = 1  # lowest bit of a destination's first byte: broadcast or multicast
MAX_FRAME_BYTES = 70_000
FRAMES_PER_TURN = 16  # frames read from one port before the other ports and due frames are served
MAX_QUEUED_BYTES = 64 * 1024 * 1024  # over all ports; beyond it the switch stops reading and the senders wait
MAX_PORT_BACKLOG_NS = 50_000_000  # time that a frame may wait for its receiver's link before it is dropped
PARTITION_POLL_S = 0.05
PR_SET_TIMERSLACK = 29
NS_PER_S = 1_000_000_000


class Port(NamedTuple):
    """One host's port of the switch."""

    name: str
    descriptor: int  # TAP device, non-blocking
    mac: bytes
    rate_bytes_s: float | None
    delay_ns: int
    loss: float  # probability


def open_tap(name: str, *, with_segments: bool) -> int:
    """Create a TAP device in the network namespace of this thread and return its descriptor, non-blocking.

    Args:
        name: name of the device.
        with_segments: whether frames may be TCP segments of up to 64 KiB.
    Raises: OSError naming /dev/net/tun if the device may not be opened.
    """
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
        offload = TUN_F_CSUM | (TUN_F_TSO4 | TUN_F_TSO6 if with_segments else 0)
        fcntl.ioctl(descriptor, TUNSETOFFLOAD, offload)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class TapSwitch:
    """Moves frames between ports until `stop_descriptor` becomes readable.

    It owns the descriptors, and gives them the lowest free numbers: `select`, whose timeouts are exact enough, refuses
    those from 1024 on, and the anchor of many hosts has such.

    Args:
        ports: one per host.
        stop_descriptor: read end of a pipe that its owner holds open; its closing ends the switch.
        partitions_path: JSON list of host names that are cut off; may be absent, may change at any time.
    """

    def __init__(self, ports: list[Port], *, stop_descriptor: int, partitions_path: str) -> None:
        ports = [port._replace(descriptor=_lowered(port.descriptor)) for port in ports]
        self._ports = ports
        self._stop = _lowered(stop_descriptor)
        self._partitions_path = partitions_path
        self._partitions_stamp: tuple[int, int] | None = None
        self._is_cut = [False] * len(ports)
        self._index_by_mac = {port.mac: index for index, port in enumerate(ports)}
        self._index_by_descriptor = {port.descriptor: index for index, port in enumerate(ports)}
        self._busy_until_ns = [0] * len(ports)
        self._queue: list[tuple[int, int, int, bytes]] = []  # due time, order of arrival, port, frame
        self._queued_bytes = 0
        self._num_frames = 0
        # [sender][receiver]; precomputed, so that no frame needs arithmetic on links.
        self._delay_ns = [[max(a.delay_ns, b.delay_ns) for b in ports] for a in ports]
        self._loss = [[max(a.loss, b.loss) for b in ports] for a in ports]

    def run(self) -> None:
        """Switch until the stop pipe is closed; blocks."""
        # Timeouts of select() have a resolution of microseconds, those of poll and epoll of milliseconds.
        _lower_timer_slack()
        gc.disable()  # the switch makes no cycles, and a collection would show up as jitter
        descriptors = [port.descriptor for port in self._ports]
        next_poll_s = 0.0
        while True:
            now_s = time.monotonic()
            if now_s >= next_poll_s:
                self._read_partitions()
                next_poll_s = now_s + PARTITION_POLL_S
            timeout_s = next_poll_s - now_s
            if self._queue:
                timeout_s = min(timeout_s, max(0.0, self._queue[0][0] / NS_PER_S - now_s))
            watched = descriptors if self._queued_bytes < MAX_QUEUED_BYTES else []
            readable, _, _ = select.select([self._stop, *watched], [], [], timeout_s)
            for descriptor in readable:
                if descriptor == self._stop:
                    return
                self._receive(self._index_by_descriptor[descriptor])
            self._deliver()

    def _receive(self, sender: int) -> None:
        descriptor = self._ports[sender].descriptor
        for _ in range(FRAMES_PER_TURN):
            try:
                frame = os.read(descriptor, MAX_FRAME_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EIO:  # the interface is down
                    return
                raise
            if self._is_cut[sender]:
                continue
            now_ns = time.monotonic_ns()
            mac = frame[VNET_HEADER_BYTES : VNET_HEADER_BYTES + MAC_BYTES]
            receiver = None if not mac or mac[0] & GROUP_BIT else self._index_by_mac.get(mac)
            if receiver is not None:
                self._enqueue(sender, receiver, frame, now_ns)
                continue
            for other in range(len(self._ports)):
                if other != sender:
                    self._enqueue(sender, other, frame, now_ns)

    def _enqueue(self, sender: int, receiver: int, frame: bytes, now_ns: int) -> None:
        if self._is_cut[receiver]:
            return
        loss = self._loss[sender][receiver]
        if loss and random.random() < loss:
            return
        due_ns = now_ns + self._delay_ns[sender][receiver]
        rate = self._ports[receiver].rate_bytes_s
        if rate is not None:
            start_ns = max(due_ns, self._busy_until_ns[receiver])
            if start_ns - due_ns > MAX_PORT_BACKLOG_NS:
                return
            due_ns = start_ns + int((len(frame) - VNET_HEADER_BYTES) * NS_PER_S / rate)
            self._busy_until_ns[receiver] = due_ns
        self._num_frames += 1
        self._queued_bytes += len(frame)
        heapq.heappush(self._queue, (due_ns, self._num_frames, receiver, frame))

    def _deliver(self) -> None:
        queue = self._queue
        while queue and queue[0][0] <= time.monotonic_ns():
            _, _, receiver, frame = heapq.heappop(queue)
            self._queued_bytes -= len(frame)
            try:
                os.write(self._ports[receiver].descriptor, frame)
            except OSError as error:
                # EIO: the interface is down; the other errors: no room, or a frame that the kernel considers malformed.
                # In all these cases the frame is lost, as on a wire.
                if error.errno not in (errno.EIO, errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.EINVAL):
                    raise

    def _read_partitions(self) -> None:
        try:
            status = os.stat(self._partitions_path)
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp == self._partitions_stamp:
                return
            with open(self._partitions_path, encoding="utf-8") as file:
                cut = set(json.load(file))
        except FileNotFoundError:
            stamp, cut = (0, 0), set()
        except (OSError, ValueError, TypeError):
            return  # the file is being written; the next poll reads it again
        self._partitions_stamp = stamp
        self._is_cut = [port.name in cut for port in self._ports]


def _lowered(descriptor: int) -> int:
    """Return the descriptor's file under the lowest free number, and close the higher one."""
    found = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 0)
    low, high = sorted((descriptor, found))
    os.close(high)
    return low


def _lower_timer_slack() -> None:
    """Ask for wake-ups within a microsecond; the default slack of 50 us would show up in every round trip."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0)
