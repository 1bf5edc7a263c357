"""A supervisor with fake steps against a FakeService: every phase, and every order that leads through them."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_steps import FakeProgram, FakeSteps

from clary.agent.supervisor.supervisor import EXIT_RELEASED
from clary.base.errors import AgentError, Fault
from clary.contract.agent_protocol import HostPhase, OrderKind, UploadRole
from clary.testing.fake_service import FakeService


def test_a_life_without_trouble(service: FakeService, host_of) -> None:
    service.lead_through_life()
    host = host_of(FakeSteps(channels=["training", "test"]))
    host.program.print("hello\nlast line without end")
    host.program.end(0)
    assert host.join() == EXIT_RELEASED
    assert service.phases == [
        HostPhase.PREPARING,
        HostPhase.PREPARED,
        HostPhase.RUNNING,
        HostPhase.EXITED,
        HostPhase.UPLOADING,
        HostPhase.DONE,
        HostPhase.RELEASED,
    ]
    facts = service.facts
    assert facts.failure is None
    assert [(item.rank, item.exit_code, item.is_consequence) for item in facts.exits] == [(0, 0, False)]
    assert facts.uploaded == ("s3://bucket/model.tar.gz",)
    assert facts.init_pid == FakeProgram.init_pid
    assert facts.not_isolated == FakeProgram.not_isolated
    parts = {"tree", "code", "channel:training", "channel:test", "environment", "start", "program", "upload"}
    assert set(facts.timings_s) == parts
    assert host.steps.uploads == [(UploadRole.LEAD, [])]
    assert service.texts[0] == "clary: there is no distribution"
    assert service.texts[1].startswith("clary: prepared in ")
    assert service.texts[2:4] == ["hello", "last line without end"]
    assert service.texts[4].startswith("clary: the program ended with exit code 0 after ")
    assert [item.line.rank for item in service.lines] == [None, None, 0, 0, None, None]


def test_every_line_is_stored_before_the_exit_is_reported(service: FakeService, host_of) -> None:
    service.lead_through_life()
    host = host_of()
    program = host.program
    service.fail("logs", count=3)
    program.print("".join(f"line {number}\n" for number in range(3_000)))
    program.end(0)
    service.wait_for_phase(HostPhase.EXITED)
    assert sum(text.startswith("line ") for text in service.texts) == 3_000


def test_parts_of_the_preparation_overlap_and_code_waits_for_its_channel(service: FakeService, host_of) -> None:
    service.lead_through_life()
    steps = FakeSteps(channels=["code", "data"], code_channel="code", hold=["channel:data"])
    host = host_of(steps)
    service.wait_for_phase(HostPhase.PREPARING)
    deadline_s = time.monotonic() + 5
    while "environment" not in steps.done and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert steps.done == ["tree", "channel:code", "code", "environment"]
    assert HostPhase.PREPARED not in service.phases
    steps.let_go("channel:data")
    host.program.end(0)


def test_a_prepared_host_plans_its_program_while_it_waits_for_the_order_to_run(service: FakeService, host_of) -> None:
    steps = FakeSteps()
    host_of(steps)
    service.wait_for_phase(HostPhase.PREPARED)
    assert steps.has_planned.wait(5.0)
    assert "start" not in steps.done
    service.end_attempt()


def test_an_agent_does_not_ask_for_the_order_that_its_plan_carries_out(service: FakeService, host_of) -> None:
    service.plan = replace(service.plan, prepare_order=service.order(OrderKind.RUN))
    steps = FakeSteps()
    host_of(steps)
    service.wait_for_phase(HostPhase.PREPARED)
    assert steps.has_planned.wait(5.0)
    assert "start" not in steps.done, "the agent has received the first order"
    service.order(OrderKind.STOP)
    service.wait_for_phase(HostPhase.EXITED)
    service.end_attempt()


@pytest.mark.parametrize("part", ["tree", "code", "channel:data", "environment", "start"])
def test_an_error_in_any_step_is_reported_with_its_fault(service: FakeService, host_of, part: str) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host = host_of(FakeSteps(channels=["data"], errors={part: AgentError("no such thing", fault=Fault.USER)}))
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert (facts.failure.fault, facts.failure.message, facts.exits) == ("user", "no such thing", ())
    assert any("no such thing" in text for text in service.texts)
    assert host.join() == EXIT_RELEASED


def test_a_part_that_fails_does_not_wait_for_the_others(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    error = AgentError("the disk is away", retryable=True)
    steps = FakeSteps(channels=["small", "huge"], hold=["channel:huge"], errors={"channel:small": error})
    host_of(steps)
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert (facts.failure.fault, facts.failure.retryable) == ("infrastructure", True)
    assert steps.given_up.is_set()


def test_an_unexpected_error_in_a_step_is_internal_and_logs_a_traceback(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host = host_of(FakeSteps(errors={"code": ZeroDivisionError("by zero")}))
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert facts.failure.fault == "internal"
    assert "ZeroDivisionError" in facts.failure.message
    host.join()
    agent_log = (Path(service.plan.work_folder) / "algo-1" / "agent.log").read_text()
    assert "Traceback" in agent_log
    assert "fake_steps.py" in agent_log


def test_an_unexpected_error_in_the_supervisor_ends_the_host_without_a_hang(
    service: FakeService, host_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.lead_through_life()
    host = host_of()

    def broken(_program: FakeProgram, _timeout_s: float) -> None:
        raise ZeroDivisionError("by zero")

    program = host.program
    monkeypatch.setattr(FakeProgram, "wait_for_exits", broken)
    program.end(0)
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert facts.failure.fault == "internal"
    monkeypatch.undo()
    assert host.join() == EXIT_RELEASED


def test_an_early_order_to_run_is_kept(service: FakeService, host_of) -> None:
    host = host_of(FakeSteps(hold=["code"]))
    service.order(OrderKind.RUN)
    service.wait_for("order 1 taken up", lambda s: any(report.last_order == 1 for report in s.reports))
    host.steps.let_go("code")
    host.program.end(0)
    service.wait_for_phase(HostPhase.EXITED)
    service.order(OrderKind.RELEASE)


@pytest.mark.parametrize("phase", [HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING, HostPhase.UPLOADING])
def test_release_ends_the_host_in_every_phase(service: FakeService, host_of, phase: HostPhase) -> None:
    if phase is not HostPhase.PREPARED:
        service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    service.order_at(HostPhase.EXITED, OrderKind.UPLOAD, role="lead", staged=[])
    hold = {HostPhase.PREPARING: ["code"], HostPhase.UPLOADING: ["upload"]}.get(phase, [])
    host = host_of(FakeSteps(hold=hold))
    if phase is HostPhase.UPLOADING:
        host.program.end(0)
    service.wait_for_phase(phase)
    service.order(OrderKind.RELEASE)
    assert host.join() == EXIT_RELEASED
