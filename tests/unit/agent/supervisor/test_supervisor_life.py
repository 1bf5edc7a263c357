"""A supervisor with fake steps against a FakeService: every phase, every order, every way to end."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fake_steps import FakeProgram, FakeSteps

from clary.agent.service_client import AgentAddress, ServiceClient
from clary.agent.supervisor import program_watch
from clary.agent.supervisor.supervisor import EXIT_FAILED, EXIT_RELEASED, EXIT_TERMINATED, Limits, Supervisor
from clary.contract.agent_protocol import Clue, HostPhase, OrderKind, StagedPart, UploadRole
from clary.contract.errors import AgentError, Fault, ObjectStoreError
from clary.contract.plain import to_plain
from clary.testing.fake_service import FakeService
from clary.testing.launch_plans import make_plan

LIMITS = Limits(heartbeat_s=0.1, terminated_grace_s=0.3, drain_s=2.0, last_report_s=0.3, assignment_s=0.4)


class HostUnderTest:
    """One supervisor in a thread of its own."""

    def __init__(self, service: FakeService, steps: FakeSteps, *, limits: Limits = LIMITS, token: str = "") -> None:
        self.service = service
        self.steps = steps
        address = AgentAddress(service_url=service.url, job=service.plan.job_name, attempt=1, host="algo-1")
        client = ServiceClient(address, token=token or service.token)
        self.supervisor = Supervisor(client, host="algo-1", make_steps=lambda plan, host: steps, limits=limits)
        self.exit_code: int | None = None
        self._thread = threading.Thread(target=self._run, name="host-under-test", daemon=True)
        self._thread.start()

    @property
    def program(self) -> FakeProgram:
        self.service.wait_for_phase(HostPhase.RUNNING)
        assert self.steps.program is not None
        return self.steps.program

    def join(self, timeout_s: float = 15.0) -> int:
        self._thread.join(timeout_s)
        assert self.exit_code is not None, "the supervisor did not return"
        return self.exit_code

    def _run(self) -> None:
        self.exit_code = self.supervisor.run()


@pytest.fixture
def service(tmp_path: Path):
    plan = make_plan(work_folder=str(tmp_path / "jobs" / "job-1" / "1"), warnings=("there is no distribution",))
    with FakeService(plan) as service:
        yield service


@pytest.fixture
def host_of(service: FakeService):
    threads_before = set(threading.enumerate())
    descriptors_before = open_descriptors()
    hosts: list[HostUnderTest] = []

    def build(steps: FakeSteps | None = None, **changes: object) -> HostUnderTest:
        hosts.append(HostUnderTest(service, steps or FakeSteps(), **changes))
        return hosts[-1]

    yield build
    for host in hosts:
        host.join()
        assert host.steps.is_closed or host.exit_code == EXIT_FAILED or host.steps.program is None
        if host.steps.program is not None:
            assert host.steps.program.is_closed
    service.kill()
    # Threads and descriptors of the fake service end a moment after it.
    deadline_s = time.monotonic() + 5
    while time.monotonic() < deadline_s and (
        set(threading.enumerate()) - threads_before or open_descriptors() - descriptors_before
    ):
        time.sleep(0.01)
    assert set(threading.enumerate()) - threads_before == set()
    assert open_descriptors() - descriptors_before == set()


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


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
    assert [(item.rank, item.exit_code, item.killed_by_agent) for item in facts.exits] == [(0, 0, False)]
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


@pytest.mark.parametrize("part", ["tree", "code", "channel:data", "environment", "start"])
def test_an_error_in_any_step_is_told_with_its_fault(service: FakeService, host_of, part: str) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host = host_of(FakeSteps(channels=["data"], errors={part: AgentError("no such thing", fault=Fault.USER)}))
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert (facts.failure.fault, facts.failure.message, facts.exits) == ("user", "no such thing", ())
    assert any("no such thing" in text for text in service.texts)
    assert host.join() == EXIT_RELEASED


def test_a_part_that_fails_does_not_wait_for_the_others(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    error = ObjectStoreError("the object store is away", retryable=True)
    steps = FakeSteps(channels=["small", "huge"], hold=["channel:huge"], errors={"channel:small": error})
    host_of(steps)
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert (facts.failure.fault, facts.failure.retryable) == ("infrastructure", True)
    assert steps.given_up.is_set()


def test_a_defect_in_a_step_is_ours_and_leaves_a_traceback(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host = host_of(FakeSteps(errors={"code": ZeroDivisionError("by zero")}))
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert facts.failure.fault == "internal"
    assert "ZeroDivisionError" in facts.failure.message
    host.join()
    agent_log = (Path(service.plan.work_folder) / "algo-1" / "agent.log").read_text()
    assert "Traceback" in agent_log
    assert "fake_steps.py" in agent_log


def test_a_defect_in_the_supervisor_ends_the_host_and_never_hangs(
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


def test_the_first_failure_stops_the_other_processes_of_the_host(service: FakeService, host_of) -> None:
    service.lead_through_life()
    host = host_of(FakeSteps(num_processes=4))
    host.steps.failure_text = "Traceback: boom"
    program = host.program
    program.end(3, rank=2)
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert program.signals == [signal.SIGTERM]
    assert {item.rank: (item.exit_code, item.signal, item.killed_by_agent) for item in facts.exits} == {
        2: (3, None, False),
        0: (None, 15, True),
        1: (None, 15, True),
        3: (None, 15, True),
    }
    assert (facts.failure.fault, facts.failure.exit_code) == ("algorithm", 3)
    assert facts.failure.message == "rank 2 ended with exit code 3"
    assert facts.failure_file == "Traceback: boom"
    assert any("rank 2 ended with exit code 3: stopping the other 3 processes" in text for text in service.texts)


def test_what_a_rank_left_is_told_though_the_launcher_that_started_it_fails_on_another_host(
    service: FakeService, host_of
) -> None:
    service.lead_through_life()
    host = host_of(FakeSteps(num_processes=1))
    left = Clue(rank=2, at=datetime(2026, 1, 1, tzinfo=UTC), text="ValueError: no such column")
    host.steps.records = (left,)
    host.program.end(0, rank=0)
    assert service.wait_for_phase(HostPhase.EXITED).clues == (left,)


def test_processes_that_ignore_sigterm_are_killed_after_the_fail_fast_grace(
    service: FakeService, host_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clary.agent.supervisor.host_life.FAILURE_GRACE_S", 0.2)
    service.lead_through_life()
    host = host_of(FakeSteps(num_processes=2, ends_on_sigterm=False))
    host.program.end(1, rank=1)
    service.wait_for_phase(HostPhase.EXITED)
    assert host.program.signals == [signal.SIGTERM, signal.SIGKILL]


def test_a_failed_rank_is_told_while_the_others_have_not_ended(
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


def test_a_process_ended_by_a_signal_is_told_as_a_shell_would(service: FakeService, host_of) -> None:
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


def test_out_of_memory_that_the_program_survived_is_told_too(service: FakeService, host_of) -> None:
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


def test_what_broke_beside_the_processes_is_the_cause(service: FakeService, host_of) -> None:
    service.lead_through_life()
    host = host_of()
    host.program.broken = ObjectStoreError("the pipe's data is gone", fault=Fault.USER)
    host.program.send_signal(signal.SIGKILL)
    failure = service.wait_for_phase(HostPhase.EXITED).failure
    assert (failure.fault, failure.message, failure.exit_code) == ("user", "the pipe's data is gone", None)


@pytest.mark.parametrize("part", ["tree", "code", "channel:data", "environment"])
def test_a_stop_while_preparing_gives_up_every_part(service: FakeService, host_of, part: str) -> None:
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    steps = FakeSteps(channels=["data"], hold=[part])
    host = host_of(steps)
    service.wait_for_phase(HostPhase.PREPARING)
    service.order(OrderKind.STOP, grace_s=120.0, reason="StopTrainingJob")
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert (facts.exits, facts.failure) == ((), None)
    assert steps.given_up.is_set()
    assert host.join() == EXIT_RELEASED
    assert any("stopped before the program was started (StopTrainingJob)" in text for text in service.texts)


def test_a_stop_while_prepared_never_starts_the_program(service: FakeService, host_of) -> None:
    host = host_of()
    service.wait_for_phase(HostPhase.PREPARED)
    service.order(OrderKind.STOP, grace_s=120.0)
    service.wait_for_phase(HostPhase.EXITED)
    service.order(OrderKind.RUN)
    service.order(OrderKind.RELEASE)
    assert host.join() == EXIT_RELEASED
    assert host.steps.program is None


def test_a_stop_while_running_signals_everybody_and_ends_early(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    host = host_of(FakeSteps(num_processes=2))
    program = host.program
    started_s = time.monotonic()
    service.order(OrderKind.STOP, grace_s=60.0, reason="why")
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert time.monotonic() - started_s < 3.0
    assert program.signals == [signal.SIGTERM]
    assert [(item.signal, item.killed_by_agent) for item in facts.exits] == [(15, True), (15, True)]
    assert facts.failure is None
    assert "clary: stopping the program (why): SIGTERM now, SIGKILL in 60 s" in service.texts
    service.order(OrderKind.RELEASE)


def test_the_notice_of_a_stop_lies_there_before_anybody_is_signalled(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host = host_of(FakeSteps(ends_on_sigterm=False))
    assert host.program.signals == []
    service.order(OrderKind.STOP, grace_s=60.0, reason="why")
    service.order(OrderKind.STOP, grace_s=90.0, reason="would extend it")
    service.order(OrderKind.STOP, grace_s=0.1, reason="shortens it")
    service.wait_for_phase(HostPhase.EXITED)
    assert host.steps.announced == [("why", 60.0, []), ("shortens it", 0.1, [signal.SIGTERM])]


def test_a_stop_goes_on_when_its_notice_cannot_be_written(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host = host_of(FakeSteps(errors={"announce": OSError(28, "No space left on device")}))
    program = host.program
    service.order(OrderKind.STOP, grace_s=60.0)
    service.wait_for_phase(HostPhase.EXITED)
    assert program.signals == [signal.SIGTERM]
    assert any("the notice of the stop could not be written" in text for text in service.texts)


def test_what_outlives_the_grace_is_killed(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host = host_of(FakeSteps(ends_on_sigterm=False))
    program = host.program
    service.order(OrderKind.STOP, grace_s=0.2)
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert program.signals == [signal.SIGTERM, signal.SIGKILL]
    assert [(item.signal, item.killed_by_agent) for item in facts.exits] == [(9, True)]


def test_a_second_stop_can_shorten_the_grace_but_not_extend_it(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host = host_of(FakeSteps(ends_on_sigterm=False))
    program = host.program
    service.order(OrderKind.STOP, grace_s=60.0)
    service.order(OrderKind.STOP, grace_s=0.1)
    service.order(OrderKind.STOP, grace_s=90.0)
    service.wait_for_phase(HostPhase.EXITED)
    assert program.signals == [signal.SIGTERM, signal.SIGKILL]


def test_a_program_that_ends_well_after_sigterm_keeps_its_exit_code(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host = host_of(FakeSteps(ends_on_sigterm=False))
    program = host.program
    service.order(OrderKind.STOP, grace_s=60.0)
    service.wait_for("SIGTERM", lambda _: program.signals)
    program.print("saved\n")
    program.end(0)
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert [(item.exit_code, item.killed_by_agent) for item in facts.exits] == [(0, True)]
    assert "saved" in service.texts


def test_a_stop_waits_for_what_the_processes_have_started(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host = host_of()
    program = host.program
    program.num_orphans = 1
    service.order(OrderKind.STOP, grace_s=60.0)
    service.wait_for("SIGTERM", lambda _: program.signals)
    time.sleep(0.3)
    assert HostPhase.EXITED not in service.phases
    program.num_orphans = 0
    service.wait_for_phase(HostPhase.EXITED)


def test_processes_beyond_killing_do_not_hold_the_host(
    service: FakeService, host_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_watch, "KILL_TIMEOUT_S", 0.2)
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host = host_of()
    program = host.program
    program.send_signal = program.signals.append
    service.order(OrderKind.STOP, grace_s=0.1)
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert "left behind" in facts.notes[0]


def test_a_stop_after_the_exit_changes_nothing(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    host = host_of()
    host.program.end(0)
    service.wait_for_phase(HostPhase.EXITED)
    service.order(OrderKind.STOP, grace_s=1.0)
    service.order(OrderKind.UPLOAD, role="stage", staged=[])
    service.wait_for_phase(HostPhase.DONE)
    service.order(OrderKind.RELEASE)
    assert host.join() == EXIT_RELEASED
    assert service.facts.failure is None


def test_an_order_to_run_that_comes_early_is_kept(service: FakeService, host_of) -> None:
    host = host_of(FakeSteps(hold=["code"]))
    service.order(OrderKind.RUN)
    service.wait_for("order 1 taken up", lambda s: any(report.last_order == 1 for report in s.reports))
    host.steps.let_go("code")
    host.program.end(0)
    service.wait_for_phase(HostPhase.EXITED)
    service.order(OrderKind.RELEASE)


def test_upload_passes_staged_parts_and_reports_what_was_written(service: FakeService, host_of) -> None:
    part = StagedPart(host="algo-2", kind="model", uri="s3://bucket/part", size_bytes=5, num_files=1)
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    service.order_at(HostPhase.EXITED, OrderKind.UPLOAD, role="lead", staged=[to_plain(part)])
    service.order_at(HostPhase.DONE, OrderKind.RELEASE)
    steps = FakeSteps()
    steps.uploaded = replace(steps.uploaded, staged=(part,))
    host = host_of(steps)
    host.program.end(0)
    facts = service.wait_for_phase(HostPhase.DONE)
    assert steps.uploads == [(UploadRole.LEAD, [part])]
    assert facts.staged == (part,)


def test_results_that_cannot_be_written_are_a_failure_of_the_job(service: FakeService, host_of) -> None:
    service.lead_through_life()
    host = host_of(FakeSteps(errors={"upload": ObjectStoreError("bucket is gone", fault=Fault.USER)}))
    host.program.end(0)
    facts = service.wait_for_phase(HostPhase.DONE)
    assert (facts.failure.fault, facts.failure.message, facts.uploaded) == ("user", "bucket is gone", ())


def test_the_first_cause_stays_the_cause_when_the_upload_fails_as_well(service: FakeService, host_of) -> None:
    service.lead_through_life()
    host = host_of(FakeSteps(errors={"upload": ObjectStoreError("bucket is gone")}))
    host.program.end(2)
    facts = service.wait_for_phase(HostPhase.DONE)
    assert (facts.failure.fault, facts.failure.exit_code) == ("algorithm", 2)
    assert facts.notes == ("results could not be uploaded: bucket is gone",)


def test_an_order_to_upload_that_cannot_be_read_ends_the_host(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    service.order_at(HostPhase.EXITED, OrderKind.UPLOAD, role="dance")
    service.order_at(HostPhase.DONE, OrderKind.RELEASE)
    host = host_of()
    host.program.end(0)
    facts = service.wait_for_phase(HostPhase.DONE)
    assert facts.failure.fault == "internal"
    assert host.join() == EXIT_RELEASED


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


def test_a_program_that_ends_while_the_service_is_away_is_told_later(service: FakeService, host_of) -> None:
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


def test_lost_answers_repeat_no_order(service: FakeService, host_of) -> None:
    service.lose_answers("orders", 2)
    service.lose_answers("reports", 2)
    service.lead_through_life()
    host = host_of()
    host.program.end(0)
    assert host.join() == EXIT_RELEASED
    assert len(host.steps.uploads) == 1


@pytest.mark.parametrize("is_gone", [False, True])
def test_the_end_of_the_attempt_kills_the_program(service: FakeService, host_of, is_gone: bool) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    host = host_of(FakeSteps(ends_on_sigterm=False))
    program = host.program
    service.end_attempt(is_gone=is_gone)
    assert host.join() == EXIT_RELEASED
    assert program.is_closed


def test_an_orphan_gives_up_in_the_end(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    host = host_of(limits=replace(LIMITS, orphan_s=0.5))
    program = host.program
    service.kill()
    assert host.join() == EXIT_RELEASED
    assert program.is_closed


def test_sigterm_stops_the_program_and_leaves(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    host = host_of(FakeSteps(ends_on_sigterm=False))
    program = host.program
    host.supervisor.terminate()
    assert host.join() == EXIT_TERMINATED
    assert program.signals == [signal.SIGTERM, signal.SIGKILL]
    assert service.facts.phase is HostPhase.EXITED


def test_sigterm_while_preparing_leaves_at_once(service: FakeService, host_of) -> None:
    host = host_of(FakeSteps(hold=["code"]))
    service.wait_for_phase(HostPhase.PREPARING)
    host.supervisor.terminate()
    assert host.join() == EXIT_TERMINATED


def test_sigterm_leaves_even_when_the_service_is_away(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    host = host_of()
    program = host.program
    service.kill()
    program.print("never delivered\n")
    started_s = time.monotonic()
    host.supervisor.terminate()
    assert host.join() == EXIT_TERMINATED
    assert time.monotonic() - started_s < 8.0


def test_without_an_assignment_the_agent_leaves(service: FakeService, host_of) -> None:
    host = host_of(token="wrong")
    assert host.join() == EXIT_FAILED
    assert service.reports == []


def test_a_service_that_never_answers_is_given_up(service: FakeService, host_of) -> None:
    service.kill()
    assert host_of().join() == EXIT_FAILED


def test_a_plan_without_this_host_is_told_and_left(service: FakeService, host_of) -> None:
    service.plan = replace(service.plan, hosts=(replace(service.plan.hosts[0], name="algo-9"),))
    host = host_of()
    assert host.join() == EXIT_FAILED
    assert service.facts.failure.fault == "internal"
