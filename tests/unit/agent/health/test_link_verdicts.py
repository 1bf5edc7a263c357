"""Verdicts on measurements of a host's network: bad values, their causes, and limits that the plan itself sets."""

from dataclasses import replace

import pytest

from clary.agent.health.link_verdicts import network_findings
from clary.agent.health.network_doctor import network_order
from clary.agent.health.readings import Answer, LinkReading, NetworkOrder, NetworkReading, Peer
from clary.contract.health import Check, FindingState
from clary.contract.launch_plan import Link, NetworkPlan, Resources
from clary.testing.launch_plans import make_hosts, make_plan

ORDER = NetworkOrder(
    host="algo-1",
    names=("algo-1", "algo-2"),
    address="10.77.0.1",
    interface="eth0",
    peers=(Peer(name="algo-2", address="10.77.0.2"),),
    ports=(7777, 7778),
)
GOOD_LINK = LinkReading(
    peer="algo-2",
    answer=Answer.OPEN,
    waited_s=0.01,
    route_address="10.77.0.1",
    route_interface="eth0",
    round_trip_ms=0.2,
    num_sent=1000,
    num_arrived=1000,
    num_heard=1009,
    interface_mtu=1500,
    passing_mtu=1500,
    rate_mbit_s=4000.0,
)
GOOD = NetworkReading(
    host="algo-1",
    interfaces={"eth0": "10.77.0.1"},
    reaches={"eth0": ("algo-2",)},
    names={"algo-1": "10.77.0.1", "algo-2": "10.77.0.2"},
    sum=3,
    links=(GOOD_LINK,),
)


def judged(*, peer=None, link=None, **changes):
    """Return the findings that are neither OK nor skipped, by check, for a good measurement with changes."""
    order = replace(ORDER, peers=(replace(ORDER.peers[0], **(peer or {})),))
    reading = replace(GOOD, links=(replace(GOOD_LINK, **(link or {})),), **changes)
    return {item.check: item for item in network_findings(order, reading) if item.state is not FindingState.OK}


def test_a_good_link_is_one_finding_with_its_numbers():
    findings = network_findings(ORDER, GOOD)
    assert all(item.state is FindingState.OK for item in findings)
    (link,) = [item for item in findings if item.peer is not None]
    assert (link.host, link.peer, link.check) == ("algo-1", "algo-2", Check.LINK)
    assert link.words == "0.2 ms, 4000 Mbit/s, packets of 1500 bytes, no loss"
    assert link.rate_mbit_s == 4000.0


@pytest.mark.parametrize(
    ("link", "check", "words", "cause"),
    [
        ({"answer": Answer.SILENT, "waited_s": 3.0}, Check.REACH, "no answer from 10.77.0.2 in 3.0 s", "is cut"),
        ({"answer": Answer.SILENT, "num_heard": 0}, Check.REACH, "no answer", "everything is dropped"),
        ({"answer": Answer.SILENT, "num_heard": 4}, Check.REACH, "packets arrive here", "one way only: what algo-1"),
        ({"answer": Answer.NO_WAY, "error": "unreachable"}, Check.REACH, "cannot send to 10.77.0.2", "no route"),
        ({"silent_ports": (7777,)}, Check.DROP, "port 7777 of algo-2 says nothing", "a firewall rule"),
        ({"passing_mtu": 1280}, Check.MTU, "packets above 1280 bytes vanish, expected 1500", "bulk transfers stall"),
        ({"passing_mtu": 0}, Check.MTU, "no packet of 576 to 1500 bytes came back", "smaller MTU"),
        ({"num_arrived": 950}, Check.LOSS, "5.0 % of 1000 datagrams were lost, expected 0 %", "drops packets"),
        ({"round_trip_ms": 200.0}, Check.DELAY, "round trip 200 ms, expected below 1 ms", "a long way"),
        ({"route_address": "10.77.0.100", "route_interface": "docker0"}, Check.ROUTE, "leaves by docker0", "answers"),
        ({"route_address": "", "route_error": "Invalid argument"}, Check.ROUTE, "no way to 10.77.0.2", "leads nowhere"),
    ],
)
def test_a_bad_link_is_reported_with_its_cause(link, check, words, cause):
    heard = {"num_heard": 0} if "answer" in link else {}
    found = judged(link={**heard, **link})
    assert found[check].state is FindingState.BAD
    assert (found[check].host, found[check].peer) == ("algo-1", "algo-2")
    assert words in found[check].words
    assert cause in found[check].cause
    assert set(found) == {check}


@pytest.mark.parametrize(
    ("link", "check"),
    [({"num_arrived": 993}, Check.LOSS), ({"round_trip_ms": 45.0}, Check.DELAY), ({"rate_mbit_s": 9.0}, Check.RATE)],
)
def test_a_minor_defect_of_a_link_is_a_warning(link, check):
    assert judged(link=link)[check].state is FindingState.WARN


