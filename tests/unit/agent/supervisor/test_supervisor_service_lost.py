"""A supervisor that loses its service, temporarily or permanently, and the end of the attempt."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from fake_steps import FakeSteps
from host_under_test import LIMITS

from clary.agent.environments.config_files import status_token_file
from clary.agent.supervisor.supervisor import EXIT_FAILED, EXIT_RELEASED
from clary.contract.agent_protocol import HostPhase, OrderKind
from clary.contract.ml_tree import MlTree
from clary.control.settings import Settings
from clary.testing.fake_service import FakeService


def test_a_restarted_service_finds_the_program_running_and_no_line_lost(service: FakeService, host_of) -> None:
    service.lead_through_life()
    host = host_of()
    program = host.program
    for number in range(100):
        program.print(f"line {number}\n")
        if number == 30:
            service.wait_for_text("line 30")
            service.kill()
        if number == 60:
            time.sleep(0.5)
    assert host.exit_code is None
    service.restart()
    service.wait_for_text("line 99")
    program.end(0)
    assert host.join() == EXIT_RELEASED
    assert [text for text in service.texts if text.startswith("line")] == [f"line {number}" for number in range(100)]


def test_the_end_of_a_program_during_an_outage_is_reported_later(service: FakeService, host_of) -> None:
    service.lead_through_life()
    host = host_of()
    program = host.program
    service.kill()
    program.print("last words\n")
    program.end(7)
    time.sleep(0.5)
    service.restart()
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert facts.failure.exit_code == 7
    assert "last words" in service.texts
    assert host.join() == EXIT_RELEASED


def test_the_token_for_reports_is_withdrawn_during_an_outage(service: FakeService, host_of, tmp_path) -> None:
    steps = FakeSteps()
    steps.ml_folder = tmp_path / "ml"
    token = status_token_file(MlTree(steps.ml_folder))
    token.parent.mkdir(parents=True)
    service.lead_through_life()
    host = host_of(steps)
    program = host.program
    for is_away in (True, False):
        if is_away:
            service.kill()
        else:
            service.restart()
        deadline_s = time.monotonic() + 30.0
        while not token.exists() or bool(token.read_bytes()) is is_away:
            assert time.monotonic() < deadline_s, f"the token does not say that the service is away: {is_away}"
            time.sleep(0.02)
    program.end(0)
    assert host.join() == EXIT_RELEASED


def test_lost_answers_repeat_no_order(service: FakeService, host_of) -> None:
    service.lose_answers("orders", 2)
    service.lose_answers("reports", 2)
    service.lead_through_life()
    host = host_of()
    host.program.end(0)
    assert host.join() == EXIT_RELEASED
    assert len(host.steps.uploads) == 1


def test_a_missing_response_does_not_stop_the_reports_of_the_host(service: FakeService, host_of) -> None:
    service.lead_through_life()
    host = host_of()
    program = host.program
    service.swallow_answers("reports")
    program.print("something to report\n")
    service.wait_for("a swallowed answer", lambda service: not service.num_swallowing("reports"))
    num_heard, heard_at_s = len(service.reports), time.monotonic()
    service.wait_for("a report after it", lambda service: len(service.reports) > num_heard)
    assert time.monotonic() - heard_at_s < Settings().host_timeout_s
    program.end(0)
    assert host.join() == EXIT_RELEASED


@pytest.mark.parametrize("is_gone", [False, True])
def test_the_end_of_the_attempt_kills_the_program(service: FakeService, host_of, is_gone: bool) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    host = host_of(FakeSteps(ends_on_sigterm=False))
    program = host.program
    service.end_attempt(is_gone=is_gone)
    assert host.join() == EXIT_RELEASED
    assert program.is_closed


def test_an_orphaned_agent_ends_after_a_limit(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    host = host_of(limits=replace(LIMITS, orphan_s=0.5))
    program = host.program
    service.kill()
    assert host.join() == EXIT_RELEASED
    assert program.is_closed


def test_without_an_assignment_the_agent_exits(service: FakeService, host_of) -> None:
    host = host_of(token="wrong")
    assert host.join() == EXIT_FAILED
    assert service.reports == []


def test_a_service_that_never_answers_ends_the_agent(service: FakeService, host_of) -> None:
    service.kill()
    assert host_of().join() == EXIT_FAILED


def test_a_plan_without_this_host_is_an_error_and_ends_the_agent(service: FakeService, host_of) -> None:
    service.plan = replace(service.plan, hosts=(replace(service.plan.hosts[0], name="algo-9"),))
    host = host_of()
    assert host.join() == EXIT_FAILED
    assert service.facts.failure.fault == "internal"
