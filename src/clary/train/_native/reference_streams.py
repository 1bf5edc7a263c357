"""Frames between reference cores, and the thread that moves them.

Where: `reference_exchange` posts frames and gets received frames by callbacks. The native core uses another protocol on
the same sockets; a group never contains both cores (`bootstrap.records`).

A peer on this host has one stream, the side stream, which carries all frames. A peer on another host also has a lane,
which carries collectives. Each stream ends with GOODBYE; a stream that ends without GOODBYE means a lost peer.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

_HEADER = struct.Struct("<BqqIQ")  # kind, number, second number, length of label, length of payload
_MAX_LABEL_BYTES = 4096
_MAX_PAYLOAD_BYTES = 1 << 40
_READ_BYTES = 1 << 20


class FrameKind(IntEnum):
    """The kind of a frame: the meaning of its numbers, its label and its payload."""

    COLLECTIVE = 1  # sequence number; label describes the operation; the sender's data for the receiver
    MESSAGE = 2  # tag, ticket of the sender; data
    RECEIPT = 3  # tag and ticket of the MESSAGE; label is "" on success, else the problem
    BAD_NEWS = 4  # code, culprit; label describes the first cause
    GOODBYE = 5  # the last frame of a stream


@dataclass(frozen=True)
class Frame:
    """One message; see `FrameKind`."""

    kind: FrameKind
    number: int = 0
    second: int = 0
    label: str = ""
    payload: bytes = b""

    def encode(self) -> bytes:
        """Return the frame's bytes."""
        label = self.label.encode()[:_MAX_LABEL_BYTES]
        header = _HEADER.pack(self.kind, self.number, self.second, len(label), len(self.payload))
        return b"".join((header, label, self.payload))


class NoFrame(Exception):
    """Error for bytes that are no frame."""


@dataclass(eq=False)
class _Stream:
    peer: int
    is_lane: bool
    sock: socket.socket
    outbound: deque[memoryview] = field(default_factory=deque)
    inbound: bytearray = field(default_factory=bytearray)
    has_goodbye: bool = False
    can_write: bool = True

    def take_frames(self) -> list[Frame]:
        """Remove complete frames from the received bytes and return them.

        Raises: NoFrame.
        """
        frames = []
        while len(self.inbound) >= _HEADER.size:
            kind, number, second, label_bytes, payload_bytes = _HEADER.unpack_from(self.inbound)
            if not 1 <= kind <= len(FrameKind) or label_bytes > _MAX_LABEL_BYTES or payload_bytes > _MAX_PAYLOAD_BYTES:
                raise NoFrame
            middle = _HEADER.size + label_bytes
            end = middle + payload_bytes
            if len(self.inbound) < end:
                break
            label = bytes(self.inbound[_HEADER.size : middle]).decode(errors="replace")
            frames.append(Frame(FrameKind(kind), number, second, label, bytes(self.inbound[middle:end])))
            del self.inbound[:end]
        return frames


@dataclass(frozen=True)
class Callbacks:
    """The callbacks of `StreamLoop`, always from its own thread."""

    on_frame: Callable[[int, Frame], None]  # peer
    on_goodbye: Callable[[int], None]  # all streams of the peer have ended with GOODBYE
    on_loss: Callable[[int, str], None]  # peer, reason
    before_wait: Callable[[], float | None]  # may end overdue transfers; returns the seconds until its next call is due


