"""Streams between the ranks that together hold one model, with an inbox of received messages.

Where: each process makes a `Links` when its model is partitioned; `server` sends through it and takes messages from its
inbox.

One thread per peer reads messages continuously, so two ranks that send to each other at the same time never block; the
end of a peer's stream shows at once that its process has ended.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clary.train.parallel.pipeline.hand_over import HandOver
from clary.train.parallel.pipeline.messages import HEAD_LENGTH, MAX_HEAD_BYTES, Message, decode, encode

_MOST_BUFFERS = 1024  # maximum number of buffers in one call of sendmsg: IOV_MAX of Linux


class PeerLost(ConnectionError):
    """A peer's stream has ended."""

    def __init__(self, peer: int, words: str) -> None:
        super().__init__(words)
        self.peer = peer


class Links:
    """Sends messages to peers, and queues received ones.

    Args:
        streams: connected, blocking sockets by peer, which this object owns.
        timeout_s: maximum time that a peer may take to read a message.
        hand_over: decides which tensors are lent in GPU memory; None lends no tensors.
    """

    def __init__(
        self, streams: Mapping[int, socket.socket], *, timeout_s: float, hand_over: HandOver | None = None
    ) -> None:
        self._streams = dict(streams)
        self._hand_over = hand_over
        self._locks = {peer: threading.Lock() for peer in streams}
        self._timeout_s = timeout_s
        self._inbox: queue.SimpleQueue[tuple[int, Message | PeerLost]] = queue.SimpleQueue()
        self._is_closed = False
        limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
        for peer, stream in self._streams.items():
            stream.settimeout(None)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            threading.Thread(target=self._read, args=(peer, stream), name=f"clary-link-{peer}", daemon=True).start()

    def send(self, peer: int, message: Message) -> None:
        """Send a message; return once the kernel has copied it, so that tensors may change afterwards.

        Raises: PeerLost if the peer has ended, or does not read.
        """
        stream = self._streams[peer]
        try:
            with self._locks[peer]:
                _send_all(stream, encode(message, self._lend_to(peer)))
        except OSError as error:
            raise PeerLost(peer, f"sending {message.subject.value} failed: {error.strerror or error}") from error

    def receive(self, timeout_s: float) -> tuple[int, Message]:
        """Return the next message from any peer, and the peer.

        Raises: PeerLost; TimeoutError if no message arrives.
        """
        try:
            peer, found = self._inbox.get(timeout=timeout_s) if timeout_s > 0 else self._inbox.get_nowait()
        except queue.Empty:
            raise TimeoutError(f"no message within {timeout_s:g} s") from None
        if isinstance(found, PeerLost):
            self._inbox.put((peer, found))  # queued again: the next calls must fail too
            raise found
        return peer, found

    def close(self) -> None:
        """Close all streams, which peers notice."""
        self._is_closed = True
        for stream in self._streams.values():
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)
            stream.close()

    def _lend_to(self, peer: int) -> Callable[[Any], bytes | None] | None:
        hand_over = self._hand_over
        if hand_over is None:
            return None

        def lend(tensor: Any) -> bytes | None:
            is_lent = tensor.device == hand_over.lender.device and hand_over.is_lent_to(peer, tensor.nbytes)
            return hand_over.lender.lend(tensor) if is_lent else None

        return lend

    def _read(self, peer: int, stream: socket.socket) -> None:
        def fill(buffer: Any) -> None:
            view = memoryview(buffer)
            while view:
                # One call for all bytes: each partial read would take the GIL from the computing thread.
                count = stream.recv_into(view, len(view), socket.MSG_WAITALL)
                if not count:
                    raise EOFError
                view = view[count:]

        borrow = None if self._hand_over is None else self._hand_over.lender.borrow
        length = bytearray(HEAD_LENGTH.size)
        try:
            while True:
                fill(length)
                (num_bytes,) = HEAD_LENGTH.unpack(length)
                if num_bytes > MAX_HEAD_BYTES:
                    raise OSError(f"a message has a head of {num_bytes} bytes, more than the maximum")
                head = bytearray(num_bytes)
                fill(head)
                self._inbox.put((peer, decode(bytes(head), fill, borrow)))
        except EOFError:
            words = "its process has ended"
        except Exception as error:  # noqa: BLE001 - told to whoever waits
            words = f"its stream failed: {error}"
        if not self._is_closed:
            self._inbox.put((peer, PeerLost(peer, words)))


def _send_all(stream: socket.socket, buffers: Sequence[Any]) -> None:
    """Send buffers in order, usually in one call, so that the peer wakes once."""
    left = deque(memoryview(buffer) for buffer in buffers)
    while left:
        count = stream.sendmsg(list(itertools.islice(left, _MOST_BUFFERS)))
        while left and count >= len(left[0]):
            count -= len(left.popleft())
        if count:
            left[0] = left[0][count:]
