"""A host's health during its life: reported before it is prepared, watched while it runs, never a delay."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_steps import FakeSteps

from clary.agent.fact_board import FactBoard
from clary.agent.health.host_checks import check_host
from clary.agent.health.host_verdicts import GIB, DiskReading
from clary.agent.health.readings import Answer, LinkReading, NetworkReading, PortReading
from clary.agent.supervisor import host_health
from clary.agent.supervisor.host_health import HostHealth
from clary.base.clock import SystemClock
from clary.base.errors import AgentError
from clary.contract.agent_protocol import HostPhase, OrderKind
from clary.contract.health import Check, FindingState, HealthAction
from clary.contract.launch_plan import Isolation, NetworkPlan
from clary.testing.fake_service import FakeService
from clary.testing.launch_plans import make_hosts, make_plan

DEADLINE_S = 20.0


@pytest.fixture
def service(tmp_path: Path):
    folder = str(tmp_path / "jobs" / "job-1" / "1")
    plan = make_plan(work_folder=folder, health_checks=True, isolation=Isolation.PROCESSES)
    with FakeService(plan) as service:
        yield service


def states_of(facts) -> dict[str, str]:
    return {item.check.value: item.state.value for item in facts.health}


def test_findings_are_reported_with_phase_prepared_and_the_network_as_unchecked(service, host_of):
    host_of(FakeSteps())
    facts = service.wait_for_phase(HostPhase.PREPARED)
    states = states_of(facts)
    assert set(states) == {"disk", "memory", "clock", "gpu", "names", "port", "interface", "collective"}
    assert states["gpu"] == states["names"] == "skipped"
    (names,) = [item for item in facts.health if item.check is Check.NAMES]
    assert names.words == "hosts share the machine's network (isolation: processes)"
    assert "health" in facts.timings_s
    service.end_attempt()


def test_failing_checks_do_not_stop_the_host(service, host_of, monkeypatch):
    def breaks(*_args, **_options):
        raise ValueError("a defect")

    monkeypatch.setattr(host_health, "check_host", breaks)
    host_of(FakeSteps())
    assert service.wait_for_phase(HostPhase.PREPARED).health == ()
    service.end_attempt()


def test_a_network_whose_order_cannot_be_made_is_reported_as_unchecked(tmp_path, monkeypatch):
    def breaks(*_args):
        raise ValueError("a defect")

    monkeypatch.setattr(host_health, "network_order", breaks)
    monkeypatch.setattr(host_health.HostHealth, "_why_no_network", lambda _self: "")
    board = FactBoard(clock=SystemClock())
    plan = make_plan(work_folder=str(tmp_path), health_checks=True)
    health = HostHealth(plan, host="algo-1", board=board, log=FakeLog())
    check = threading.Thread(target=health.check, daemon=True)
    check.start()
    check.join(DEADLINE_S)
    assert not check.is_alive()
    (names,) = [item for item in board.facts.health if item.check is Check.NAMES]
    assert (names.state, names.words) == (FindingState.SKIPPED, "a defect")


class FakeLog:
    """Records the agent's own lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, *lines: str) -> None:
        self.lines += lines


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """Return a host that is polled every few hundredths of a second; all its checks but the disk are good."""
    monkeypatch.setattr("clary.agent.health.host_checks.available_memory", lambda: 50 * GIB)
    monkeypatch.setattr("clary.agent.health.host_checks.clock_offset", lambda _url: (0.0, ""))
    monkeypatch.setattr("clary.agent.health.host_checks._CHECK_S", DEADLINE_S)
    board, log = FactBoard(clock=SystemClock()), FakeLog()
    plan = make_plan(hosts=make_hosts(1), work_folder=str(tmp_path), health_checks=True)
    health = HostHealth(plan, host="algo-1", board=board, log=log, interval_s=0.02)
    yield health, board, log
    health.abort()
    assert health.close(DEADLINE_S)


