"""The answering side of a host's network program, against which peers measure.

Where: `network_program` opens one per host. A TCP connection begins with `hello NAME`, then carries lines, each of
which is answered by one line, except that bytes follow `burst` until the sender's end:

    echo TEXT          -> TEXT
    count              -> loss datagrams from NAME, datagrams that this namespace dropped for lack of room
                          (all datagrams in the socket are read before a line is answered: a delay of this process must
                          not count as loss on the link)
    sum ROUND NUMBER   -> ok
    burst              -> bytes, seconds from the first to the last

Datagrams have a number and their sender; those of the MTU check are answered by a small datagram. A host that takes no
part in the sum says so by datagram, because it may be unable to connect to a host that waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Sequence

from clary.agent.health import interfaces

_DATAGRAM = struct.Struct("!4sBHHI")  # magic, kind, sender's place, size of the packet, number
_MAGIC = b"clhd"
HELLO, LOSS, SIZE, SIZE_ANSWER, NO_SUM = range(5)
HEADERS_BYTES = 28  # IPv4 and UDP
_RECEIVE_BYTES = 4 * 1024 * 1024  # at most the kernel's limit
_LARGEST_BYTES = 65536
_END_S = 1.0  # for aborted conversations
_PER_TURN = 256  # datagrams taken before other tasks get a turn
_MOST_TURNS = 256  # turns in a row, for a line: more than any receive buffer holds


def datagram(kind: int, *, place: int, number: int = 0, packet_bytes: int = 0) -> bytes:
    """Return a datagram; with `packet_bytes`, padded to an IPv4 packet of that size.

    Args:
        kind: `HELLO`, `LOSS`, `SIZE`, `SIZE_ANSWER` or `NO_SUM`.
        place: of the sender in the job's order of hosts, from 0.
        number: of the datagram among those of its kind.
        packet_bytes: headers included; 0 for the shortest.
    """
    head = _DATAGRAM.pack(_MAGIC, kind, place, packet_bytes, number)
    return head.ljust(packet_bytes - HEADERS_BYTES, b"\0")


class Listener:
    """Answers the peers of one host; counts their datagrams by name and queues their numbers for the sum.

    Args:
        names: of all hosts, in the job's order, as every host has them.
        host: this host.
        port: TCP and UDP.
        interface: through which datagrams come and go.
    """

    def __init__(self, names: Sequence[str], host: str, *, port: int, interface: str) -> None:
        self._names = names
        self._place = names.index(host)
        self._port = port
        self._interface = interface
        self._datagrams: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._conversations: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._loss_numbers: dict[str, set[int]] = defaultdict(set)
        self._overrun_before = interfaces.datagrams_overrun()
        self.num_heard: dict[str, int] = defaultdict(int)  # datagrams of any kind, by sender
        self.passed: dict[str, int] = defaultdict(int)  # largest packet that a peer has answered
        self.sums: asyncio.Queue[tuple[int, int] | str] = asyncio.Queue()  # round and number, or a host without a part
        self.left: set[str] = set()  # peers that have had a conversation with this host and have ended it
        self.has_left = asyncio.Event()  # set whenever a peer ends one

    async def open(self) -> None:
        """Begin to answer; raises OSError if the port is taken."""
        self._datagrams = interfaces.datagrams_at(self._port, receive_bytes=_RECEIVE_BYTES)
        with contextlib.suppress(OSError):  # the readings report an interface that does not exist
            self._datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self._interface.encode() + b"\0")
        asyncio.get_running_loop().add_reader(self._datagrams.fileno(), self._take_datagrams)
        self._server = await asyncio.start_server(
            self._converse,
            "0.0.0.0",  # noqa: S104 - a namespace that only the job's hosts share
            self._port,
            reuse_address=True,
        )

    def send(self, data: bytes, address: str) -> bool:
        """Send a datagram to a peer; one that the kernel refuses is lost.

        Returns: whether this host's kernel had room for it.
        """
        assert self._datagrams is not None
        try:
            self._datagrams.sendto(data, (address, self._port))
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def drain(self) -> None:
        """Take every datagram that has arrived."""
        for _ in range(_MOST_TURNS):
            if not self._take_datagrams():
                return

    async def close(self) -> None:
        """End every conversation."""
        if self._server is not None:
            self._server.close()
        for writer in self._conversations.values():
            writer.transport.abort()
        if self._conversations:
            await asyncio.wait(self._conversations, timeout=_END_S)
        if self._datagrams is not None:
            asyncio.get_running_loop().remove_reader(self._datagrams.fileno())
            self._datagrams.close()

    def _take_datagrams(self) -> bool:
        """Take some datagrams; return whether there may be more."""
        assert self._datagrams is not None
        for _ in range(_PER_TURN):
            try:
                data, sender = self._datagrams.recvfrom(_LARGEST_BYTES)
            except OSError:
                return False
            if len(data) < _DATAGRAM.size:
                continue
            magic, kind, place, packet_bytes, number = _DATAGRAM.unpack_from(data)
            if magic != _MAGIC or place >= len(self._names):
                continue
            name = self._names[place]
            self.num_heard[name] += 1
            if kind == LOSS:
                self._loss_numbers[name].add(number)
            elif kind == SIZE:
                self.send(
                    _DATAGRAM.pack(_MAGIC, SIZE_ANSWER, self._place, len(data) + HEADERS_BYTES, number), sender[0]
                )
            elif kind == NO_SUM:
                self.sums.put_nowait(name)
            elif kind == SIZE_ANSWER:
                self.passed[name] = max(self.passed[name], packet_bytes)
        return True

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own_task = asyncio.current_task()
        assert own_task is not None
        self._conversations[own_task] = writer
        name, is_conversation = "", False
        try:
            while line := (await reader.readline()).decode(errors="replace").split():
                if line[0] == "hello":
                    name, is_conversation = line[1], line[2] == "stay"
                    answer = "hello"
                elif line[0] == "echo":
                    self.drain()
                    answer = line[1]
                elif line[0] == "count":
                    self.drain()
                    overrun = interfaces.datagrams_overrun() - self._overrun_before
                    answer = f"{len(self._loss_numbers[name])} {overrun}"
                elif line[0] == "sum":
                    self.sums.put_nowait((int(line[1]), int(line[2])))
                    answer = "ok"
                elif line[0] == "burst":
                    answer = await _swallow(reader)
                else:
                    return
                writer.write(f"{answer}\n".encode())
                await writer.drain()
        except (OSError, ValueError, IndexError):  # aborted, or a client with another protocol
            pass
        finally:
            self._conversations.pop(own_task)
            if is_conversation:
                self.left.add(name)
                self.has_left.set()
            writer.close()


async def _swallow(reader: asyncio.StreamReader) -> str:
    """Read to the sender's end; return the number of bytes and the time that they took."""
    num_bytes, began_s = 0, 0.0
    while data := await reader.read(1 << 18):
        if not num_bytes:
            began_s = time.monotonic()
        num_bytes += len(data)
    return f"{num_bytes} {time.monotonic() - began_s:.6f}"