def test_datagrams_that_the_peer_had_no_room_for_are_no_fault_of_the_link():
    loss = judged(link={"num_arrived": 900, "num_overrun": 100})[Check.LOSS]
    assert loss.state is FindingState.WARN
    assert "too busy" in loss.cause


@pytest.mark.parametrize(
    ("peer", "link"),
    [
        ({"round_trip_ms": 200.0}, {"round_trip_ms": 203.0}),
        ({"loss_percent": 5.0}, {"num_arrived": 930}),
        ({"rate_mbit_s": 10.0}, {"rate_mbit_s": 9.5}),
    ],
)
def test_limits_that_the_plan_sets_are_no_defects(peer, link):
    assert judged(peer=peer, link=link) == {}


@pytest.mark.parametrize(
    ("peer", "link", "check", "words"),
    [
        ({"round_trip_ms": 10.0}, {"round_trip_ms": 300.0}, Check.DELAY, "expected 10 ms as planned"),
        ({"loss_percent": 1.0}, {"num_arrived": 900}, Check.LOSS, "expected 1 %"),
        ({"rate_mbit_s": 1000.0}, {"rate_mbit_s": 100.0}, Check.RATE, "expected 1000 Mbit/s as planned"),
    ],
)
def test_values_much_worse_than_planned_are_reported_with_both_numbers(peer, link, check, words):
    assert words in judged(peer=peer, link=link)[check].words


def test_a_link_that_drops_large_packets_reports_no_rate():
    assert set(judged(link={"passing_mtu": 1280, "rate_mbit_s": 0.1})) == {Check.MTU}


def test_a_peer_that_never_started_is_skipped_instead_of_bad():
    found = judged(link={"answer": Answer.ABSENT, "waited_s": 20.0})
    assert found[Check.LINK].state is FindingState.SKIPPED
    assert "did not start within 20 s" in found[Check.LINK].words


def test_a_peer_that_accepts_connections_and_sends_nothing_is_busy():
    found = judged(link={"answer": Answer.BUSY, "waited_s": 12.0})
    assert set(found) == {Check.LINK}
    assert found[Check.LINK].state is FindingState.WARN
    assert "algo-2 takes connections, but said nothing on them in 12.0 s" in found[Check.LINK].words
    assert "too busy" in found[Check.LINK].cause


def test_a_name_that_resolves_to_another_address_is_bad():
    found = judged(names={"algo-1": "10.77.0.1", "algo-2": "127.0.1.1"})
    assert found[Check.NAMES].words == "algo-2 is 127.0.1.1, expected 10.77.0.2"


def test_a_port_that_is_taken_is_bad():
    assert "port 7777 is taken" in judged(taken_ports=(7777,))[Check.PORT].words


def test_the_interface_that_reaches_all_peers_is_named_if_the_planned_one_does_not():
    found = judged(interfaces={"eth0": "10.77.0.1", "eth1": "10.88.0.1"}, reaches={"eth0": (), "eth1": ("algo-2",)})
    assert found[Check.INTERFACE].words == "eth0 does not reach all peers, eth1 does"


def test_a_missing_interface_is_bad():
    found = judged(interfaces={"docker0": "172.17.0.1"})
    assert found[Check.INTERFACE].words == "expected eth0, got docker0"


def test_a_wrong_sum_is_bad_and_an_untried_sum_is_skipped():
    assert judged(sum=4)[Check.COLLECTIVE].state is FindingState.BAD
    assert judged(sum=None, sum_error="not tried without algo-2")[Check.COLLECTIVE].state is FindingState.SKIPPED
    assert judged(sum=None, sum_error="nothing came")[Check.COLLECTIVE].state is FindingState.WARN


def test_the_expected_link_is_the_worse_of_both_hosts_shapes():
    shapes = (Link(rate_mbit_s=100, delay_ms=5), Link(rate_mbit_s=50, delay_ms=1, loss_percent=2))
    hosts = tuple(
        replace(host, resources=Resources(num_cpus=1, memory_bytes=None, link=shape))
        for host, shape in zip(make_hosts(2), shapes, strict=True)
    )
    network = NetworkPlan(namespace_paths={"algo-1": "/proc/7/fd/4"}, user_namespace_path="/proc/7/ns/user")
    plan = make_plan(hosts=hosts, network=network)
    order = network_order(plan, plan.hosts[0])
    assert order.peers == (Peer(name="algo-2", address="10.0.0.2", round_trip_ms=10, loss_percent=2, rate_mbit_s=50),)
    assert (order.network_namespace, order.user_namespace) == ("/proc/7/fd/4", "/proc/7/ns/user")
    assert order.ports == (7777, 7778)
