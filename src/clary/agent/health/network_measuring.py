"""The measurements of a host's network program, after the check of the job's own ports.

Where: `network_program` runs it; every line that it prints is one reading as JSON.

    connect to each peer -> delay, loss, MTU and silent ports concurrently -> a sum around all hosts, which is also a
    barrier for all hosts -> rates, one peer after the other -> the reading -> answers to peers that still measure
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping, Sequence

from clary.agent.health import interfaces
from clary.agent.health.link_probe import LinkProbe
from clary.agent.health.listener import NO_SUM, Listener, datagram
from clary.agent.health.name_check import NameCheck
from clary.agent.health.readings import DOCTOR_PORT, Answer, NetworkOrder, NetworkReading, PortReading
from clary.base.async_timeout import timeout
from clary.base.plain import to_plain

_SUM_S = 10.0  # limit of the collective: a peer may be busy with a silent or lossy third host
_RATES_S = 0.25  # for all bursts to later hosts, and again for all bursts to earlier hosts
_LONGEST_BURST_S = 0.08
_COPIES = 4  # copies of a datagram, so that one arrives
_OTHER_INTERFACE_S = 0.5
_MOST_INTERFACES = 4
_LINGER_S = 8.0
_REACHED = (Answer.OPEN, Answer.BUSY, Answer.ABSENT)  # the peer's kernel answers, or even its program


def run(order: NetworkOrder, taken: Sequence[int], unanswered: Mapping[str, Sequence[int]]) -> None:
    """Measure, print the reading, and answer peers until they have finished too.

    Args:
        order: order to the host's network program.
        taken: ports of the job that are in use on this host.
        unanswered: peer -> silent ports of the job. If there are any, they are probed again before the reading of the
            ports is printed; else that reading has been printed already.
    """
    names = NameCheck(order)
    try:
        asyncio.run(_run(order, names, taken, unanswered))
    finally:
        names.close()


async def _run(
    order: NetworkOrder, names: NameCheck, taken: Sequence[int], unanswered: Mapping[str, Sequence[int]]
) -> None:
    began_s = time.monotonic()
    by_name = {order.host: order.address, **{peer.name: peer.address for peer in order.peers}}
    addresses = {name: by_name[name] for name in order.names}
    listener = Listener(addresses, order.host, port=DOCTOR_PORT, interface=order.interface)
    await listener.open()
    probes = [LinkProbe(order, peer, listener, ports=unanswered.get(peer.name, ())) for peer in order.peers]
    try:
        tell_ports = [_tell_ports(order, probes, taken)] if unanswered else []
        await asyncio.gather(*tell_ports, *(probe.measure() for probe in probes))
        others = asyncio.create_task(_reach_through_others(order))
        total, error = await _sum(order, listener, probes)
        await _measure_rates(order, probes)
        for probe in probes:
            probe.note_heard()
        met = [probe.reading.peer for probe in probes if probe.reading.answer is Answer.OPEN]
        reached = [probe.reading.peer for probe in probes if probe.reading.answer in _REACHED]
        found, names_error = await asyncio.to_thread(names.result)
        reading = NetworkReading(
            host=order.host,
            interfaces=interfaces.addresses(),
            reaches={order.interface: tuple(reached), **await others},
            taken_ports=tuple(taken),
            names=found,
            names_error=names_error,
            sum=total,
            sum_error=error,
            links=tuple(probe.reading for probe in probes),
            seconds=round(time.monotonic() - began_s, 3),
        )
        _print(reading)
        for probe in probes:
            probe.leave()
        await _linger(listener, met)
    finally:
        await listener.close()


async def _tell_ports(order: NetworkOrder, probes: Sequence[LinkProbe], taken: Sequence[int]) -> None:
    """Print the reading of the ports once the ports of all peers are known."""
    await asyncio.gather(*(probe.ports_are_known.wait() for probe in probes))
    silent = {probe.reading.peer: probe.reading.silent_ports for probe in probes if probe.reading.silent_ports}
    better = {}
    if not all(probe.reading.answer in _REACHED for probe in probes):
        addresses = interfaces.addresses()
        others = await _reach_through_others(order)
        better = {name: addresses[name] for name, peers in others.items() if len(peers) == len(probes)}
    _print(PortReading(taken=tuple(taken), silent=silent, better=better))


async def _sum(order: NetworkOrder, listener: Listener, probes: list[LinkProbe]) -> tuple[int | None, str]:
    """Sum the indexes of all hosts, from 1, around a ring; a second round sends the sum to all hosts.

    Returns: the sum and "", or None and the reason.
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
        async with timeout(_SUM_S):
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
    """Measure rates to later hosts, then to earlier hosts: no link has bursts in both directions at once."""
    seconds = min(_LONGEST_BURST_S, _RATES_S / len(probes))
    half_s = time.monotonic() + seconds * len(probes)
    place = order.names.index(order.host)
    for probe in probes[place:]:
        await probe.measure_rate(seconds)
    await asyncio.sleep(max(0.0, half_s - time.monotonic()))
    for probe in reversed(probes[:place]):
        await probe.measure_rate(seconds)


async def _reach_through_others(order: NetworkOrder) -> Mapping[str, tuple[str, ...]]:
    """Return interface -> the peers that answer through it, for interfaces other than the job's."""
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
    with stream:
        try:
            async with timeout(_OTHER_INTERFACE_S):
                await asyncio.get_running_loop().sock_connect(stream, (target, DOCTOR_PORT))
        except (OSError, TimeoutError) as error:
            return isinstance(error, ConnectionRefusedError)  # reachable, but its network program does not run yet
    return True


async def _linger(listener: Listener, met: list[str]) -> None:
    """Answer peers until all of them have finished."""
    with contextlib.suppress(TimeoutError):
        async with timeout(_LINGER_S):
            while not listener.left.issuperset(met):
                listener.has_left.clear()
                await listener.has_left.wait()


def _print(reading: PortReading | NetworkReading) -> None:
    print(json.dumps(to_plain(reading)), flush=True)
