"""The network doctor in real networks with one defect: it names the link and the cause. Needs root."""

import asyncio
import os
import signal
import socket
import subprocess
import threading
import time
from dataclasses import replace

import pytest
from network_hosts import LocalHosts

from clary.agent.fact_board import FactBoard
from clary.agent.health.link_verdicts import network_findings, port_findings
from clary.agent.health.network_doctor import NetworkDoctor, network_order
from clary.agent.health.readings import NetworkOrder, Peer, PortReading
from clary.agent.host import kernel
from clary.agent.supervisor.host_health import HostHealth
from clary.base.clock import SystemClock
from clary.contract.health import Check, FindingState, HealthAction
from clary.contract.launch_plan import Link, NetworkPlan, Resources
from clary.control.jobs.health import LOPSIDED, diagnose, with_lopsided
from clary.control.settings import Settings
from clary.testing.lab_network import LabLink, LabNetwork
from clary.testing.launch_plans import make_hosts, make_plan

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces of several hosts: needs root"),
]

LINGER_S = 10.0
DEADLINE_S = 30.0
STOPPED_S, RUNNING_S = 0.5, 0.1  # durations of a stop and of a run between stops, as on a busy machine
NUM_STOPS = 12
NUM_TRIES = 5  # tries, of which one must find a busy machine fast for 0.1 s