def wait_until(holds) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def check_to_the_end(health, board):
    """Check a host, including the findings for which no program waits."""
    health.check()
    wait_until(lambda: not any(item.state is FindingState.PENDING for item in board.facts.health))


def disk_of(board):
    return next(item for item in board.facts.health if item.check is Check.DISK)


def test_a_disk_is_reported_when_it_fills_and_when_it_empties_and_not_between(watched, monkeypatch):
    health, board, log = watched
    free = [50 * GIB]
    num_looks = []

    def read_disk(folder, *, writes):
        num_looks.append(writes)
        free[0] -= 1024**2 if free[0] > GIB else 0
        return DiskReading(folder=str(folder), free_bytes=free[0])

    monkeypatch.setattr("clary.agent.health.host_checks.read_disk", read_disk)
    check_to_the_end(health, board)
    first = board.facts.health
    health.start()
    wait_until(lambda: len(num_looks) > 4)
    assert board.facts.health is first, "only a change of state is news"
    assert log.lines == []
    free[0] = 1000
    wait_until(lambda: board.facts.notes)  # the note is the last part of the report
    assert disk_of(board).state is FindingState.BAD
    assert len([line for line in log.lines if line.startswith("health: disk of algo-1: ")]) == 1
    assert board.facts.notes == tuple(log.lines)
    free[0] = 50 * GIB
    wait_until(lambda: disk_of(board).state is FindingState.OK)
    assert len(board.facts.health) == len(first)
    assert num_looks[:2] == [False, True], "the program waits for a look, not for the speed"
    assert not any(num_looks[2:]), "which is measured once"


def test_quick_checks_do_not_replace_findings_of_thorough_checks(watched, monkeypatch):
    health, board, _ = watched
    num_quick_looks = []

    def read_disk(folder, *, writes):
        if writes:
            return DiskReading(folder=str(folder), free_bytes=50 * GIB, written_bytes=100, write_s=1.0)
        num_quick_looks.append(1)
        return DiskReading(folder=str(folder), free_bytes=50 * GIB)

    monkeypatch.setattr("clary.agent.health.host_checks.read_disk", read_disk)
    check_to_the_end(health, board)
    assert disk_of(board).state is FindingState.WARN
    num_quick_looks.clear()
    health.start()
    wait_until(lambda: len(num_quick_looks) > 1)  # the first reading was judged
    health.abort()
    assert health.close(DEADLINE_S)
    assert disk_of(board).state is FindingState.WARN


def looks_at(plan, under_way):
    return {item.check: item for item in check_host(plan, plan.hosts[0], under_way, writes=False, computes=False)}


def test_a_check_that_hangs_is_not_begun_again_until_it_has_ended(tmp_path, monkeypatch):
    goes_on, num_begun, under_way = threading.Event(), [], {}

    def hangs():
        num_begun.append(1)
        assert goes_on.wait(DEADLINE_S)
        return 50 * GIB

    monkeypatch.setattr("clary.agent.health.host_checks.available_memory", hangs)
    monkeypatch.setattr("clary.agent.health.host_checks.clock_offset", lambda _url: (0.0, ""))
    monkeypatch.setattr("clary.agent.health.host_checks._CHECK_S", 0.1)
    plan = make_plan(hosts=make_hosts(1), work_folder=str(tmp_path))
    try:
        first, second = (looks_at(plan, under_way)[Check.MEMORY] for _ in range(2))
    finally:
        goes_on.set()
    assert (first.state, first.words) == (FindingState.WARN, "the check did not end within 0.1 s")
    assert (second.state, second.words) == (FindingState.WARN, "the check of before has not ended yet")
    assert len(num_begun) == 1
    under_way[Check.MEMORY].join(DEADLINE_S)
    monkeypatch.setattr("clary.agent.health.host_checks._CHECK_S", DEADLINE_S)
    assert looks_at(plan, under_way)[Check.MEMORY].state is FindingState.OK


