"""The network program of one host: joins its network namespace, meets its peers, measures, prints one JSON line.

Run: `python -m clary.agent.health.network_program STARTER`, the pid of what starts it, with a `NetworkOrder` on
standard input. `network_doctor` starts it beside the preparation of the host; it goes on answering peers after its line
until they have finished too, and ends with its starter.

    meet each peer -> delay, loss, MTU, ports at once -> a sum around all hosts, which is also the line that everybody
    has to reach -> rates, one peer after the other -> the line
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping

from clary.agent.health import interfaces
from clary.agent.health.link_probe import LinkProbe
from clary.agent.health.listener import NO_SUM, Listener, datagram
from clary.agent.health.name_check import NameCheck
from clary.agent.health.readings import DOCTOR_PORT, Answer, NetworkOrder, NetworkReading
from clary.agent.host import kernel
from clary.contract.plain import from_plain, to_plain

_SUM_S = 10.0  # for the collective: a peer may be finding out about a third host that is silent, or lossy
_RATES_S = 0.25  # for all bursts of a host together, once for each half of them
_LONGEST_BURST_S = 0.08
_COPIES = 4  # of a datagram that should arrive
_OTHER_INTERFACE_S = 0.5
_MOST_INTERFACES = 4
_LINGER_S = 8.0
_ORPHANED_EXIT_CODE = 3


def main() -> int:
    """Read the order, carry it out, print the reading."""
    kernel.die_with_parent(signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):  # it ended before the kernel was told
        return _ORPHANED_EXIT_CODE
    order = from_plain(NetworkOrder, json.load(sys.stdin))
    _join(order)
    names = NameCheck(order)
    try:
        asyncio.run(_run(order, names))
    finally:
        names.close()
    return 0


async def _run(order: NetworkOrder, names: NameCheck) -> None:
    began_s = time.monotonic()
    taken = tuple(port for port in order.ports if interfaces.is_taken(port))
    listener = Listener(order.names, order.host, port=DOCTOR_PORT, interface=order.interface)
    await listener.open()
    probes = [LinkProbe(order, peer, listener) for peer in order.peers]
    try:
        await asyncio.gather(*(probe.measure() for probe in probes))
        others = asyncio.create_task(_reach_through_others(order))
        total, error = await _sum(order, listener, probes)
        await _measure_rates(order, probes)
        for probe in probes:
            probe.note_heard()
        met = [probe.reading.peer for probe in probes if probe.reading.answer is Answer.OPEN]
        reached = [probe.reading.peer for probe in probes if probe.reading.answer in (Answer.OPEN, Answer.BUSY)]
        found, names_error = await asyncio.to_thread(names.result)
        reading = NetworkReading(
            host=order.host,
            interfaces=interfaces.addresses(),
            reaches={order.interface: tuple(reached), **await others},
            taken_ports=taken,
            names=found,
            names_error=names_error,
            sum=total,
            sum_error=error,
            links=tuple(probe.reading for probe in probes),
            seconds=round(time.monotonic() - began_s, 3),
        )
        print(json.dumps(to_plain(reading)), flush=True)
        for probe in probes:
            probe.leave()
        await _linger(listener, met)
    finally:
        await listener.close()


async def _sum(order: NetworkOrder, listener: Listener, probes: list[LinkProbe]) -> tuple[int | None, str]:
    """Add up the places of all hosts, counted from 1, around a ring; a second turn tells everybody the sum.

    Returns: the sum and nothing, or None and why there is none.
    """
    names = order.names
    place = names.index(order.host)
    by_name = {probe.reading.peer: probe for probe in probes}
    away = [name for name, probe in by_name.items() if probe.reading.answer is not Answer.OPEN]
    if away:
        for peer in order.peers:
            for _ in range(_COPIES):
                listener.send(datagram(NO_SUM, place=place), peer.address)
        return None, f"not tried without {', '.join(away)}"
    following, before = by_name[names[(place + 1) % len(names)]], names[place - 1]
    total = 0
    try:
        async with asyncio.timeout(_SUM_S):
            if place == 0:
                await following.pass_sum(0, 1)
                total = await _next_number(listener)
                await following.pass_sum(1, total)
                await _next_number(listener)
            else:
                await following.pass_sum(0, await _next_number(listener) + place + 1)
                total = await _next_number(listener)
                await following.pass_sum(1, total)
    except _MissingHostError as error:
        return None, f"not tried: {error} cannot reach every host"
    except TimeoutError:
        return None, f"nothing came from {before} within {_SUM_S:g} s"
    except OSError as error:
        return None, f"{following.reading.peer}: {error}"
    return total, ""


class _MissingHostError(Exception):
    """A host that takes no part in the sum."""


async def _next_number(listener: Listener) -> int:
    received = await listener.sums.get()
    if isinstance(received, str):
        raise _MissingHostError(received)
    return received[1]


async def _measure_rates(order: NetworkOrder, probes: list[LinkProbe]) -> None:
    """Measure towards later hosts first, then towards earlier ones: no link has bursts both ways at once."""
    seconds = min(_LONGEST_BURST_S, _RATES_S / len(probes))
    half_s = time.monotonic() + seconds * len(probes)
    place = order.names.index(order.host)
    for probe in probes[place:]:
        await probe.measure_rate(seconds)
    await asyncio.sleep(max(0.0, half_s - time.monotonic()))
    for probe in reversed(probes[:place]):
        await probe.measure_rate(seconds)


async def _reach_through_others(order: NetworkOrder) -> Mapping[str, tuple[str, ...]]:
    """Return the peers that answer through interfaces other than the job's."""
    found = {}
    others = [item for item in interfaces.addresses().items() if item[0] != order.interface][:_MOST_INTERFACES]
    for name, address in others:
        answers = await asyncio.gather(*(_reaches(name, address, peer.address) for peer in order.peers))
        found[name] = tuple(peer.name for peer, answer in zip(order.peers, answers, strict=True) if answer)
    return found


async def _reaches(interface: str, address: str, target: str) -> bool:
    try:
        stream = interfaces.stream_through(interface, address)
    except OSError:
        return False
    with stream, contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_OTHER_INTERFACE_S):
            await asyncio.get_running_loop().sock_connect(stream, (target, DOCTOR_PORT))
            return True
    return False


async def _linger(listener: Listener, met: list[str]) -> None:
    """Answer until no peer has anything left to ask."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while not listener.left.issuperset(met):
                listener.has_left.clear()
                await listener.has_left.wait()


def _join(order: NetworkOrder) -> None:
    network = None if order.network_namespace is None else os.open(order.network_namespace, os.O_RDONLY | os.O_CLOEXEC)
    if order.user_namespace is not None:
        user = os.open(order.user_namespace, os.O_RDONLY | os.O_CLOEXEC)
        kernel.join_namespace(user, kind=kernel.CLONE_NEWUSER)
        os.close(user)
    if network is not None:
        kernel.join_namespace(network, kind=kernel.CLONE_NEWNET)
        os.close(network)


if __name__ == "__main__":
    sys.exit(main())