class StreamLoop:
    """Moves frames on all streams of one rank in a thread of its own.

    Args:
        sides, lanes: descriptors by rank, -1 for no stream; the loop owns and closes them.
    """

    def __init__(self, sides: Sequence[int], lanes: Sequence[int], callbacks: Callbacks, *, name: str) -> None:
        self._callbacks = callbacks
        self._lock = threading.Lock()  # guards the outbound queues
        self._flushed = threading.Event()
        self._is_ending = False
        self._streams: dict[tuple[int, bool], _Stream] = {}
        for is_lane, descriptors in ((False, sides), (True, lanes)):
            for peer, descriptor in enumerate(descriptors):
                if descriptor >= 0:
                    sock = socket.socket(fileno=descriptor)
                    sock.setblocking(False)
                    self._streams[peer, is_lane] = _Stream(peer, is_lane, sock)
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        for stream in self._streams.values():
            self._selector.register(stream.sock, selectors.EVENT_READ, stream)
        self._thread = threading.Thread(target=self._run, name=f"clary-streams-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread that calls the callbacks."""
        self._thread.start()

    def post(self, peer: int, frame: Frame) -> int:
        """Queue a frame for a peer; return the number of bytes that go through a lane.

        Collectives use the lane if the peer has one.
        """
        lane = self._streams.get((peer, True)) if frame.kind is FrameKind.COLLECTIVE else None
        stream = lane or self._streams[peer, False]
        data = frame.encode()
        self._queue(stream, data)
        return len(data) if lane else 0

    def wake(self) -> None:
        """Make the thread call `before_wait` soon."""
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    def close(self, *, says_goodbye: bool, limit_s: float) -> None:
        """Send queued frames and, if asked, GOODBYE for at most `limit_s`; then end the thread and all streams."""
        if says_goodbye:
            for stream in self._streams.values():
                self._queue(stream, Frame(FrameKind.GOODBYE).encode())
        with self._lock:
            is_empty = not any(stream.outbound for stream in self._streams.values())
        if not is_empty:
            self._flushed.wait(limit_s)
        self._is_ending = True
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _queue(self, stream: _Stream, data: bytes) -> None:
        with self._lock:
            if stream.can_write:
                stream.outbound.append(memoryview(data))
                self._flushed.clear()
        self.wake()

    def _run(self) -> None:
        try:
            while not self._is_ending:
                pause_s = self._callbacks.before_wait()
                for key, events in self._selector.select(pause_s):
                    if key.data is None:
                        with contextlib.suppress(BlockingIOError):
                            while self._woken.recv(4096):
                                pass
                    elif events & selectors.EVENT_READ and self._is_watched(key.data):
                        self._read(key.data)
                self._write_all()
        finally:
            for stream in self._streams.values():
                stream.sock.close()
            self._selector.close()
            self._woken.close()
            self._wake.close()

    def _write_all(self) -> None:
        with self._lock:
            for stream in self._streams.values():
                self._write(stream)
            if not any(stream.outbound for stream in self._streams.values()):
                self._flushed.set()

    def _write(self, stream: _Stream) -> None:
        try:
            while stream.outbound:
                sent = stream.sock.send(stream.outbound[0])
                if sent < len(stream.outbound[0]):
                    stream.outbound[0] = stream.outbound[0][sent:]
                else:
                    stream.outbound.popleft()
        except BlockingIOError:
            pass
        except OSError:  # the peer has ended; reading shows whether it sent GOODBYE
            stream.can_write = False
            stream.outbound.clear()
        self._watch(stream)

    def _is_watched(self, stream: _Stream) -> bool:
        return stream.sock in self._selector.get_map()

    def _watch(self, stream: _Stream) -> None:
        """Register the awaited events of a stream; an ended stream may still be written, but is not watched."""
        if self._is_watched(stream):
            self._selector.modify(
                stream.sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if stream.outbound else 0), stream
            )

    def _read(self, stream: _Stream) -> bool:
        """Read received bytes; return whether more may be available."""
        try:
            more = stream.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            self._end(stream, error.strerror or errno.errorcode.get(error.errno or 0, "error"))
            return False
        if not more:
            self._end(stream, "its connection was closed")
            return False
        stream.inbound += more
        try:
            for frame in stream.take_frames():
                if frame.kind is FrameKind.GOODBYE:
                    stream.has_goodbye = True
                    if all(other.has_goodbye for other in self._streams.values() if other.peer == stream.peer):
                        self._callbacks.on_goodbye(stream.peer)
                else:
                    self._callbacks.on_frame(stream.peer, frame)
        except NoFrame:
            self._end(stream, "it sent bytes that are no message of this protocol")
            return False
        return True

    def _end(self, stream: _Stream, words: str) -> None:
        self._selector.unregister(stream.sock)
        with self._lock:
            stream.can_write = False
            stream.outbound.clear()
        if not stream.has_goodbye:
            for other in self._streams.values():  # the peer may have sent the cause on another stream
                while other.peer == stream.peer and self._is_watched(other) and self._read(other):
                    pass
            self._callbacks.on_loss(stream.peer, words)