def test_a_failing_check_is_reported_with_its_error_at_once(tmp_path, monkeypatch):
    def breaks():
        raise ValueError("a defect")

    monkeypatch.setattr("clary.agent.health.host_checks.available_memory", breaks)
    monkeypatch.setattr("clary.agent.health.host_checks.clock_offset", lambda _url: (0.0, ""))
    monkeypatch.setattr("clary.agent.health.host_checks._CHECK_S", DEADLINE_S)
    memory = looks_at(make_plan(hosts=make_hosts(1), work_folder=str(tmp_path)), {})[Check.MEMORY]
    assert (memory.state, memory.words) == (FindingState.WARN, "the check broke: ValueError('a defect')")


class FakeDoctor:
    """A network program whose readings come from the test: first the ports, then the others; `end` makes it fail."""

    def __init__(self) -> None:
        self.ports: queue.SimpleQueue[PortReading | Exception] = queue.SimpleQueue()
        self.rest: queue.SimpleQueue[NetworkReading | Exception] = queue.SimpleQueue()
        self.is_ended = False

    def port_reading(self) -> PortReading:
        return self._next(self.ports)

    def reading(self) -> NetworkReading:
        return self._next(self.rest)

    def wait(self, _timeout_s: float) -> None:
        pass

    def end(self) -> None:
        self.is_ended = True
        self.ports.put(AgentError("ended"))
        self.rest.put(AgentError("ended"))

    def close(self) -> None:
        pass

    @staticmethod
    def _next(answers):
        answer = answers.get(timeout=DEADLINE_S)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def with_peer(tmp_path, monkeypatch):
    """Return a function that starts a host with a peer, a fake network program and an action."""
    monkeypatch.setattr("clary.agent.health.host_checks.clock_offset", lambda _url: (0.0, ""))
    begun = []

    def begin(action):
        doctor, board, log = FakeDoctor(), FactBoard(clock=SystemClock()), FakeLog()
        monkeypatch.setattr(host_health, "NetworkDoctor", lambda _order: doctor)
        plan = make_plan(
            hosts=make_hosts(2),
            network=NetworkPlan(namespace_paths={"algo-1": "/nowhere", "algo-2": "/nowhere"}),
            work_folder=str(tmp_path),
            health_checks=True,
            health_action=action,
        )
        health = HostHealth(plan, host="algo-1", board=board, log=log)
        check = threading.Thread(target=health.check, daemon=True)
        begun.append((health, check))
        check.start()
        return health, doctor, board, log, check

    yield begin
    for health, check in begun:
        health.abort()
        check.join(DEADLINE_S)
        assert not check.is_alive()
        assert health.close(DEADLINE_S)


def network_states(board):
    return {
        (item.check.value, item.peer): item.state.value
        for item in board.facts.health
        if item.peer is not None or item.check in (Check.NAMES, Check.PORT, Check.INTERFACE, Check.COLLECTIVE)
    }


MEASURED = NetworkReading(
    host="algo-1",
    interfaces={"eth0": "10.0.0.1"},
    reaches={"eth0": ("algo-2",)},
    sum=3,
    links=(LinkReading(peer="algo-2", answer=Answer.OPEN, round_trip_ms=0.2, interface_mtu=1500, passing_mtu=1280),),
)