@pytest.fixture
def examine(tmp_path, capsys):
    """Yield a function that runs every host's network program at once and returns the findings by host.

    `planned` changes the expected values of peers in the orders.
    """
    doctors = []

    def examine_all(network, **planned):
        return examine_orders([order_of(network, host, tmp_path, **planned) for host in network.hosts])

    def examine_orders(orders):
        found = {}

        def run(doctor, order):
            began_s = time.monotonic()
            found[order.host] = network_findings(order, doctor.reading())
            took_s = time.monotonic() - began_s
            with capsys.disabled():
                print(f"\n  {order.host}: verdict after {took_s:.2f} s", end="")
            doctor.wait(LINGER_S)

        threads = []
        for order in orders:
            doctors.append(NetworkDoctor(order))
            threads.append(threading.Thread(target=run, args=(doctors[-1], order)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {order.host: found[order.host] for order in orders}

    examine_all.orders = examine_orders
    examine_all.doctors = doctors
    yield examine_all
    for doctor in doctors:
        doctor.close()


def order_of(network, host, folder, **planned):
    names = tuple(network.hosts)
    peers = tuple(replace(Peer(name=name, address=network.address(name)), **planned) for name in names if name != host)
    return NetworkOrder(
        host=host,
        names=names,
        address=network.address(host),
        interface="eth0",
        peers=peers,
        ports=(7777, 7778),
        hosts_file=str(folder / f"hosts-{host}"),
        network_namespace=network.entry(host)[1].removeprefix("--net="),
    )


def change(network, host, *commands):
    for command in commands:
        subprocess.run([*network.entry(host), *command.split()], check=True)


def bad_of(found):
    return {(item.host, item.peer, item.check): item for item in found if item.state is FindingState.BAD}


def all_bad(findings):
    return {key: item for found in findings.values() for key, item in bad_of(found).items()}


def test_healthy_hosts_reach_each_other_by_name_on_eth0_and_compute_a_sum(examine):
    with LabNetwork(3, LabLink()) as network:
        findings = examine(network)
    assert all_bad(findings) == {}
    assert diagnose(findings) == ()
    for host, found in findings.items():
        states = {item.check: item.state for item in found if item.peer is None}
        assert set(states) == {Check.NAMES, Check.PORT, Check.INTERFACE, Check.COLLECTIVE}
        assert states[Check.NAMES] is states[Check.PORT] is states[Check.INTERFACE] is FindingState.OK
        assert {item.peer for item in found if item.peer is not None} == set(findings) - {host}


def stop_now_and_then(examine, stopped, num_hosts, ending):
    """Once all network programs have started, stop those of some hosts repeatedly, for half a second each time."""
    while len(examine.doctors) < num_hosts and not ending.wait(0.01):
        pass
    processes = [doctor._process for doctor in examine.doctors if doctor._order.host in stopped]
    for turn in range(NUM_STOPS):
        process = processes[turn % len(processes)]
        process.send_signal(signal.SIGSTOP)
        is_over = ending.wait(STOPPED_S)
        process.send_signal(signal.SIGCONT)
        if is_over or ending.wait(RUNNING_S):
            return


@pytest.mark.parametrize("stopped", [("algo-1",), ("algo-1", "algo-2")], ids=["one end", "either end in turn"])
@pytest.mark.parametrize("link", [LabLink(), LabLink(delay_ms=5)], ids=["a bridge", "a switch"])
@pytest.mark.long
def test_a_link_is_not_bad_if_a_program_at_its_end_gets_no_processor_time(examine, stopped, link):
    ending = threading.Event()
    stops = threading.Thread(target=stop_now_and_then, args=(examine, stopped, 2, ending))
    with LabNetwork(2, link) as network:
        stops.start()
        try:
            findings = examine(network, round_trip_ms=2 * link.delay_ms)
        finally:
            ending.set()
            stops.join()
    assert all_bad(findings) == {}
    assert {item.state for found in findings.values() for item in found if item.check is Check.LINK} <= {
        FindingState.OK,
        FindingState.WARN,
    }, "all of it was looked at"


@pytest.mark.long
def test_a_wrong_interface_with_a_better_route_is_named_and_its_host_is_sick(examine):
    with LabNetwork(3, LabLink()) as network:
        change(
            network,
            "algo-1",
            "ip link add docker0 type veth peer name docker1",
            "ip link set docker1 up",
            "ip addr add 10.77.0.100/25 dev docker0",
            "ip link set docker0 up",
        )
        findings = examine(network)
    route = bad_of(findings["algo-1"])["algo-1", "algo-2", Check.ROUTE]
    assert route.words == "leaves by docker0 (10.77.0.100), expected eth0 (10.77.0.1)"
    assert "through eth0 algo-2 answers" in route.cause
    (sick,) = diagnose(findings)
    assert (sick.host, sick.peer) == ("algo-1", None)
    assert "docker0" in sick.reason


def test_a_harmless_interface_without_peers_is_reported_but_not_as_bad(examine):
    with LabNetwork(2, LabLink()) as network:
        change(
            network,
            "algo-2",
            "ip link add docker0 type veth peer name docker1",
            "ip link set docker1 up",
            "ip addr add 172.17.0.1/16 dev docker0",
            "ip link set docker0 up",
        )
        findings = examine(network)
    assert all_bad(findings) == {}
    (interface,) = [item for item in findings["algo-2"] if item.check is Check.INTERFACE]
    assert interface.words == "eth0 reaches all; docker0 (172.17.0.1) reaches none"


def test_a_port_with_dropped_answers_is_distinguished_from_a_refusing_port(examine):
    with LabNetwork(3, LabLink()) as network:
        change(network, "algo-2", "ip rule add ipproto tcp sport 7777 blackhole")
        findings = examine(network)
    bad = all_bad(findings)
    assert set(bad) == {("algo-1", "algo-2", Check.DROP), ("algo-3", "algo-2", Check.DROP)}
    for item in bad.values():
        assert item.words.startswith("port 7777 of algo-2 says nothing")
        assert "drops packets of port 7777" in item.cause
    (sick,) = diagnose(findings)
    assert (sick.host, sick.peer) == ("algo-2", None), "both of its links are bad"


def test_a_hop_that_drops_packets_above_its_mtu_is_found_with_the_size(examine):
    with LabNetwork(3, LabLink()) as network:
        # The switch's port of algo-2 silently drops packets of more than 1280 bytes.
        descriptor = network._network.switch_descriptor
        into_switch = ["nsenter", f"--net=/proc/{os.getpid()}/fd/{descriptor}"]
        subprocess.run([*into_switch, "ip", "link", "set", "p1", "mtu", "1280"], check=True)
        findings = examine(network)
    bad = all_bad(findings)
    assert {key[:2] for key in bad} == {
        ("algo-1", "algo-2"),
        ("algo-2", "algo-1"),
        ("algo-2", "algo-3"),
        ("algo-3", "algo-2"),
    }
    for item in bad.values():
        assert item.check is Check.MTU
        assert item.words == "packets above 1280 bytes vanish, expected 1500 as the interface says"
    assert diagnose(findings)[0].host == "algo-2"


def test_a_link_that_loses_five_percent_is_bad_unless_the_plan_sets_that_loss(examine):
    with LabNetwork(2, LabLink(loss_percent=5)) as network:
        bad = all_bad(examine(network))
        assert ("algo-1", "algo-2", Check.LOSS) in bad
        assert ("algo-2", "algo-1", Check.LOSS) in bad
        assert bad["algo-1", "algo-2", Check.LOSS].words.endswith("datagrams were lost, expected 0 %")
        assert all_bad(examine(network, loss_percent=5.0)) == {}


def test_a_link_with_200_ms_delay_is_bad_unless_the_plan_sets_that_delay(examine):
    with LabNetwork(2, LabLink(delay_ms=100)) as network:
        bad = all_bad(examine(network))
        assert set(bad) == {("algo-1", "algo-2", Check.DELAY), ("algo-2", "algo-1", Check.DELAY)}
        assert bad["algo-1", "algo-2", Check.DELAY].words.startswith("round trip 2")
        assert all_bad(examine(network, round_trip_ms=200.0)) == {}


def test_a_cut_off_host_is_sick_and_the_other_hosts_are_healthy(examine):
    with LabNetwork(3, LabLink()) as network:
        network.set_link("algo-3", up=False)
        findings = examine(network)
    assert bad_of(findings["algo-1"]).keys() == {("algo-1", "algo-3", Check.REACH)}
    (sick,) = diagnose(findings)
    assert (sick.host, sick.peer) == ("algo-3", None)
    assert "2 of its 2 links are bad" in sick.reason


def test_a_link_that_works_in_one_direction_is_reported_with_that_direction(examine):
    with LabNetwork(2, LabLink()) as network:
        # Packets from algo-2 to algo-1 go to a machine that does not exist.
        change(network, "algo-2", "ip neigh replace 10.77.0.1 lladdr 02:00:00:00:00:99 dev eth0 nud permanent")
        findings = examine(network)
    reach = bad_of(findings["algo-2"])["algo-2", "algo-1", Check.REACH]
    assert "but algo-1's packets arrive here" in reach.words
    assert reach.cause.startswith("one way only: what algo-2 sends does not reach algo-1")
    (sick,) = diagnose(findings)
    assert (sick.host, sick.peer) == ("algo-1", "algo-2")
    assert "one way only: what algo-2 sends does not reach algo-1" in sick.reason


@pytest.mark.long
def test_a_blackhole_route_makes_its_own_host_sick(examine):
    with LabNetwork(2, LabLink()) as network:
        change(network, "algo-2", "ip route add blackhole 10.77.0.1/32")
        findings = examine(network)
    assert "the kernel has no way to 10.77.0.1" in bad_of(findings["algo-2"])["algo-2", "algo-1", Check.ROUTE].words
    assert [(sick.host, sick.peer) for sick in diagnose(findings)] == [("algo-2", None)]


def test_a_link_slow_in_one_direction_is_found_by_comparing_both_ends(examine):
    with LabNetwork(2, LabLink()) as network:
        change(network, "algo-2", "tc qdisc add dev eth0 root tbf rate 30mbit burst 32kb latency 20ms")
        for _ in range(NUM_TRIES):
            measured = examine(network)
            rates = {item.host: item.rate_mbit_s or 0.0 for found in measured.values() for item in found if item.peer}
            # A busy machine may be slow in both directions, which gives another finding.
            if rates["algo-2"] >= 20 and rates["algo-1"] > LOPSIDED * rates["algo-2"]:
                break
        findings = with_lopsided(measured)
    (slow,) = [item for item in findings["algo-2"] if item.check is Check.RATE]
    assert (slow.peer, slow.state) == ("algo-1", FindingState.WARN)
    assert "Mbit/s from algo-1 to algo-2" in slow.words


def listen_at(network, host, ports):
    """Listen in a host's namespace, as its program would; the sockets stay there after the thread has ended."""
    sockets = []

    def open_all():
        descriptor = os.open(network.entry(host)[1].removeprefix("--net="), os.O_RDONLY)
        kernel.join_namespace(descriptor, kind=kernel.CLONE_NEWNET)
        os.close(descriptor)
        for port in ports:
            sockets.append(socket.create_server(("0.0.0.0", port)))
            sockets[-1].setblocking(False)

    thread = threading.Thread(target=open_all)  # a namespace is joined per thread
    thread.start()
    thread.join()
    return sockets


def has_visitor(listening):
    try:
        listening.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize("is_lossy", [False, True], ids=["answers at once", "silence at first"])
def test_after_the_port_reading_the_doctor_connects_to_no_port_of_the_job(tmp_path, is_lossy):
    readings, listening, are_ready = {}, [], threading.Barrier(4)
    with LabNetwork(3, LabLink()) as network:
        if is_lossy:  # a silent port, which a later measurement would otherwise probe again
            change(network, "algo-2", "ip rule add ipproto tcp sport 7777 blackhole")

        def run(host):
            doctor = NetworkDoctor(replace(order_of(network, host, tmp_path), pause_s=0.3))
            try:
                ports = doctor.port_reading()
                are_ready.wait(DEADLINE_S)
                are_ready.wait(DEADLINE_S)
                readings[host] = ports, doctor.reading()
                doctor.wait(LINGER_S)
            finally:
                doctor.close()

        threads = [threading.Thread(target=run, args=(host,)) for host in network.hosts]
        for thread in threads:
            thread.start()
        try:
            are_ready.wait(DEADLINE_S)
            for host in network.hosts:
                listening += listen_at(network, host, (7777, 7778))
            are_ready.wait(DEADLINE_S)
        finally:
            for thread in threads:
                thread.join()
        assert not any(has_visitor(one) for one in listening)
        for one in listening:
            one.close()
    assert len(readings) == 3
    silent = {host: dict(ports.silent) for host, (ports, _) in readings.items()}
    missed = {"algo-2": (7777,)} if is_lossy else {}
    assert silent == {"algo-1": missed, "algo-2": {}, "algo-3": missed}
    for _, reading in readings.values():
        assert reading.sum == 6
        assert not reading.taken_ports, "it was free when it was looked at"


def test_port_readings_are_returned_even_if_a_peers_network_program_never_starts(tmp_path):
    with LabNetwork(2, LabLink()) as network:
        doctor = NetworkDoctor(order_of(network, "algo-1", tmp_path))
        try:
            assert doctor.port_reading() == PortReading()
        finally:
            doctor.close()


def test_ports_of_a_cut_off_peer_are_read_without_a_finding_after_a_timeout(tmp_path):
    with LabNetwork(2, LabLink()) as network:
        network.set_link("algo-2", up=False)
        doctor = NetworkDoctor(order_of(network, "algo-1", tmp_path))
        try:
            assert doctor.port_reading() == PortReading(), "that nothing of it answers is told of the link"
            assert ("algo-1", "algo-2", Check.REACH) in bad_of(network_findings(doctor._order, doctor.reading()))
        finally:
            doctor.close()


@pytest.mark.long(20)
def test_another_interface_that_reaches_all_peers_is_named_with_the_ports(examine, tmp_path):
    with LabNetwork(2, LabLink()) as network:
        change(
            network,
            "algo-1",
            "sysctl -qw net.ipv4.conf.all.arp_ignore=1",  # otherwise eth0 answers for the address of eth1
            "ip link add link eth0 name eth1 type macvlan mode bridge",
            "ip addr add 10.77.0.101/25 dev eth1",
            "ip link set eth1 up",
            "ip neigh replace 10.77.0.2 lladdr 02:00:00:00:00:99 dev eth0 nud permanent",  # the address of no machine
        )
        orders = [order_of(network, host, tmp_path) for host in network.hosts]
        findings = examine.orders(orders)
        ports = {doctor._order.host: doctor.port_reading() for doctor in examine.doctors}
    assert ports["algo-1"].better == {"eth1": "10.77.0.101"}
    assert ports["algo-2"].better == {}
    early = {item.check: item for item in port_findings(orders[0], ports["algo-1"])}
    assert early[Check.INTERFACE] == bad_of(findings["algo-1"])["algo-1", None, Check.INTERFACE]
    assert early[Check.INTERFACE].words == "eth0 does not reach all peers, eth1 does"


def test_a_host_whose_network_program_never_starts_is_not_reported_as_sick(examine, tmp_path):
    with LabNetwork(2, LabLink()) as network:
        order = replace(order_of(network, "algo-1", tmp_path), meet_s=1.0)
        doctor = NetworkDoctor(order)
        try:
            found = network_findings(order, doctor.reading())
        finally:
            doctor.close()
    assert bad_of(found) == {}
    (link,) = [item for item in found if item.peer is not None]
    assert link.state is FindingState.SKIPPED
    assert "the network program of algo-2 did not start" in link.words


async def test_links_that_a_job_has_configured_as_slow_are_healthy(examine, tmp_path):
    engine = LocalHosts(Settings(home=str(tmp_path / "home")), "http://127.0.0.1:4570")
    shape = Link(rate_mbit_s=50, delay_ms=60, loss_percent=3)
    hosts = tuple(
        replace(host, resources=Resources(num_cpus=1, memory_bytes=None, link=shape)) for host in make_hosts(2)
    )
    plan = make_plan(hosts=hosts)
    try:
        plan = await engine.launch(plan)
        for host in plan.hosts:
            os.makedirs(f"{plan.work_folder}/{host.name}", exist_ok=True)
        findings = await asyncio.to_thread(examine.orders, [network_order(plan, host) for host in plan.hosts])
    finally:
        await engine.end_attempt("job-1", 1)
    assert all_bad(findings) == {}
    (sums,) = {item.words for found in findings.values() for item in found if item.check is Check.COLLECTIVE}
    assert sums == "sum over 2 hosts"


class FakeLog:
    """Discards the agent's log lines."""

    def say(self, *lines):
        pass


def children():
    own = str(os.getpid())
    listed = subprocess.run(["ps", "-o", "args=", "--ppid", own], capture_output=True, text=True, check=False).stdout
    return [line for line in listed.splitlines() if "network_program" in line]


@pytest.mark.parametrize("action", list(HealthAction))
def test_a_cancelled_check_ends_at_once_and_leaves_no_process(tmp_path, action):
    with LabNetwork(2, LabLink()) as network:
        hosts = tuple(replace(host, address=network.address(host.name)) for host in make_hosts(2))
        paths = {name: network.entry(name)[1].removeprefix("--net=") for name in network.hosts}
        plan = make_plan(
            hosts=hosts,
            network=NetworkPlan(namespace_paths=paths),
            work_folder=str(tmp_path),
            health_checks=True,
            health_action=action,
        )
        board = FactBoard(clock=SystemClock())
        health = HostHealth(plan, host="algo-1", board=board, log=FakeLog())
        check = threading.Thread(target=health.check)
        check.start()  # the peer's program never starts, so the whole check would wait for it
        try:
            end_s = time.monotonic() + DEADLINE_S
            while not children() and time.monotonic() < end_s:
                time.sleep(0.02)
            assert children()
        finally:
            health.abort()
            check.join(DEADLINE_S)
        assert not check.is_alive()
        assert health.close(DEADLINE_S)
        assert children() == []
        states = {item.state for item in board.facts.health}
        assert FindingState.PENDING not in states, "nothing stays under way"
        if action is HealthAction.REPLACE:
            assert states == set(), "nothing is told after the end"
