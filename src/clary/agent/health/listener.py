"""Server side of a host's network program, to which peers send their measurements.

Where: `network_measuring` opens one listener per host. A TCP connection begins with `hello NAME stay`, or with `hello
NAME once` for a burst. A host whose datagrams cannot be sent from its planned address adds their source: `hello NAME
stay SOURCE`. Each line is answered by one line; after `burst` the sender sends bytes and closes its side before the
answer:

    echo TEXT          -> TEXT
    count              -> loss datagrams from NAME, datagrams that this namespace dropped because of full buffers
                          since the listener was made (before `echo` and `count` are answered, all datagrams in the
                          socket are read: a delay of this process must not count as loss on the link)
    sum ROUND NUMBER   -> ok
    burst              -> number of bytes, seconds from the first byte to the last

Datagrams contain their number and sender; a datagram of the MTU check is answered by a small datagram. A host that
takes no part in the sum announces this by datagram, because it may be unable to connect to a host that waits for it.

Programs of the job, and on a shared network strangers, can send here too. So only the planned names and numbers are
kept, and the number of conversations is limited for each planned address, and for all other addresses together.
Datagrams count only from the planned addresses of the job's hosts, from a source told in a conversation from such an
address, and, if the network translates a host's address, from the address of that host's conversation.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Mapping

from clary.agent.health import interfaces

_DATAGRAM = struct.Struct("!4sBHHI")  # magic, kind, sender's index, size of the packet, number
_MAGIC = b"clhd"
HELLO, LOSS, SIZE, SIZE_ANSWER, NO_SUM = range(5)
HEADERS_BYTES = 28  # IPv4 and UDP
_RECEIVE_BYTES = 4 * 1024 * 1024  # the kernel may grant less
_LARGEST_BYTES = 65536
_END_S = 1.0  # wait for aborted conversations
_PER_TURN = 256  # datagrams read before other tasks run
LOSS_ROUNDS = 3  # rounds of loss datagrams before packets count as lost
MOST_LOSS_DATAGRAMS = 1000  # per round and sender; their numbers go on from round to round
_CONVERSATIONS_PER_HOST = 8  # from its planned address; a peer needs two at a time
_OTHER_CONVERSATIONS_PER_HOST = 4  # from all other addresses together: a network may translate all hosts' addresses
_TRANSLATED = ""  # stands for all addresses that are not planned
_MOST_DIGITS = 20  # of a number in the sum
_MOST_TURNS = 256  # batches read before a line is answered: more than any receive buffer holds


def datagram(kind: int, *, place: int, number: int = 0, packet_bytes: int = 0) -> bytes:
    """Return a datagram; with `packet_bytes`, padded to an IPv4 packet of that size.

    Args:
        kind: `HELLO`, `LOSS`, `SIZE`, `SIZE_ANSWER` or `NO_SUM`.
        place: index of the sender in the job's order of hosts, from 0.
        number: of the datagram among those of its kind.
        packet_bytes: size with headers; 0 for the shortest packet.
    """
    head = _DATAGRAM.pack(_MAGIC, kind, place, packet_bytes, number)
    return head.ljust(packet_bytes - HEADERS_BYTES, b"\0")


class Listener:
    """Answers the peers of one host; counts their datagrams by name and queues their numbers for the sum.

    Args:
        addresses: name -> address of all hosts, in the job's order, which is the same on every host.
        host: this host.
        port: TCP and UDP.
        interface: the interface that receives and sends datagrams.
    """

    def __init__(self, addresses: Mapping[str, str], host: str, *, port: int, interface: str) -> None:
        self._names = tuple(addresses)
        self._address = addresses[host]
        self._addresses = dict(addresses)
        self._known = Counter(addresses.values())
        self._sources: dict[str, str] = {}  # name -> another address from which its datagrams come
        self._met_as_planned: set[str] = set()  # names of conversations from the planned address
        self._num_by_source: Counter[str] = Counter()  # open conversations
        self._place = self._names.index(host)
        self._port = port
        self._interface = interface
        self._datagrams: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._conversations: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._loss_numbers: dict[str, set[int]] = defaultdict(set)
        self._overrun_before = interfaces.datagrams_overrun()
        self.num_heard: dict[str, int] = defaultdict(int)  # datagrams of any kind, by sender
        self.passed: dict[str, int] = defaultdict(int)  # peer -> size of the largest packet that it has answered
        # Round and number, or a host without a part; a whole sum has two numbers, and each host says NO_SUM once.
        self.sums: asyncio.Queue[tuple[int, int] | str] = asyncio.Queue(2 * len(self._names) + 2)
        self._without_sum: set[str] = set()
        self.left: set[str] = set()  # peers that have ended their conversation with this host
        self.has_left = asyncio.Event()  # set whenever a peer ends its conversation

    async def open(self) -> None:
        """Start to answer. Raises: OSError if the port is in use."""
        self._datagrams = interfaces.datagrams_at(self._port, address=self._address, receive_bytes=_RECEIVE_BYTES)
        with contextlib.suppress(OSError):  # a missing interface is reported by the readings
            self._datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self._interface.encode() + b"\0")
        asyncio.get_running_loop().add_reader(self._datagrams.fileno(), self._take_datagrams)
        self._server = await asyncio.start_server(
            self._converse,
            "0.0.0.0",  # noqa: S104 - a namespace that only the job's hosts share
            self._port,
            reuse_address=True,
        )

    def send(self, data: bytes, address: str) -> bool:
        """Send a datagram to a peer; if the kernel refuses it, it is dropped.

        Returns: False if this host's send buffer was full.
        """
        assert self._datagrams is not None
        try:
            self._datagrams.sendto(data, (address, self._port))
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def told_source(self, peer_address: str) -> str:
        """Return the address from which datagrams to a peer come, if it is not this host's planned one; else ""."""
        assert self._datagrams is not None
        if self._datagrams.getsockname()[0] == self._address:
            return ""
        try:
            source = interfaces.source_address(peer_address)
        except OSError:  # no route: no datagram is sent either
            return ""
        return "" if source == self._address else source

    def drain(self) -> None:
        """Read all datagrams that have arrived."""
        for _ in range(_MOST_TURNS):
            if not self._take_datagrams():
                return

    async def close(self) -> None:
        """End all conversations."""
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
        """Read a batch of datagrams; return whether there may be more."""
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
            if sender[0] not in self._known and sender[0] != self._sources.get(name):
                continue
            self.num_heard[name] += 1
            if kind == LOSS and number < LOSS_ROUNDS * MOST_LOSS_DATAGRAMS:
                self._loss_numbers[name].add(number)
            elif kind == SIZE:
                self.send(
                    _DATAGRAM.pack(_MAGIC, SIZE_ANSWER, self._place, len(data) + HEADERS_BYTES, number), sender[0]
                )
            elif kind == NO_SUM and name not in self._without_sum:
                self._without_sum.add(name)
                with contextlib.suppress(asyncio.QueueFull):  # the sum fails anyway, by an earlier entry
                    self.sums.put_nowait(name)
            elif kind == SIZE_ANSWER:
                self.passed[name] = max(self.passed[name], packet_bytes)
        return True

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own_task = asyncio.current_task()
        assert own_task is not None
        peer = (writer.get_extra_info("peername") or (_TRANSLATED,))[0]
        source = peer if peer in self._known else _TRANSLATED
        if self._num_by_source[source] >= self._most_conversations(source):
            writer.transport.abort()
            return
        self._num_by_source[source] += 1
        self._conversations[own_task] = writer
        name, is_conversation = "", False
        try:
            while line := (await reader.readline()).decode(errors="replace").split():
                if line[0] == "hello":
                    if name or line[1] not in self._names:
                        return
                    name, is_conversation = line[1], line[2] == "stay"
                    self._note_source(name, peer, told=line[3] if len(line) > 3 else "")
                    answer = "hello"
                elif line[0] == "echo":
                    self.drain()
                    answer = line[1]
                elif line[0] == "count":
                    self.drain()
                    overrun = interfaces.datagrams_overrun() - self._overrun_before
                    answer = f"{len(self._loss_numbers.get(name, ()))} {overrun}"
                elif line[0] == "sum" and len(line[2]) <= _MOST_DIGITS:
                    self.sums.put_nowait((int(line[1]), int(line[2])))
                    answer = "ok"
                elif line[0] == "burst":
                    answer = await _swallow(reader)
                else:
                    return
                writer.write(f"{answer}\n".encode())
                await writer.drain()
        except (OSError, ValueError, IndexError, asyncio.QueueFull):  # aborted, or a client of another protocol
            pass
        finally:
            self._conversations.pop(own_task)
            self._num_by_source[source] -= 1
            if is_conversation:
                self.left.add(name)
                self.has_left.set()
            writer.close()

    def _most_conversations(self, source: str) -> int:
        if source == _TRANSLATED:
            return _OTHER_CONVERSATIONS_PER_HOST * len(self._names)
        return _CONVERSATIONS_PER_HOST * self._known[source]

    def _note_source(self, name: str, peer: str, *, told: str) -> None:
        """Note where a host's datagrams come from, if not from its planned address.

        A conversation from the planned address proves that the network does not translate it: then only that address
        may name another source, and what a stranger claimed before is forgotten.
        """
        if peer == self._addresses[name]:
            if name not in self._met_as_planned:
                self._met_as_planned.add(name)
                self._sources.pop(name, None)
            if told:
                self._sources[name] = told
        elif peer not in self._known and name not in self._met_as_planned:
            self._sources.setdefault(name, peer)


async def _swallow(reader: asyncio.StreamReader) -> str:
    """Read until the sender closes; return the number of bytes and the seconds from first to last."""
    num_bytes, began_s = 0, 0.0
    while data := await reader.read(1 << 18):
        if not num_bytes:
            began_s = time.monotonic()
        num_bytes += len(data)
    return f"{num_bytes} {time.monotonic() - began_s:.6f}"