def test_a_program_waits_for_the_port_check_only_and_later_findings_follow(with_peer):
    health, doctor, board, log, check = with_peer(HealthAction.WARN)
    doctor.ports.put(PortReading(taken=(7778,)))
    check.join(DEADLINE_S)
    assert not check.is_alive(), "the rest has not been measured, and is not waited for"
    assert network_states(board) == {
        ("port", None): "bad",
        ("names", None): "pending",
        ("interface", None): "pending",
        ("collective", None): "pending",
        ("link", "algo-2"): "pending",
    }
    assert [line.split(":")[1] for line in log.lines if "port 7778 is taken" in line] == [" port of algo-1"]
    health.make_way()
    assert not doctor.is_ended, "the program starts, and the measurements go on beside it"
    doctor.rest.put(replace(MEASURED, taken_ports=(7778,)))
    wait_until(lambda: ("mtu", "algo-2") in network_states(board))
    assert network_states(board) == {
        ("port", None): "bad",
        ("names", None): "skipped",
        ("interface", None): "ok",
        ("collective", None): "ok",
        ("mtu", "algo-2"): "bad",
    }
    wait_until(lambda: any("mtu of algo-1 to algo-2" in note for note in board.facts.notes))
    assert len([line for line in log.lines if "port 7778 is taken" in line]) == 1, "told once"


def test_where_sick_hosts_are_replaced_all_findings_are_awaited(with_peer):
    health, doctor, board, _, check = with_peer(HealthAction.REPLACE)
    doctor.ports.put(PortReading())
    assert not health._is_network_known.wait(0.1)
    assert board.facts.health == (), "who is sick is decided by the first that is told"
    doctor.rest.put(MEASURED)
    check.join(DEADLINE_S)
    assert network_states(board)["mtu", "algo-2"] == "bad"
    assert all(item.state is not FindingState.PENDING for item in board.facts.health)
    health.make_way()
    assert doctor.is_ended


def test_measurements_cut_short_by_the_programs_end_count_as_not_checked(with_peer):
    health, doctor, board, log, check = with_peer(HealthAction.WARN)
    doctor.ports.put(PortReading())
    check.join(DEADLINE_S)
    health.ended()
    assert not doctor.is_ended, "peers may still want answers"
    doctor.rest.put(MEASURED)
    assert health.close(DEADLINE_S)
    assert network_states(board)["link", "algo-2"] == "skipped"
    (link,) = [item for item in board.facts.health if item.peer == "algo-2"]
    assert link.words == "the host's program ended before this was known"
    assert log.lines == []


def test_a_failure_after_the_port_check_keeps_the_findings_on_ports(with_peer):
    _, doctor, board, _, check = with_peer(HealthAction.WARN)
    doctor.ports.put(PortReading(silent={"algo-2": (7777,)}))
    check.join(DEADLINE_S)
    doctor.rest.put(AgentError("nothing came"))
    wait_until(lambda: network_states(board)["link", "algo-2"] == "skipped")
    assert network_states(board) == {
        ("port", None): "ok",
        ("drop", "algo-2"): "bad",
        ("names", None): "skipped",
        ("interface", None): "skipped",
        ("collective", None): "skipped",
        ("link", "algo-2"): "skipped",
    }


def test_a_network_program_without_port_readings_is_ended_before_the_start(with_peer, monkeypatch):
    monkeypatch.setattr(host_health, "_NETWORK_S", 0.1)
    _, doctor, board, _, check = with_peer(HealthAction.WARN)
    check.join(DEADLINE_S)
    assert doctor.is_ended, "it could try the ports of programs that run"
    assert network_states(board)["port", None] == "skipped"


def test_a_better_interface_is_found_before_the_program_may_start(with_peer):
    health, doctor, board, _, check = with_peer(HealthAction.WARN)
    assert health.better_interface == ""
    doctor.ports.put(PortReading(better={"eth1": "10.1.0.1"}))
    check.join(DEADLINE_S)
    assert health.better_interface == "eth1"
    assert network_states(board)["interface", None] == "bad"


def test_the_better_interface_is_set_for_the_program_and_logged(service, host_of, monkeypatch):
    monkeypatch.setattr(host_health.HostHealth, "better_interface", "eth1")
    steps = FakeSteps()
    host_of(steps)
    service.wait_for_phase(HostPhase.PREPARED)
    service.order(OrderKind.RUN)
    service.wait_for_phase(HostPhase.RUNNING)
    assert steps.done.index("interface eth1") < steps.done.index("start")
    service.end_attempt()
