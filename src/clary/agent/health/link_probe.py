"""Measure the link from this host to one peer.

Where: `network_program` runs one per peer at the same time, but for `measure_rate`, which comes last and one peer after
the other, so that no measurement of delay runs beside a burst. Every wait has an end; what was not measured is None.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import statistics
import time
from dataclasses import replace

from clary.agent.health import interfaces
from clary.agent.health.listener import HELLO, LOSS, SIZE, Listener, datagram
from clary.agent.health.readings import DOCTOR_PORT, Answer, LinkReading, NetworkOrder, Peer

_ATTEMPT_S = 0.7  # for one connection; the kernel's own second try comes after 1 s
_NUM_ATTEMPTS = 4  # in vain, before a peer counts as silent
_AGAIN_S = 0.05
_ANSWER_S = 1.5  # for a line on a connection that stands
_NUM_EXCHANGES = 15
_FEWEST_EXCHANGES = 3
_EXCHANGES_S = 0.4
_MOST_DATAGRAMS, _FEWEST_DATAGRAMS = 1000, 200  # to one peer: 5 % of them are 50, give or take 7, and 10 or 3
_ALL_DATAGRAMS = 2000  # to all peers together, as far as the fewest allow
_DATAGRAMS_PER_TURN = 40
_TURN_S = 0.005
_SLOW_MBIT_S = 20.0  # links that are to be slower get fewer datagrams
_NUM_SLOW_DATAGRAMS = 100
_TAIL_S = 0.1  # for the last datagrams to arrive, beyond the round trip
_COPIES = 4  # of each size: a link that loses a fifth would lose all of them once in six hundred times
_SIZES = (1500, 1492, 1480, 1460, 1450, 1420, 1400, 1380, 1340, 1300, 1280, 1200, 1024, 576)
_PORT_S = 1.3  # longer than the kernel's first second try
_BURST_BYTES = 8 * 1024 * 1024
_BURST_CHUNK_BYTES = 64 * 1024
_LONGEST_ROUND_TRIP_MS = 50.0  # a burst as short as ours says nothing of a longer link
_REFUSED_BY_OWN_KERNEL = (errno.ENETUNREACH, errno.EINVAL, errno.EACCES, errno.EPERM, errno.ENODEV, errno.EADDRNOTAVAIL)


class LinkProbe:
    """One link, from here to a peer.

    Args:
        order: of this host.
        peer: the other end.
        listener: of this host; its datagrams count what comes back.
    """

    def __init__(self, order: NetworkOrder, peer: Peer, listener: Listener) -> None:
        self._order = order
        self._peer = peer
        self._listener = listener
        self._place = order.names.index(order.host)
        self._slack_s = peer.round_trip_ms / 1000
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.reading = LinkReading(peer=peer.name, answer=Answer.SILENT)

    async def measure(self) -> None:
        """Fill the reading but for the rate."""
        self._note_route()
        await self._meet()
        if self.reading.answer is not Answer.OPEN:
            return
        try:
            await self._measure_round_trip()
            await asyncio.gather(self._measure_loss(), self._measure_mtu(), self._measure_ports())
        except (OSError, TimeoutError, ValueError) as error:
            self._note(error=f"broke off: {error or type(error).__name__}")

    async def measure_rate(self, seconds: float) -> None:
        """Send as fast as it goes for so long."""
        round_trip_ms = self.reading.round_trip_ms
        if self.reading.answer is not Answer.OPEN or round_trip_ms is None or round_trip_ms > _LONGEST_ROUND_TRIP_MS:
            return
        most_bytes = _BURST_BYTES
        if self._peer.rate_mbit_s is not None:
            most_bytes = min(most_bytes, max(_BURST_CHUNK_BYTES, int(self._peer.rate_mbit_s * 125_000 * seconds)))
        with contextlib.suppress(OSError, TimeoutError, ValueError):
            self._note(rate_mbit_s=await self._burst(most_bytes, seconds))

    async def pass_sum(self, turn: int, number: int) -> None:
        """Hand a number of the collective to the peer; raises OSError or TimeoutError."""
        await self._ask(f"sum {turn} {number}")

    def note_heard(self) -> None:
        """Take down what has come from the peer so far."""
        self._note(num_heard=self._listener.num_heard[self._peer.name])

    def leave(self) -> None:
        """End the conversation."""
        if self._writer is not None:
            self._writer.close()
            self._reader = self._writer = None

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
        """Connect, as soon as the peer's network program is there."""
        began_s = time.monotonic()
        num_vain = 0
        answer = Answer.SILENT
        # Links that are to lose much get more attempts.
        num_attempts = _NUM_ATTEMPTS + round(self._peer.loss_percent / 5)
        while num_vain < num_attempts:
            self._listener.send(datagram(HELLO, place=self._place), self._peer.address)
            try:
                async with asyncio.timeout(_ATTEMPT_S + 2 * self._slack_s):
                    self._reader, self._writer = await self._connect(DOCTOR_PORT)
                await self._ask(f"hello {self._order.host} stay")
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
            self.leave()  # a conversation that began and then said nothing
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
        """Send a line on the standing connection and return the words of the answer."""
        assert self._reader is not None
        assert self._writer is not None
        self._writer.write(f"{line}\n".encode())
        async with asyncio.timeout(_ANSWER_S + 2 * self._slack_s):
            answer = (await self._reader.readline()).decode(errors="replace").split()
        if not answer:
            raise ConnectionResetError(f"{self._peer.name} ended the conversation")
        return answer

    async def _measure_round_trip(self) -> None:
        took_ms: list[float] = []
        end_s = time.monotonic() + _EXCHANGES_S
        while len(took_ms) < _FEWEST_EXCHANGES or (len(took_ms) < _NUM_EXCHANGES and time.monotonic() < end_s):
            began_s = time.monotonic()
            await self._ask("echo x")
            took_ms.append((time.monotonic() - began_s) * 1000)
        self._note(round_trip_ms=round(statistics.median(took_ms), 3))

    async def _measure_loss(self) -> None:
        rate = self._peer.rate_mbit_s
        total = min(_MOST_DATAGRAMS, max(_FEWEST_DATAGRAMS, _ALL_DATAGRAMS // len(self._order.peers)))
        if rate is not None and rate < _SLOW_MBIT_S:
            total = _NUM_SLOW_DATAGRAMS
        for number in range(total):
            self._listener.send(datagram(LOSS, place=self._place, number=number), self._peer.address)
            if number % _DATAGRAMS_PER_TURN == 0:
                await asyncio.sleep(_TURN_S)
        await asyncio.sleep(self._round_trip_s / 2 + _TAIL_S)
        arrived, overrun = (int(word) for word in await self._ask("count"))
        self._note(num_sent=total, num_arrived=arrived, num_overrun=overrun)

    async def _measure_mtu(self) -> None:
        """Find the largest packet that passes, the interface's own size first."""
        largest = interfaces.mtu(self._order.interface)
        if not largest:
            return
        self._note(interface_mtu=largest)
        if not await self._do_pass([largest]):
            await self._do_pass([size for size in (largest, *_SIZES) if size <= largest])
        self._note(passing_mtu=self._listener.passed[self._peer.name])

    async def _do_pass(self, sizes: list[int]) -> bool:
        """Send packets of these sizes; return whether the largest was answered, as soon as that is known."""
        for number in range(_COPIES):
            for size in sizes:
                data = datagram(SIZE, place=self._place, number=number, packet_bytes=size)
                self._listener.send(data, self._peer.address)
        end_s = time.monotonic() + self._round_trip_s + 2 * _TAIL_S
        while time.monotonic() < end_s:
            if self._listener.passed[self._peer.name] >= sizes[0]:
                return True
            await asyncio.sleep(_TURN_S)
        return False

    async def _measure_ports(self) -> None:
        answers = await asyncio.gather(*(self._answers_at(port) for port in self._order.ports for _ in range(2)))
        silent = [port for place, port in enumerate(self._order.ports) if not any(answers[2 * place : 2 * place + 2])]
        self._note(silent_ports=tuple(silent))

    async def _answers_at(self, port: int) -> bool:
        """Whether a port says anything, a refusal included."""
        try:
            async with asyncio.timeout(_PORT_S + 2 * self._slack_s):
                _, writer = await self._connect(port)
        except TimeoutError:
            return False
        except OSError as error:
            return error.errno == errno.ECONNREFUSED
        writer.close()
        return True

    async def _burst(self, most_bytes: int, seconds: float) -> float:
        async with asyncio.timeout(_ATTEMPT_S):
            reader, writer = await self._connect(DOCTOR_PORT)
        try:
            writer.write(f"hello {self._order.host} once\nburst\n".encode())
            began_s = time.monotonic()
            num_sent = 0
            try:
                async with asyncio.timeout(2 * seconds + 3 * self._round_trip_s):
                    while num_sent < most_bytes and time.monotonic() - began_s < seconds:
                        writer.write(bytes(_BURST_CHUNK_BYTES))
                        await writer.drain()
                        num_sent += _BURST_CHUNK_BYTES
                    writer.write_eof()
                    await reader.readline()  # of hello
                    num_bytes, took_s = (float(word) for word in (await reader.readline()).split())
            except TimeoutError:  # what has arrived until now was all that would go
                num_bytes = float(interfaces.bytes_acknowledged(writer.get_extra_info("socket")))
                took_s = time.monotonic() - began_s
            return round(num_bytes * 8 / max(took_s, 1e-6) / 1e6, 1)
        finally:
            writer.transport.abort()

    @property
    def _round_trip_s(self) -> float:
        return (self.reading.round_trip_ms or self._peer.round_trip_ms) / 1000
