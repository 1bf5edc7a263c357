"""Messages of ranks on side streams before the core owns the streams: "I am ready", or "I give up, because".

Where: `group.connect_group` calls these functions once the sockets are connected; `meeting` looks for farewells while
ranks are still missing. The group is formed when every rank has received READY from every other rank.

    R               ready; for ranks of its host the leader attaches the descriptor of the shared memory
    X length text   the sender gives up, with the reason
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
from collections.abc import Mapping

from clary.base.readiness import readable
from clary.train.collective.bootstrap.deadline import Deadline

READY = b"R"
FAREWELL = b"X"
_LENGTH = struct.Struct("<H")
_INT = struct.Struct("i")
_MAX_TEXT_BYTES = 2000
_FAREWELL_LIMIT_S = 5.0  # longest read of a farewell
_CAUSE_LIMIT_S = 0.5  # longest wait for the first cause, after a peer has ended without a message
WORDLESS = "it ended without a message"


class GaveUp(Exception):
    """A peer sent a farewell, or ended without one."""

    def __init__(self, peer: int, words: str) -> None:
        super().__init__(words)
        self.peer = peer


def say_ready(sides: Mapping[int, socket.socket], *, segment_fd: int, host_mates: frozenset[int]) -> None:
    """Send READY to all peers, and the shared memory to `host_mates`; `await_ready` detects peers that have ended.

    Args:
        sides: side streams, by rank.
        segment_fd: shared memory of this host; -1 for no memory to send.
        host_mates: ranks that receive the shared memory.
    """
    for peer, sock in sides.items():
        with contextlib.suppress(OSError):
            if segment_fd >= 0 and peer in host_mates:
                socket.send_fds(sock, [READY], [segment_fd])
            else:
                sock.send(READY)


def say_farewell(sides: Mapping[int, socket.socket], words: str) -> None:
    """Send all peers the reason why this rank gives up, unless their sockets would block."""
    text = words.encode()[:_MAX_TEXT_BYTES]
    for sock in sides.values():
        with contextlib.suppress(OSError):
            sock.send(FAREWELL + _LENGTH.pack(len(text)) + text)


def await_ready(sides: Mapping[int, socket.socket], *, leader: int | None, deadline: Deadline) -> int:
    """Wait until all peers are ready; return the descriptor that `leader` sent, or -1 without a leader.

    Args:
        sides: side streams, by rank.
        leader: rank that sends shared memory; None if this rank leads its host or is alone on it.
        deadline: deadline of the whole wait.
    Raises: GaveUp; TimeoutError with the silent ranks as `args[0]`. No descriptor is left open then.
    """
    waiting = dict(sides)
    segment_fd = -1
    try:
        with selectors.DefaultSelector() as selector:
            for peer, sock in waiting.items():
                selector.register(sock, selectors.EVENT_READ, peer)
            while waiting:
                if deadline.has_passed:
                    raise TimeoutError(sorted(waiting))
                for key, _ in selector.select(deadline.remaining_s):
                    peer = key.data
                    if peer == leader:
                        segment_fd = _hear_leader(peer, waiting[peer])
                    else:
                        _hear(peer, waiting[peer])
                    selector.unregister(waiting.pop(peer))
    except BaseException:
        if segment_fd >= 0:
            os.close(segment_fd)
        raise
    return segment_fd


def read_farewell(sock: socket.socket) -> str:
    """Read a received farewell from its first byte on; return its text, or `WORDLESS` without a whole header."""
    deadline = Deadline(_FAREWELL_LIMIT_S)
    header = _read(sock, len(FAREWELL) + _LENGTH.size, deadline)
    if len(header) < len(FAREWELL) + _LENGTH.size:
        return WORDLESS
    (length,) = _LENGTH.unpack(header[len(FAREWELL) :])
    return _read(sock, min(length, _MAX_TEXT_BYTES), deadline).decode(errors="replace")


def cause_of(sides: Mapping[int, socket.socket], peer: int, words: str) -> tuple[int, str]:
    """Return the rank to blame after `peer` has ended, and its words.

    A rank that gives up because of another rank may end without a farewell, if its connection was not complete or if it
    had already sent READY. The farewell of the rank that gave up first is then still on its way here, so this function
    waits for it.

    Args:
        sides: side streams, by rank.
        peer: rank that has ended.
        words: its farewell, or `WORDLESS`.
    """
    deadline = Deadline(_CAUSE_LIMIT_S)
    waiting = {rank: sock for rank, sock in sides.items() if rank != peer}
    while words == WORDLESS and waiting and not deadline.has_passed:
        for sock in readable(waiting.values(), deadline.remaining_s):
            rank = next(rank for rank, other in waiting.items() if other is sock)
            del waiting[rank]  # look at each stream only once: a rank that was ready sends no farewell
            with contextlib.suppress(OSError):
                if sock.recv(1, socket.MSG_PEEK) == FAREWELL:
                    return rank, read_farewell(sock)
    return peer, words


def _hear(peer: int, sock: socket.socket) -> None:
    _look_for_ready(peer, sock)
    sock.recv(len(READY))


def _hear_leader(peer: int, sock: socket.socket) -> int:
    """Receive READY from a rank that attaches a descriptor, and return the descriptor."""
    _look_for_ready(peer, sock)
    # socket.recv_fds ignores its flags (Python 3.11), so that children would inherit the descriptor.
    _, attached, _, _ = sock.recvmsg(len(READY), socket.CMSG_LEN(_INT.size), socket.MSG_CMSG_CLOEXEC)
    if not attached or len(attached[0][2]) < _INT.size:
        raise GaveUp(peer, "it sent no descriptor of the shared memory (are this process's descriptors used up?)")
    descriptor: int
    (descriptor,) = _INT.unpack_from(attached[0][2])
    return descriptor


def _look_for_ready(peer: int, sock: socket.socket) -> None:
    """Peek at the message without consuming it, since its attachment is received with the first real read.

    Raises: GaveUp.
    """
    try:
        first = sock.recv(1, socket.MSG_PEEK)
    except OSError:
        first = b""
    if first != READY:
        raise GaveUp(peer, read_farewell(sock) if first == FAREWELL else WORDLESS)


def _read(sock: socket.socket, num_bytes: int, deadline: Deadline) -> bytes:
    """Read up to `num_bytes` from a non-blocking socket; fewer if the stream ends or the deadline passes."""
    got = b""
    with contextlib.suppress(OSError):
        while len(got) < num_bytes and not deadline.has_passed:
            if readable([sock], deadline.remaining_s):
                more = sock.recv(num_bytes - len(got))
                if not more:
                    break
                got += more
    return got
