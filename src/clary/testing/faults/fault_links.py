"""Damage to the connections of other processes: cut, slowed down, with bytes inserted or removed.

A socket of another process is duplicated (`pidfd_getfd`), changed and closed; the owner notices only the effects of a
broken network. No proxy is needed between the two ends, so the product runs unchanged. Needs permission to trace the
process (root, or the same user where the kernel allows it) and Linux 5.6. Source: pidfd_getfd(2); socket(7) for
SO_MAX_PACING_RATE.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

_PIDFD_GETFD = 438  # the same number on every architecture
_SO_MAX_PACING_RATE = 47
NO_PACING = 0xFFFFFFFF
SLOW_BYTES_PER_S = 300

Wanted = Callable[[socket.socket], bool]


@contextlib.contextmanager
def connections_of(pid: int, wanted: Wanted) -> Iterator[list[socket.socket]]:
    """Yield duplicates of the sockets of a process for which `wanted` is true; an empty list if it has ended."""
    borrowed: list[socket.socket] = []
    try:
        process = os.pidfd_open(pid)
    except OSError:
        yield borrowed
        return
    try:
        for number in _socket_numbers(pid):
            found = _borrow(process, number)
            if found is None:
                continue
            if wanted(found):
                borrowed.append(found)
            else:
                found.close()
        yield borrowed
    finally:
        os.close(process)
        for item in borrowed:
            item.close()


def leads_to_port(port: int) -> Wanted:
    """Return a function that tells whether a socket is an IPv4 connection whose other end has this port."""

    def wanted(item: socket.socket) -> bool:
        return item.family == socket.AF_INET and _peer(item)[1:2] == (port,)

    return wanted


def cut(item: socket.socket) -> None:
    """End the connection in both directions."""
    with contextlib.suppress(OSError):
        item.shutdown(socket.SHUT_RDWR)


def slow_down(item: socket.socket, bytes_per_s: int = SLOW_BYTES_PER_S) -> None:
    """Slow down sending from now on; `NO_PACING` restores the speed."""
    with contextlib.suppress(OSError):
        item.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("I", bytes_per_s))


def garble(item: socket.socket, data: bytes) -> None:
    """Send bytes that the owner of the socket never sent."""
    with contextlib.suppress(OSError):
        item.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def swallow(item: socket.socket, num_bytes: int) -> int:
    """Read received bytes, so that the owner never reads them; return their number."""
    try:
        return len(item.recv(num_bytes, socket.MSG_DONTWAIT))
    except OSError:
        return 0


def _socket_numbers(pid: int) -> list[int]:
    numbers = []
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith("socket:"):
                    numbers.append(int(path.name))
    return numbers


def _borrow(process: int, number: int) -> socket.socket | None:
    descriptor = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, number, 0)
    if descriptor < 0:
        return None
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        return None


def _peer(item: socket.socket) -> tuple[object, ...]:
    try:
        peer = item.getpeername()
    except OSError:
        return ()
    return peer if isinstance(peer, tuple) else ()
