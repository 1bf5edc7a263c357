"""Measurement of the link from this host to one peer.

Where: `network_measuring` runs one probe per peer, all concurrently. `measure_rate` runs last, for one peer at a time,
so that no measurement of delay coincides with a burst. Every wait has a deadline; a value that was not measured is
None.

A busy machine delays both programs and drops packets that it cannot process in time. So a timeout alone proves no
fault: a wait counts only time in which this process could run (`_within`), the peer confirms that it has read all
arrived packets, and bad values are measured again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import TypeVar

from clary.agent.health import interfaces
from clary.agent.health.listener import (
    HELLO,
    LOSS,
    LOSS_ROUNDS,
    MOST_LOSS_DATAGRAMS,
    SIZE,
    Listener,
    datagram,
)
from clary.agent.health.readings import DOCTOR_PORT, Answer, LinkReading, NetworkOrder, Peer
from clary.base.async_timeout import timeout

_ATTEMPT_S = 0.7  # timeout of one connection; the kernel's own retry comes after 1 s
_NUM_ATTEMPTS = 4  # failed attempts before a peer counts as silent
_AGAIN_S = 0.05
_SLICE_S = 0.1  # slice of a wait: a stall of this process counts as at most one slice
_ANSWER_S = 3.0  # timeout of an answer on an open connection
_NUM_EXCHANGES = 15
_FEWEST_EXCHANGES = 5
_EXCHANGES_S = 0.4
# per peer; a loss of 5 % is 50 +- 7 of the former, or 10 +- 3 of the latter
_MOST_DATAGRAMS, _FEWEST_DATAGRAMS = MOST_LOSS_DATAGRAMS, 200
_ALL_DATAGRAMS = 2000  # to all peers together, unless the fewest per peer are more
_DATAGRAMS_PER_TURN = 40
_TURN_S = 0.005
_SLOW_MBIT_S = 20.0  # links with a lower planned rate get fewer datagrams
_NUM_SLOW_DATAGRAMS = 100
_TAIL_S = 0.1  # wait for the last datagrams, in addition to the round trip
_NUM_ROUNDS = LOSS_ROUNDS  # rounds before packets count as lost
_BETWEEN_ROUNDS_S = 0.3  # lets a busy machine recover
_FULL_S = 1.0  # wait for room in this host's send buffer
_NUM_RISES = 10  # maximum number of recounts while datagrams still arrive
_COPIES = 4  # packets per size: a link that loses a fifth loses all four once in six hundred times
_SIZES = (1500, 1492, 1480, 1460, 1450, 1420, 1400, 1380, 1340, 1300, 1280, 1200, 1024, 576)
_PORT_S = 1.3  # longer than the kernel's first retry
_BURST_BYTES = 8 * 1024 * 1024
_BURST_CHUNK_BYTES = 64 * 1024
_LONGEST_ROUND_TRIP_MS = 50.0  # a short burst does not show the rate of a link with more delay
_REFUSED_BY_OWN_KERNEL = (errno.ENETUNREACH, errno.EINVAL, errno.EACCES, errno.EPERM, errno.ENODEV, errno.EADDRNOTAVAIL)

T = TypeVar("T")


class LinkProbe:
    """Probe of one link, from this host to a peer.

    Args:
        order: order to this host's network program.
        peer: the other end.
        listener: of this host; it counts the answers.
        ports: ports of the job at which the peer has not answered yet.
    """

    def __init__(self, order: NetworkOrder, peer: Peer, listener: Listener, *, ports: Sequence[int]) -> None:
        self._order = order
        self._peer = peer
        self._listener = listener
        self._ports = ports
        self._place = order.names.index(order.host)
        self._slack_s = peer.round_trip_ms / 1000
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._asking = asyncio.Lock()  # serializes requests on the connection
        self._num_owed = 0  # outstanding answers
        self.ports_are_known = asyncio.Event()  # set when the job's ports are no longer probed
        self.reading = LinkReading(peer=peer.name, answer=Answer.SILENT)

    async def measure(self) -> None:
        """Fill the reading, except for the rate."""
        try:
            self._note_route()
            await self._meet()
            if self.reading.answer is Answer.OPEN:
                await self._measure_what_stands()
        finally:
            self.ports_are_known.set()

    async def measure_rate(self, seconds: float) -> None:
        """Send as fast as possible for up to `seconds`."""
        round_trip_ms = self.reading.round_trip_ms
        if self.reading.answer is not Answer.OPEN or round_trip_ms is None or round_trip_ms > _LONGEST_ROUND_TRIP_MS:
            return
        most_bytes = _BURST_BYTES
        if self._peer.rate_mbit_s is not None:
            most_bytes = min(most_bytes, max(_BURST_CHUNK_BYTES, int(self._peer.rate_mbit_s * 125_000 * seconds)))
        with contextlib.suppress(OSError, TimeoutError, ValueError):
            self._note(rate_mbit_s=await self._burst(most_bytes, seconds))

    async def pass_sum(self, turn: int, number: int) -> None:
        """Send a partial sum of the collective to the peer. Raises: OSError, TimeoutError."""
        await self._ask(f"sum {turn} {number}")

    def note_heard(self) -> None:
        """Record the number of datagrams received from the peer so far."""
        self._note(num_heard=self._listener.num_heard[self._peer.name])

    def leave(self) -> None:
        """End the conversation."""
        if self._writer is not None:
            self._writer.close()
            self._reader = self._writer = None
            self._num_owed = 0

    async def _measure_what_stands(self) -> None:
        try:
            await self._measure_round_trip()
            # Each measurement runs to its end, even if another fails.
            measured = (self._measure_loss(), self._measure_mtu(), self._measure_ports())
            for outcome in await asyncio.gather(*measured, return_exceptions=True):
                if outcome is not None:
                    raise outcome
        except (OSError, TimeoutError, ValueError) as error:
            self._note(error=f"broke off: {error or type(error).__name__}")

    def _note(self, **changes: object) -> None:
        self.reading = replace(self.reading, **changes)  # type: ignore[arg-type]

    def _note_route(self) -> None:
        try:
            source = interfaces.source_address(self._peer.address)
        except OSError as error:
            self._note(route_error=error.strerror or str(error))
            return
        names = [name for name, address in interfaces.addresses().items() if address == source]
        self._note(route_address=source, route_interface=names[0] if names else "")

    async def _meet(self) -> None:
        """Connect as soon as the peer's network program runs."""
        began_s = time.monotonic()
        num_vain = 0
        answer = Answer.SILENT
        # Links with a high planned loss get more attempts.
        num_attempts = _NUM_ATTEMPTS + round(self._peer.loss_percent / 5)
        while num_vain < num_attempts:
            self._listener.send(datagram(HELLO, place=self._place), self._peer.address)
            has_connected = False
            try:
                self._reader, self._writer = await _within(_ATTEMPT_S + 2 * self._slack_s, self._connect(DOCTOR_PORT))
                has_connected = True
                source = self._listener.told_source(self._peer.address)
                await self._ask(f"hello {self._order.host} stay {source}".rstrip())
                self._note(answer=Answer.OPEN, waited_s=round(time.monotonic() - began_s, 3), error="")
                return
            except ConnectionRefusedError as error:
                answer, words = Answer.ABSENT, str(error)
                if time.monotonic() - began_s > self._order.meet_s:
                    break
            except TimeoutError:
                answer, words, num_vain = Answer.SILENT, "no answer", num_vain + 1
            except OSError as error:
                is_own = error.errno in _REFUSED_BY_OWN_KERNEL
                answer, words, num_vain = (Answer.NO_WAY if is_own else Answer.SILENT), str(error), num_vain + 1
            if has_connected:  # the link carries packets in both directions, even if the peer's program fails
                answer = Answer.BUSY
            self.leave()  # ends a conversation in which the peer sent no answer
            self._note(answer=answer, waited_s=round(time.monotonic() - began_s, 3), error=words)
            await asyncio.sleep(_AGAIN_S)

    async def _connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        stream = interfaces.stream_through(self._order.interface, self._order.address)
        try:
            await asyncio.get_running_loop().sock_connect(stream, (self._peer.address, port))
            return await asyncio.open_connection(sock=stream)
        except BaseException:
            stream.close()
            raise

    async def _ask(self, line: str) -> list[str]:
        """Send a line on the open connection; return the answer, split at blanks."""
        async with self._asking:
            assert self._writer is not None
            self._writer.write(f"{line}\n".encode())
            self._num_owed += 1
            return await _within(_ANSWER_S + 2 * self._slack_s, self._last_answer())

    async def _last_answer(self) -> list[str]:
        """Return the answer to the last line; skip late answers to earlier lines."""
        assert self._reader is not None
        answer: list[str] = []
        while self._num_owed:
            answer = (await self._reader.readline()).decode(errors="replace").split()
            if not answer:
                raise ConnectionResetError(f"{self._peer.name} ended the conversation")
            self._num_owed -= 1
        return answer

    async def _measure_round_trip(self) -> None:
        took_ms: list[float] = []
        end_s = time.monotonic() + _EXCHANGES_S
        while len(took_ms) < _FEWEST_EXCHANGES or (len(took_ms) < _NUM_EXCHANGES and time.monotonic() < end_s):
            began_s = time.monotonic()
            await self._ask("echo x")
            took_ms.append((time.monotonic() - began_s) * 1000)
        self._note(round_trip_ms=round(min(took_ms), 3))

    async def _measure_loss(self) -> None:
        rate = self._peer.rate_mbit_s
        total = min(_MOST_DATAGRAMS, max(_FEWEST_DATAGRAMS, _ALL_DATAGRAMS // len(self._order.peers)))
        if rate is not None and rate < _SLOW_MBIT_S:
            total = _NUM_SLOW_DATAGRAMS
        best = (-1.0, 0, 0, 0)  # share that arrived, sent, arrived, overrun
        for turn in range(_NUM_ROUNDS):
            if turn:
                await asyncio.sleep(_BETWEEN_ROUNDS_S)
            before, overrun_before = await self._count()
            num_sent = await self._send_datagrams(turn * total, total)
            arrived, overrun = await self._count_all(before + num_sent)
            num_arrived = min(arrived - before, num_sent)  # some may be late datagrams of the previous round
            best = max(best, (num_arrived / max(num_sent, 1), num_sent, num_arrived, overrun - overrun_before))
            if 100 * (1 - best[0]) <= self._peer.loss_percent:
                break
        # Stored only now: if the peer becomes silent between rounds, the loss is not confirmed.
        self._note(num_sent=best[1], num_arrived=best[2], num_overrun=best[3])

    async def _send_datagrams(self, first: int, total: int) -> int:
        """Send datagrams numbered from `first` on; return how many this host's kernel accepted."""
        num_sent = 0
        end_s = time.monotonic() + _FULL_S
        for number in range(first, first + total):
            data = datagram(LOSS, place=self._place, number=number)
            has_room = self._listener.send(data, self._peer.address)
            while not has_room and time.monotonic() < end_s:
                await asyncio.sleep(_TURN_S)
                has_room = self._listener.send(data, self._peer.address)
            num_sent += has_room
            if number % _DATAGRAMS_PER_TURN == 0:
                await asyncio.sleep(_TURN_S)
        await asyncio.sleep(self._round_trip_s / 2 + _TAIL_S)
        return num_sent

    async def _count_all(self, expected: int) -> tuple[int, int]:
        """Query the count until all datagrams have arrived, or no more arrive."""
        counted = await self._count()
        for _ in range(_NUM_RISES):
            if counted[0] >= expected:
                break
            await asyncio.sleep(_TAIL_S)
            before, counted = counted, await self._count()
            if counted[0] == before[0]:
                break
        return counted

    async def _count(self) -> tuple[int, int]:
        """Return how many datagrams of this host have arrived, and how many datagrams the peer's kernel has dropped."""
        arrived, overrun = (int(word) for word in await self._ask("count"))
        return arrived, overrun

    async def _measure_mtu(self) -> None:
        """Find the largest packet that passes, beginning with the interface's MTU."""
        largest = interfaces.mtu(self._order.interface)
        if not largest:
            return
        self._note(interface_mtu=largest)
        sizes = [size for size in (largest, *_SIZES) if size <= largest]
        has_passed = await self._do_pass([largest])
        for _ in range(_NUM_ROUNDS):
            if has_passed:
                break
            has_passed = await self._do_pass(sizes)
        self._note(passing_mtu=self._listener.passed[self._peer.name])

    async def _do_pass(self, sizes: list[int]) -> bool:
        """Send packets of these sizes, the largest first; return whether the largest was answered."""
        for number in range(_COPIES):
            for size in sizes:
                data = datagram(SIZE, place=self._place, number=number, packet_bytes=size)
                self._listener.send(data, self._peer.address)
        for _ in range(2):
            end_s = time.monotonic() + self._round_trip_s + _TAIL_S
            while time.monotonic() < end_s:
                if self._listener.passed[self._peer.name] >= sizes[0]:
                    return True
                await asyncio.sleep(_TURN_S)
            # the answer shows that the peer has read all arrived packets, even if it was slow
            await self._ask("echo x")
            self._listener.drain()
        return self._listener.passed[self._peer.name] >= sizes[0]

    async def _measure_ports(self) -> None:
        silent = list(self._ports)
        for _ in range(2):
            answers = await asyncio.gather(*(self._answers_at(port) for port in silent for _ in range(2)))
            silent = [port for place, port in enumerate(silent) if not any(answers[2 * place : 2 * place + 2])]
            if not silent:
                break
            await self._ask("echo x")  # confirms that the peer still answers at another port
        self._note(silent_ports=tuple(silent))
        self.ports_are_known.set()

    async def _answers_at(self, port: int) -> bool:
        """Whether a port answers; a refusal counts as an answer."""
        try:
            _, writer = await _within(_PORT_S + 2 * self._slack_s, self._connect(port))
        except TimeoutError:
            return False
        except OSError as error:
            return error.errno == errno.ECONNREFUSED
        writer.close()
        return True

    async def _burst(self, most_bytes: int, seconds: float) -> float:
        reader, writer = await _within(_ATTEMPT_S, self._connect(DOCTOR_PORT))
        try:
            writer.write(f"hello {self._order.host} once\nburst\n".encode())
            began_s = time.monotonic()
            num_sent = 0
            try:
                async with timeout(2 * seconds + 3 * self._round_trip_s):
                    while num_sent < most_bytes and time.monotonic() - began_s < seconds:
                        writer.write(bytes(_BURST_CHUNK_BYTES))
                        await writer.drain()
                        num_sent += _BURST_CHUNK_BYTES
                    writer.write_eof()
                    await reader.readline()  # the answer to hello
                    num_bytes, took_s = (float(word) for word in (await reader.readline()).split())
            except TimeoutError:  # the bytes acknowledged until now show the link's rate
                num_bytes = float(interfaces.bytes_acknowledged(writer.get_extra_info("socket")))
                took_s = time.monotonic() - began_s
            return round(num_bytes * 8 / max(took_s, 1e-6) / 1e6, 1)
        finally:
            writer.transport.abort()

    @property
    def _round_trip_s(self) -> float:
        return (self.reading.round_trip_ms or self._peer.round_trip_ms) / 1000


async def _within(seconds: float, act: Coroutine[None, None, T]) -> T:
    """Await `act` for `seconds` of time in which this process could run.

    Raises: TimeoutError after that time.
    """
    task = asyncio.ensure_future(act)
    try:
        for _ in range(max(1, round(seconds / _SLICE_S))):
            if (await asyncio.wait({task}, timeout=_SLICE_S))[0]:
                return task.result()
        raise TimeoutError
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
