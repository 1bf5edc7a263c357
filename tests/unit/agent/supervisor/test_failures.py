"""A supervisor's reaction to failed processes: the end of the other processes, and the failure that it reports."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta

import pytest
from fake_steps import FakeSteps

from clary.base.errors import Fault, ObjectStoreError
from clary.contract.agent_protocol import Clue, HostPhase, OrderKind
from clary.testing.fake_service import FakeService


def test_the_first_failure_stops_the_other_processes_of_the_host(service: FakeService, host_of) -> None:
    service.lead_through_life()
    host = host_of(FakeSteps(num_processes=4))
    host.steps.failure_text = "Traceback: boom"
    program = host.program
    program.end(3, rank=2)
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert program.signals == [signal.SIGTERM]
    assert {item.rank: (item.exit_code, item.signal, item.is_consequence) for item in facts.exits} == {
        2: (3, None, False),
        0: (None, 15, True),
        1: (None, 15, True),
        3: (None, 15, True),
    }
    assert (facts.failure.fault, facts.failure.exit_code) == ("algorithm", 3)
    assert facts.failure.message == "rank 2 ended with exit code 3"
    assert facts.failure_file == "Traceback: boom"
    assert any("rank 2 ended with exit code 3: stopping the other 3 processes" in text for text in service.texts)


def test_a_ranks_record_is_reported_though_its_launcher_fails_on_another_host(service: FakeService, host_of) -> None:
    service.lead_through_life()
    host = host_of(FakeSteps(num_processes=1))
    service.wait_for_phase(HostPhase.RUNNING)
    left = Clue(rank=2, at=datetime.now(UTC), text="ValueError: no such column")
    host.steps.records = (left,)
    host.program.end(0, rank=0)
    assert service.wait_for_phase(HostPhase.EXITED).clues == (left,)


def test_a_forged_time_in_a_record_is_clamped_to_the_programs_lifetime(service: FakeService, host_of) -> None:
    service.lead_through_life()
    host = host_of(FakeSteps(num_processes=1))
    begun = datetime.now(UTC)
    host.steps.records = (Clue(rank=0, at=datetime(1, 1, 1, tzinfo=UTC), text="ValueError: no such column"),)
    host.program.end(0, rank=0)
    (clue,) = service.wait_for_phase(HostPhase.EXITED).clues
    assert begun - timedelta(seconds=30) < clue.at <= datetime.now(UTC)


def test_processes_that_ignore_sigterm_are_killed_after_the_fail_fast_grace(
    service: FakeService, host_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clary.agent.supervisor.host_life.FAILURE_GRACE_S", 0.2)
    service.lead_through_life()
    host = host_of(FakeSteps(num_processes=2, ends_on_sigterm=False))
    host.program.end(1, rank=1)
    service.wait_for_phase(HostPhase.EXITED)
    assert host.program.signals == [signal.SIGTERM, signal.SIGKILL]


def test_a_failed_rank_is_reported_before_the_others_have_ended(
    service: FakeService, host_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clary.agent.supervisor.host_life.FAILURE_GRACE_S", 600.0)
    service.lead_through_life()
    host = host_of(FakeSteps(num_processes=2, ends_on_sigterm=False))
    host.program.end(1, rank=1)
    service.wait_for("an exit in the facts", lambda told: told.facts is not None and told.facts.exits)
    told = service.facts
    assert told.phase is HostPhase.RUNNING
    assert [(item.rank, item.exit_code) for item in told.exits] == [(1, 1)]
    service.order(OrderKind.STOP, grace_s=0.1)
    assert len(service.wait_for_phase(HostPhase.EXITED).exits) == 2


def test_a_process_ended_by_a_signal_is_reported_as_a_shell_does(service: FakeService, host_of) -> None:
    service.lead_through_life()
    host = host_of()
    host.program.end(-signal.SIGSEGV)
    failure = service.wait_for_phase(HostPhase.EXITED).failure
    assert (failure.exit_code, failure.message) == (139, "rank 0 was ended by signal 11 (SIGSEGV)")


def test_out_of_memory_is_named(service: FakeService, host_of) -> None:
    service.lead_through_life()
    host = host_of()
    host.program.memory_note = "the limit of 1 GiB was reached"
    host.program.end(-signal.SIGKILL)
    failure = service.wait_for_phase(HostPhase.EXITED).failure
    assert (failure.exit_code, failure.message) == (137, "OutOfMemory: the limit of 1 GiB was reached")
    assert "clary: OutOfMemory: the limit of 1 GiB was reached" in service.texts


def test_out_of_memory_that_the_program_survived_is_reported_too(service: FakeService, host_of) -> None:
    service.lead_through_life()
    host = host_of()
    host.program.memory_note = "the limit of 1 GiB was reached"
    host.program.end(0)
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert [item.exit_code for item in facts.exits] == [0]
    assert facts.failure.message == "OutOfMemory: the limit of 1 GiB was reached"


def test_a_failure_holds_the_error_that_the_failed_process_printed(service: FakeService, host_of) -> None:
    service.lead_through_life()
    host = host_of(FakeSteps(num_processes=2))
    host.program.print("rank 0 is fine\n", rank=0)
    host.program.print("Traceback (most recent call last):\n  File\nValueError: no such thing\nbye", rank=1)
    host.program.end(1, rank=1)
    failure = service.wait_for_phase(HostPhase.EXITED).failure
    assert (failure.exit_code, failure.message) == (1, "rank 1 ended with exit code 1: ValueError: no such thing")


def test_a_full_disk_is_named_first(service: FakeService, host_of) -> None:
    service.lead_through_life()
    host = host_of()
    host.program.disk_note = "the disk is full"
    host.program.end(1)
    failure = service.wait_for_phase(HostPhase.EXITED).failure
    assert (failure.fault, failure.message) == ("algorithm", "the disk is full: rank 0 ended with exit code 1")


def test_a_program_that_ends_well_on_a_full_disk_gets_a_note(service: FakeService, host_of) -> None:
    service.lead_through_life()
    host = host_of()
    host.program.disk_note = "the disk is full"
    host.program.end(0)
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert facts.failure is not None, "a full disk is a failure that says so"
    assert (facts.failure.fault, facts.failure.message) == ("user", "the disk is full: results may be incomplete")
    assert facts.notes == ("the disk is full: results may be incomplete",)
    assert "clary: the disk is full: results may be incomplete" in service.texts


def test_an_error_outside_the_processes_is_the_cause(service: FakeService, host_of) -> None:
    service.lead_through_life()
    host = host_of()
    host.program.broken = ObjectStoreError("the pipe's data is gone", fault=Fault.USER)
    host.program.send_signal(signal.SIGKILL)
    failure = service.wait_for_phase(HostPhase.EXITED).failure
    assert (failure.fault, failure.message, failure.exit_code) == ("user", "the pipe's data is gone", None)
