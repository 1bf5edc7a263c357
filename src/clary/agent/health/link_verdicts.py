"""Verdicts on a host's network reading: findings with causes. Pure.

Where: `supervisor.host_health` judges the readings of `network_doctor`. A link that the job's plan makes slow, long or
lossy is judged against that plan (`readings.Peer`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from clary.agent.health.readings import Answer, LinkReading, NetworkOrder, NetworkReading, Peer, PortReading
from clary.contract.health import Check, FindingState, HealthFinding

_WARN_DELAY_MS, _BAD_DELAY_MS = 30.0, 100.0  # excess over the planned round trip
_DELAY_SHARE = 0.5  # tolerated excess, as a share of the planned round trip
_WARN_LOSS_PERCENT, _BAD_LOSS_PERCENT = 0.5, 1.5  # excess over the planned loss
_LOSS_SHARE = 1.0  # tolerated excess, as a share of the planned loss: a few hundred datagrams are a small sample
_LOW_RATE_SHARE = 0.25  # share of the planned rate: a burst of a tenth of a second is no benchmark
_LOW_RATE_MBIT_S = 20.0  # limit without a planned rate

_Make = Callable[..., HealthFinding]  # check, state, words, cause

OK, WARN, BAD, SKIPPED = FindingState.OK, FindingState.WARN, FindingState.BAD, FindingState.SKIPPED

UNDER_WAY = "still being looked at"


def network_findings(order: NetworkOrder, reading: NetworkReading) -> tuple[HealthFinding, ...]:
    """Return the findings on one host's network: first on the host, then on its links."""
    peers = {peer.name: peer for peer in order.peers}
    found = [
        _names(order, reading),
        _port(order, reading.taken_ports),
        _interface(order, reading),
        _collective(order, reading),
    ]
    for link in reading.links:
        found += _link(order, peers[link.peer], link)
    return tuple(found)


def port_findings(order: NetworkOrder, reading: PortReading) -> tuple[HealthFinding, ...]:
    """Return the findings on the job's own ports, and pending findings on the other parts of the network."""
    found = [_port(order, reading.taken)]
    found += [_wrong_interface(order, name, address) for name, address in list(reading.better.items())[:1]]
    for peer in order.peers:
        if silent := reading.silent.get(peer.name):
            check, state, words, cause = _silent_ports(silent, peer)
            found.append(
                HealthFinding(check=check, state=state, host=order.host, peer=peer.name, words=words, cause=cause)
            )
    told = {item.check for item in found}
    pending = _beyond_ports(order, FindingState.PENDING, UNDER_WAY)
    return (*found, *(item for item in pending if item.check not in told))


def unmeasured_network(order: NetworkOrder, why: str) -> tuple[HealthFinding, ...]:
    """Return the findings if only the ports were measured."""
    return tuple(_beyond_ports(order, SKIPPED, why))


def unchecked_network(host: str, why: str) -> tuple[HealthFinding, ...]:
    """Return the findings on a host whose network was not checked."""
    checks = (Check.NAMES, Check.PORT, Check.INTERFACE, Check.COLLECTIVE)
    return tuple(HealthFinding(check=check, state=SKIPPED, host=host, words=why) for check in checks)


def _beyond_ports(order: NetworkOrder, state: FindingState, words: str) -> Iterator[HealthFinding]:
    for check in (Check.NAMES, Check.INTERFACE, Check.COLLECTIVE):
        yield HealthFinding(check=check, state=state, host=order.host, words=words)
    for peer in order.peers:
        yield HealthFinding(check=Check.LINK, state=state, host=order.host, peer=peer.name, words=words)


def _names(order: NetworkOrder, reading: NetworkReading) -> HealthFinding:
    host = order.host
    if reading.names is None:
        words = reading.names_error or "not checked"
        return HealthFinding(check=Check.NAMES, state=WARN if reading.names_error else SKIPPED, host=host, words=words)
    expected = {peer.name: peer.address for peer in order.peers} | {host: order.address}
    wrong = [
        f"{name} is {found}, expected {expected[name]}"
        for name, found in reading.names.items()
        if found != expected[name]
    ]
    if wrong:
        cause = "the machine's resolver answers before /etc/hosts (nsswitch.conf), or without it"
        return HealthFinding(check=Check.NAMES, state=BAD, host=host, words="; ".join(wrong), cause=cause)
    return HealthFinding(check=Check.NAMES, state=OK, host=host, words=f"all {len(expected)} names resolve")


def _port(order: NetworkOrder, taken: Sequence[int]) -> HealthFinding:
    if not taken:
        words = f"{', '.join(map(str, order.ports))} free"
        return HealthFinding(check=Check.PORT, state=OK, host=order.host, words=words)
    words = f"port {', '.join(map(str, taken))} is taken, expected free for the ranks to meet"
    cause = f"another program listens in the network of {order.host}"
    return HealthFinding(check=Check.PORT, state=BAD, host=order.host, words=words, cause=cause)


