"""The health of a host in its life: told before it is prepared, watched while it runs, never in the way."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from fake_steps import FakeSteps

from clary.agent.health.host_checks import check_host
from clary.agent.health.host_verdicts import GIB, DiskReading
from clary.agent.supervisor import host_health
from clary.agent.supervisor.fact_board import FactBoard
from clary.agent.supervisor.host_health import HostHealth
from clary.contract.agent_protocol import HostPhase
from clary.contract.clock import SystemClock
from clary.contract.health import Check, FindingState
from clary.contract.launch_plan import Isolation
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


def test_findings_are_told_with_the_phase_prepared_and_the_network_says_why_it_was_not_checked(service, host_of):
    host_of(FakeSteps())
    facts = service.wait_for_phase(HostPhase.PREPARED)
    states = states_of(facts)
    assert set(states) == {"disk", "memory", "clock", "gpu", "names", "port", "interface", "collective"}
    assert states["gpu"] == states["names"] == "skipped"
    (names,) = [item for item in facts.health if item.check is Check.NAMES]
    assert names.words == "hosts share the machine's network (isolation: processes)"
    assert "health" in facts.timings_s
    service.end_attempt()


def test_checks_that_break_do_not_keep_the_host_from_its_work(service, host_of, monkeypatch):
    def breaks(*_args, **_options):
        raise ValueError("a defect")

    monkeypatch.setattr(host_health, "check_host", breaks)
    host_of(FakeSteps())
    assert service.wait_for_phase(HostPhase.PREPARED).health == ()
    service.end_attempt()


def test_a_network_whose_order_cannot_be_made_is_told_as_not_checked(tmp_path, monkeypatch):
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
    """Keeps the agent's own lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, *lines: str) -> None:
        self.lines += lines


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """A host that is looked at every few hundredths of a second; all of it but its disk is well."""
    monkeypatch.setattr("clary.agent.health.host_checks.available_memory", lambda: 50 * GIB)
    monkeypatch.setattr("clary.agent.health.host_checks.clock_offset", lambda _url: (0.0, ""))
    monkeypatch.setattr("clary.agent.health.host_checks._CHECK_S", DEADLINE_S)
    board, log = FactBoard(clock=SystemClock()), FakeLog()
    plan = make_plan(hosts=make_hosts(1), work_folder=str(tmp_path), health_checks=True)
    health = HostHealth(plan, host="algo-1", board=board, log=log, interval_s=0.02)
    yield health, board, log
    health.close()
    assert health.join(DEADLINE_S)


def wait_until(holds) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def disk_of(board):
    return next(item for item in board.facts.health if item.check is Check.DISK)


def test_a_disk_that_fills_up_and_is_emptied_is_told_twice_and_its_numbers_are_not(watched, monkeypatch):
    health, board, log = watched
    free = [50 * GIB]
    num_looks = []

    def read_disk(folder, *, writes):
        num_looks.append(writes)
        free[0] -= 1024**2 if free[0] > GIB else 0
        return DiskReading(folder=str(folder), free_bytes=free[0])

    monkeypatch.setattr("clary.agent.health.host_checks.read_disk", read_disk)
    health.check()
    first = board.facts.health
    health.start()
    wait_until(lambda: len(num_looks) > 4)
    assert board.facts.health is first, "only a change of state is news"
    assert log.lines == []
    free[0] = 1000
    wait_until(lambda: board.facts.notes)  # the last that is told of it
    assert disk_of(board).state is FindingState.BAD
    assert len([line for line in log.lines if line.startswith("health: disk of algo-1: ")]) == 1
    assert board.facts.notes == tuple(log.lines)
    free[0] = 50 * GIB
    wait_until(lambda: disk_of(board).state is FindingState.OK)
    assert len(board.facts.health) == len(first)
    assert num_looks[0] is True, "the speed is measured before the program"
    assert not any(num_looks[1:]), "and not while it runs"


def test_what_the_thorough_checks_found_is_not_taken_back_by_the_quick_ones(watched, monkeypatch):
    health, board, _ = watched
    num_quick_looks = []

    def read_disk(folder, *, writes):
        if writes:
            return DiskReading(folder=str(folder), free_bytes=50 * GIB, written_bytes=100, write_s=1.0)
        num_quick_looks.append(1)
        return DiskReading(folder=str(folder), free_bytes=50 * GIB)

    monkeypatch.setattr("clary.agent.health.host_checks.read_disk", read_disk)
    health.check()
    assert disk_of(board).state is FindingState.WARN
    health.start()
    wait_until(lambda: len(num_quick_looks) > 1)  # the first has been weighed
    health.close()
    assert health.join(DEADLINE_S)
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


def test_a_check_that_breaks_is_told_with_its_error_and_at_once(tmp_path, monkeypatch):
    def breaks():
        raise ValueError("a defect")

    monkeypatch.setattr("clary.agent.health.host_checks.available_memory", breaks)
    monkeypatch.setattr("clary.agent.health.host_checks.clock_offset", lambda _url: (0.0, ""))
    monkeypatch.setattr("clary.agent.health.host_checks._CHECK_S", DEADLINE_S)
    memory = looks_at(make_plan(hosts=make_hosts(1), work_folder=str(tmp_path)), {})[Check.MEMORY]
    assert (memory.state, memory.words) == (FindingState.WARN, "the check broke: ValueError('a defect')")
