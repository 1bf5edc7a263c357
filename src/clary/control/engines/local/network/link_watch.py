"""Notice that a host of a job has been cut off the job's network, though its agent still reports.

Where: a task of the anchor (`fabric`); agents do not reach the service over these links, so their heartbeats prove
nothing about links. Each host sends a small frame to the next host in the job, the last host to the first. A host is
cut off when neither frames from it nor frames to it arrive. In a job of two hosts the cut link belongs to both, so the
second host counts as cut off. The engine reads the file that `LinkWatch` writes and reports to the reconciler.

Silence is counted in frames sent, not in time: an anchor that the kernel did not schedule for a while sends no frames
meanwhile, so a loaded or suspended machine loses no host. Such an anchor notices a cut late. So each frame contains its
sending time, and the watch records the sending time of the last frame that arrived from or at a cut-off host, because
its link worked then. The frames have an Ethernet type of their own: they occupy no port and wake no program. Standard
library only.
Source: packet(7); IEEE 802 local experimental Ethernet type 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence

ETHERNET_TYPE = 0x88B5
FRAME_INTERVAL_S = 0.2
CUT_OFF_AFTER_S = 2.0  # seconds without a frame; a part of `jobs.deadlines.LINK_NOTICE_S`
MIN_FRAME_BYTES = 60  # smallest Ethernet frame, without the checksum
MAX_LOSS_PERCENT = 20.0  # links with more loss than this are not watched: 10 frames in a row could be lost
CUT_OFF_FILE = "cut-off.json"
_HEADER_BYTES = 14
_SENT_S = struct.Struct("!d")  # follows the header: monotonic time, which all hosts of a job on this machine share
_WELL_S = "well_s"  # older anchors wrote only names, or epoch seconds, which are wrong after the clock was set


def open_link(interface: str = "eth0") -> socket.socket:
    """Open a socket for the watch's frames on an interface of this thread's network namespace.

    Raises: OSError, where packet sockets are not allowed.
    """
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        link.bind((interface, ETHERNET_TYPE))
    except OSError:
        link.close()
        raise
    return link


def cut_off_hosts(missed: Sequence[int], limit: int) -> list[int]:
    """Return the hosts, by index, that are cut off in both directions. Pure.

    Args:
        missed: at index i, number of consecutive frames that host i sent and the next host did not receive.
        limit: smallest number of missed frames at which a direction counts as cut.
    """
    num_hosts = len(missed)
    if num_hosts == 2:
        return [1] if min(missed) >= limit else []
    return [index for index in range(num_hosts) if missed[index] >= limit and missed[index - 1] >= limit]


class LinkWatch:
    """Sends frames around the hosts of one job and writes down the hosts that are cut off.

    Args:
        names: names of the hosts.
        links: a socket of `open_link` in each host's namespace, in the same order.
        addresses: Ethernet addresses of the hosts, in the same order.
        path: the file of cut-off hosts, each with the sending time of the last frame that arrived from or at the host.
            It is written whenever the set of these hosts changes, and absent before the first change.
        max_delay_s: longest delay of a frame on its link.
        monotonic: returns the monotonic time in seconds.
    """

    def __init__(
        self,
        names: Sequence[str],
        links: Sequence[socket.socket],
        addresses: Sequence[bytes],
        *,
        path: str,
        max_delay_s: float = 0.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._names = names
        self._links = links
        self._addresses = addresses
        self._path = path
        self._limit = round((CUT_OFF_AFTER_S + max_delay_s) / FRAME_INTERVAL_S)
        self._missed = [0] * len(names)
        self._monotonic = monotonic
        self._last_sent_s = [monotonic()] * len(names)  # by sender; each link counts as working at the start
        self._written: list[str] = []

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self.make_round()
            await asyncio.sleep(FRAME_INTERVAL_S)

    def make_round(self) -> None:
        """Read the frames that have arrived, record cut-off hosts, and send the next frames."""
        for index, link in enumerate(self._links):
            sender = index - 1 if index else len(self._links) - 1
            sent_s = _drain(link, self._addresses[sender])
            if sent_s is not None:
                self._missed[sender] = 0
                # The time in a frame is bounded, because any program could have sent the frame.
                self._last_sent_s[sender] = min(max(sent_s, self._last_sent_s[sender]), self._monotonic())
        cut_off = {
            self._names[index]: max(self._last_sent_s[index], self._last_sent_s[index - 1])
            for index in cut_off_hosts(self._missed, self._limit)
        }
        if list(cut_off) != self._written:
            with contextlib.suppress(OSError):  # a full disk or a deleted folder: the next round retries
                write_cut_off(self._path, cut_off)
                self._written = list(cut_off)
        sent_bytes = _SENT_S.pack(self._monotonic())
        for index, link in enumerate(self._links):
            receiver = self._addresses[(index + 1) % len(self._links)]
            frame = receiver + self._addresses[index] + ETHERNET_TYPE.to_bytes(2, "big") + sent_bytes
            self._missed[index] += 1
            with contextlib.suppress(OSError):  # a full queue or an interface that is down: the frame is lost
                link.send(frame.ljust(MIN_FRAME_BYTES, b"\0"))


def write_cut_off(path: str, hosts: Mapping[str, float]) -> None:
    """Replace the file: cut-off host -> monotonic time when its link last worked."""
    partial = f"{path}.partial"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump({_WELL_S: dict(hosts)}, file)
    os.replace(partial, path)


def read_cut_off(path: str) -> dict[str, float | None]:
    """Return cut-off host -> monotonic time when its link last worked; None if an older anchor wrote the file."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):  # before the watch wrote anything
        return {}
    well_s = found.get(_WELL_S) if isinstance(found, dict) else None
    return dict(well_s) if isinstance(well_s, dict) else dict.fromkeys(map(str, found))


def _drain(link: socket.socket, sender: bytes) -> float | None:
    """Read all waiting frames; return when the last frame from `sender` was sent, None without such a frame."""
    last_sent_s: float | None = None
    with contextlib.suppress(OSError):  # no more frames, or an interface that is down
        while True:
            frame, address = link.recvfrom(MIN_FRAME_BYTES)
            is_incoming = address[2] != socket.PACKET_OUTGOING
            if is_incoming and frame[6:12] == sender and len(frame) >= _HEADER_BYTES + _SENT_S.size:
                (sent_s,) = _SENT_S.unpack_from(frame, _HEADER_BYTES)
                if math.isfinite(sent_s):  # else the frame is not from a host of this job
                    last_sent_s = sent_s if last_sent_s is None else max(last_sent_s, sent_s)
    return last_sent_s