def _interface(order: NetworkOrder, reading: NetworkReading) -> HealthFinding:
    """Return the finding on the job's interface, with a description of other interfaces."""
    host, wanted = order.host, order.interface
    everybody = {peer.name for peer in order.peers}
    if wanted not in reading.interfaces:
        words = f"expected {wanted}, got {', '.join(reading.interfaces) or 'none'}"
        cause = f"{wanted} is missing, down or without an address"
        return HealthFinding(check=Check.INTERFACE, state=BAD, host=host, words=words, cause=cause)
    reach = {name: set(peers) for name, peers in reading.reaches.items()}
    others = [
        f"{name} ({address}) reaches {_all_or_some(reach.get(name, set()), everybody)}"
        for name, address in reading.interfaces.items()
        if name != wanted
    ]
    best = [name for name in reading.interfaces if reach.get(name) == everybody]
    if wanted in best or not best:
        missed = sorted(everybody - reach.get(wanted, set()))
        words = f"{wanted} reaches {'all' if not missed else 'all but ' + ', '.join(missed)}"
        # An unreachable peer is reported as a finding on its link, not on the interface.
        return HealthFinding(check=Check.INTERFACE, state=OK, host=host, words="; ".join([words, *others]))
    return _wrong_interface(order, best[0], reading.interfaces[best[0]])


def _wrong_interface(order: NetworkOrder, better: str, address: str) -> HealthFinding:
    words = f"{order.interface} does not reach all peers, {better} does"
    cause = f"the hosts are joined by {better} ({address}), not by {order.interface}"
    return HealthFinding(check=Check.INTERFACE, state=BAD, host=order.host, words=words, cause=cause)


def _all_or_some(reached: set[str], everybody: set[str]) -> str:
    return "all" if reached == everybody else ", ".join(sorted(reached)) or "none"


def _collective(order: NetworkOrder, reading: NetworkReading) -> HealthFinding:
    expected = sum(range(len(order.names) + 1))
    if reading.sum == expected:
        return HealthFinding(
            check=Check.COLLECTIVE, state=OK, host=order.host, words=f"sum over {len(order.names)} hosts"
        )
    if reading.sum is None:  # effect of a fault that another finding reports
        state = SKIPPED if reading.sum_error.startswith("not tried") else WARN
        return HealthFinding(check=Check.COLLECTIVE, state=state, host=order.host, words=reading.sum_error)
    words = f"the sum over all hosts is {reading.sum}, expected {expected}"
    cause = "what one host sends is not what another gets"
    return HealthFinding(check=Check.COLLECTIVE, state=BAD, host=order.host, words=words, cause=cause)


def _link(order: NetworkOrder, peer: Peer, link: LinkReading) -> Iterator[HealthFinding]:
    """Yield the findings on a link: its faults, or one finding that the link is sound."""
    host = order.host

    def finding(check: Check, state: FindingState, words: str, cause: str = "") -> HealthFinding:
        return HealthFinding(
            check=check,
            state=state,
            host=host,
            peer=peer.name,
            words=words,
            cause=cause,
            rate_mbit_s=link.rate_mbit_s,
        )

    troubles = []
    if link.route_address and link.route_address != order.address:
        way = link.route_interface or "an interface without a name"
        words = f"leaves by {way} ({link.route_address}), expected {order.interface} ({order.address})"
        answer = "answers" if link.answer is Answer.OPEN else "does not answer"
        cause = f"a route of {way} covers {peer.address}; through {order.interface} {peer.name} {answer}"
        troubles.append(finding(Check.ROUTE, BAD, words, cause))
    if link.route_error and link.answer is Answer.OPEN:
        words = f"the kernel has no way to {peer.address}: {link.route_error}; through {order.interface} it answers"
        cause = f"a route of {host} that leads nowhere, or none"
        troubles.append(finding(Check.ROUTE, BAD, words, cause))
    if link.answer is Answer.ABSENT:
        words = f"not checked: the network program of {peer.name} did not start within {link.waited_s:.0f} s"
        yield from [*troubles, finding(Check.LINK, SKIPPED, words)]
        return
    if link.answer is Answer.BUSY:
        words = f"not measured: {peer.name} takes connections, but said nothing on them in {link.waited_s:.1f} s"
        yield from [*troubles, finding(Check.LINK, WARN, words, f"{peer.name} is too busy")]
        return
    if link.answer is not Answer.OPEN:
        yield from [*troubles, _unreachable(order, peer, link, finding)]
        return
    measured = [_drop(link, peer), _mtu(link), _loss(link, peer), _delay(link, peer), _rate(link, peer)]
    troubles += [finding(*trouble) for trouble in measured if trouble is not None]
    if link.error:
        troubles.append(finding(Check.LINK, WARN, f"not all of it was measured: {link.error}"))
    yield from troubles or [finding(Check.LINK, OK, _in_words(link))]


def _unreachable(order: NetworkOrder, peer: Peer, link: LinkReading, finding: _Make) -> HealthFinding:
    if link.answer is Answer.NO_WAY:
        words = f"{order.host} cannot send to {peer.address}: {link.error}"
        cause = f"no route, or one that forbids it, on {order.host}"
        if link.num_heard:
            words += f"; what {peer.name} sends arrives"
            cause += f": the way from {peer.name} works, the way back does not"
        return finding(Check.REACH, BAD, words, cause)
    words = f"no answer from {peer.address} in {link.waited_s:.1f} s"
    cause = f"the link is cut, {peer.name} is gone, or everything is dropped on the way"
    if link.num_heard:
        words += f", but {peer.name}'s packets arrive here"
        cause = f"one way only: what {order.host} sends does not reach {peer.name}, or not by the route that it expects"
    return finding(Check.REACH, BAD, words, cause)


_Trouble = tuple[Check, FindingState, str, str]


def _drop(link: LinkReading, peer: Peer) -> _Trouble | None:
    return _silent_ports(link.silent_ports, peer) if link.silent_ports else None


def _silent_ports(silent: Sequence[int], peer: Peer) -> _Trouble:
    ports = ", ".join(map(str, silent))
    words = f"port {ports} of {peer.name} says nothing, expected an answer or a refusal; another port answers"
    return Check.DROP, BAD, words, f"something drops packets of port {ports}: a firewall rule on either host or between"


def _mtu(link: LinkReading) -> _Trouble | None:
    passes, largest = link.passing_mtu, link.interface_mtu
    if passes is None or passes >= largest:
        return None
    words = f"packets above {passes} bytes vanish, expected {largest} as the interface says"
    if not passes:
        words = f"no packet of 576 to {largest} bytes came back, though connections do"
    return Check.MTU, BAD, words, "a hop with a smaller MTU that does not say so: bulk transfers stall, small ones pass"


def _loss(link: LinkReading, peer: Peer) -> _Trouble | None:
    if link.num_arrived is None or not link.num_sent:
        return None
    lost = link.num_sent - link.num_arrived
    percent, planned = 100 * lost / link.num_sent, peer.loss_percent
    over = percent - planned * (1 + _LOSS_SHARE)
    if over < _WARN_LOSS_PERCENT:
        return None
    words = f"{percent:.1f} % of {link.num_sent} datagrams were lost, expected {planned:g} %"
    if lost <= link.num_overrun:
        return Check.LOSS, WARN, words, f"{peer.name} had no room for them: it was too busy to read"
    return Check.LOSS, BAD if over >= _BAD_LOSS_PERCENT else WARN, words, "the link or a queue on the way drops packets"


def _delay(link: LinkReading, peer: Peer) -> _Trouble | None:
    if link.round_trip_ms is None:
        return None
    planned = peer.round_trip_ms
    over = link.round_trip_ms - planned * (1 + _DELAY_SHARE)
    if over < _WARN_DELAY_MS:
        return None
    words = (
        f"round trip {link.round_trip_ms:.0f} ms, expected {f'{planned:g} ms as planned' if planned else 'below 1 ms'}"
    )
    state = BAD if over >= _BAD_DELAY_MS else WARN
    return Check.DELAY, state, words, "a long way, or a queue on it that is full"


def _rate(link: LinkReading, peer: Peer) -> _Trouble | None:
    # The rate of a link that loses large packets means little, and the loss is already a finding.
    if link.rate_mbit_s is None or (link.passing_mtu or 0) < link.interface_mtu:
        return None
    least = peer.rate_mbit_s * _LOW_RATE_SHARE if peer.rate_mbit_s is not None else _LOW_RATE_MBIT_S
    if link.rate_mbit_s >= least:
        return None
    wanted = f"{peer.rate_mbit_s:g} Mbit/s as planned" if peer.rate_mbit_s is not None else f"{least:g} Mbit/s or more"
    words = f"{link.rate_mbit_s:g} Mbit/s in a short burst, expected {wanted}"
    return Check.RATE, WARN, words, "a limit between the hosts that is not in the plan, or a busy machine"


def _in_words(link: LinkReading) -> str:
    parts = [f"{link.round_trip_ms:.1f} ms" if link.round_trip_ms is not None else ""]
    parts.append(f"{link.rate_mbit_s:.0f} Mbit/s" if link.rate_mbit_s is not None else "")
    parts.append(f"packets of {link.passing_mtu} bytes" if link.passing_mtu else "")
    if link.num_arrived is not None:
        lost = link.num_sent - link.num_arrived
        parts.append(f"{lost} of {link.num_sent} datagrams lost" if lost else "no loss")
    return ", ".join(part for part in parts if part)
