"""The checkpoint folder in a host's life: restored before the program, mirrored during it, flushed after it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from fake_steps import FakeSteps

from clary.agent.checkpoints.outcomes import Flushed, Listeners
from clary.agent.supervisor.program_watch import ProgramWatch
from clary.base.errors import Fault, ObjectStoreError
from clary.contract.agent_protocol import FAILURE_GRACE_S, FAILURE_REASON, CheckpointFacts, HostPhase, OrderKind
from clary.contract.stop_limits import FAILURE_FLUSH_S, LAST_LOOK_S, LEAST_FLUSH_S
from clary.testing.fake_service import FakeService


class FakeCheckpoints:
    """A folder whose flush lasts until the test releases it or the flush is aborted."""

    summary = "restored 2 files, 10 bytes"
    facts = CheckpointFacts(set_number=3, restored_set=3, restored_files=2)

    def __init__(self) -> None:
        self.listeners: Listeners | None = None
        self.limits_s: list[float] = []
        self.looks: list[tuple[float, list[int]]] = []  # limit, signals sent before
        self.signals: Callable[[], list[int]] = list
        self.hurried_s: list[float] = []
        self.outcome = Flushed()
        self.is_mirroring = False
        self.let_go = threading.Event()
        self.is_flushing = threading.Event()

    def watch(self, note: object) -> None:
        self.is_watching = True

    def start(self, listeners: Listeners, *, first_pid: int | None) -> None:
        self.first_pid = first_pid
        self.listeners = listeners
        assert self.is_watching, "before the program starts"
        self.is_mirroring = True

    def look_now(self, limit_s: float) -> None:
        self.looks.append((limit_s, self.signals()))

    def flush(self, limit_s: float, *, has_finished: bool) -> Flushed:
        self.limits_s.append(limit_s)
        self.has_finished = has_finished
        self.is_flushing.set()
        self.let_go.wait(30)
        self.is_mirroring = False
        return self.outcome

    def shorten(self, limit_s: float) -> None:
        self.hurried_s.append(limit_s)

    def abort(self) -> None:
        self.let_go.set()


@pytest.fixture
def checkpoints():
    checkpoints = FakeCheckpoints()
    yield checkpoints
    checkpoints.let_go.set()  # a test that fails must leave no thread waiting


@pytest.fixture
def host_with(host_of, checkpoints: FakeCheckpoints):
    def build(**options: object):
        steps = FakeSteps(**options)
        steps.checkpoints = checkpoints
        checkpoints.signals = lambda: list(steps.program.signals if steps.program is not None else ())
        return host_of(steps)

    return build


def test_checkpoints_are_restored_before_the_program_and_stored_before_exited(
    host_with, service: FakeService, checkpoints: FakeCheckpoints
) -> None:
    host = host_with(channels=["data"])
    service.lead_through_life()
    program = host.program
    assert "checkpoints" in host.steps.done
    assert "checkpoints" in service.wait_for_phase(HostPhase.RUNNING).timings_s
    service.wait_for_text("restored 2 files, 10 bytes")
    assert checkpoints.listeners is not None
    checkpoints.listeners.tell(CheckpointFacts(set_number=4))
    checkpoints.listeners.note("a link was left out")
    service.wait_for("the mirror's facts", lambda s: s.facts.checkpoints == CheckpointFacts(set_number=4))
    service.wait_for("the mirror's note", lambda s: "a link was left out" in s.facts.notes)
    program.end(0)
    service.wait_for("exits before the flush is over", lambda s: s.facts.exits)
    assert service.facts.phase is HostPhase.RUNNING
    assert checkpoints.is_flushing.wait(5)
    assert checkpoints.limits_s == [service.plan.checkpoint_flush_s]
    checkpoints.let_go.set()
    assert host.join() == 0
    assert service.facts.failure is None
    assert HostPhase.DONE in service.phases


def test_a_restore_that_fails_ends_the_host_before_its_program(host_with, service: FakeService) -> None:
    host = host_with(errors={"checkpoints": ObjectStoreError("no set is whole", fault=Fault.USER)})
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert facts.failure is not None
    assert facts.failure.message == "no set is whole"
    assert host.steps.program is None
    service.order(OrderKind.RELEASE)


def test_a_failure_is_reported_before_the_flush_and_shortens_it(
    host_with, service: FakeService, checkpoints: FakeCheckpoints
) -> None:
    host = host_with()
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    checkpoints.outcome = Flushed(missed=("a",), error="no answer")
    host.program.end(3)
    service.wait_for("the failure", lambda s: s.facts.failure is not None)
    assert service.facts.phase is HostPhase.RUNNING
    assert checkpoints.is_flushing.wait(5)  # the flush began shortly after the failure was reported
    assert checkpoints.limits_s == [FAILURE_FLUSH_S]
    checkpoints.let_go.set()
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert facts.failure is not None
    assert facts.failure.exit_code == 3, "the first cause stays the cause"
    assert any("did not reach" in note for note in facts.notes)
    service.order(OrderKind.RELEASE)


def test_a_program_that_has_finished_fails_if_its_last_checkpoints_are_lost(
    host_with, service: FakeService, checkpoints: FakeCheckpoints
) -> None:
    host = host_with()
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    checkpoints.outcome = Flushed(missed=tuple(f"step/{number}" for number in range(9)), error="no answer")
    checkpoints.let_go.set()
    host.program.end(0)
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert facts.failure is not None
    assert (facts.failure.fault, facts.failure.retryable) == ("infrastructure", True)
    assert "9 files are in no set (step/0, step/1, step/2, step/3, step/4 and 4 more): no answer" in (
        facts.failure.message
    )
    service.wait_for_text("checkpoints did not reach")
    service.order(OrderKind.RELEASE)


def test_a_program_that_was_stopped_only_gets_a_note(
    host_with, service: FakeService, checkpoints: FakeCheckpoints
) -> None:
    host = host_with()
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    checkpoints.outcome = Flushed(missed=("a",), error="no answer")
    checkpoints.let_go.set()
    assert host.program is not None
    service.order(OrderKind.STOP, grace_s=60.0)
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert facts.failure is None
    assert any("did not reach" in note and "1 file is in no set (a)" in note for note in facts.notes)
    assert LEAST_FLUSH_S < checkpoints.limits_s[0] <= 60.0
    service.order(OrderKind.RELEASE)


@pytest.mark.parametrize(
    ("reason", "grace_s", "limit_s"),
    [
        ("stop_requested", 60.0, 60.0),
        ("stop_requested", 1.0, LEAST_FLUSH_S),
        ("stop_requested", FAILURE_GRACE_S, LEAST_FLUSH_S),  # a stop order with the grace of a failure is still a stop
        (FAILURE_REASON, FAILURE_GRACE_S, 30.0),
        (FAILURE_REASON, 1.0, 30.0),
    ],
)
def test_a_stop_shortens_the_deadline_of_a_running_flush(
    host_with, service: FakeService, checkpoints: FakeCheckpoints, reason: str, grace_s: float, limit_s: float
) -> None:
    host = host_with()
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    host.program.end(0)
    assert checkpoints.is_flushing.wait(10)
    service.order(OrderKind.STOP, reason=reason, grace_s=grace_s)
    service.wait_for("the flush to be hurried", lambda _: checkpoints.hurried_s)
    assert limit_s - 5 < checkpoints.hurried_s[0] <= limit_s
    checkpoints.let_go.set()
    service.wait_for_phase(HostPhase.EXITED)
    service.order(OrderKind.RELEASE)


@pytest.mark.parametrize("how", ["release", "over", "terminate"])
def test_the_flush_is_aborted_once_the_host_has_to_exit(
    host_with, service: FakeService, checkpoints: FakeCheckpoints, how: str
) -> None:
    service.plan = replace(service.plan, stop_grace_s=0.5)
    host = host_with()
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    host.program.end(0)
    assert checkpoints.is_flushing.wait(10)
    if how == "release":
        service.order(OrderKind.RELEASE)
    elif how == "over":
        service.end_attempt(is_gone=True)
    else:
        host.supervisor.terminate()
        service.wait_for("the flush to be hurried", lambda _: checkpoints.hurried_s == [LEAST_FLUSH_S])
        checkpoints.let_go.set()
    host.join()
    assert checkpoints.let_go.is_set()


@pytest.mark.parametrize(("grace_s", "limit_s"), [(60.0, LAST_LOOK_S), (0.4, 0.1)])
def test_the_folder_is_looked_at_before_an_ordered_stop_signals_and_before_it_kills(
    host_with, service: FakeService, checkpoints: FakeCheckpoints, grace_s: float, limit_s: float
) -> None:
    host = host_with(ends_on_sigterm=False)
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    program = host.program
    checkpoints.let_go.set()
    service.order(OrderKind.STOP, grace_s=grace_s)
    service.wait_for("the signal", lambda _: program.signals)
    assert checkpoints.looks == [(limit_s, [])]
    service.order(OrderKind.STOP, grace_s=0.0)
    service.wait_for_phase(HostPhase.EXITED)
    assert checkpoints.looks == [(limit_s, []), (LAST_LOOK_S, [signal.SIGTERM])]
    assert program.signals == [signal.SIGTERM, signal.SIGKILL]
    service.order(OrderKind.RELEASE)


def test_a_look_takes_its_time_from_the_grace(
    host_with, service: FakeService, checkpoints: FakeCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    graces_s: list[float] = []
    stop = ProgramWatch.stop
    monkeypatch.setattr(ProgramWatch, "stop", lambda watch, grace_s: graces_s.append(grace_s) or stop(watch, grace_s))
    monkeypatch.setattr(checkpoints, "look_now", lambda limit_s: time.sleep(0.2))
    host_with()
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    service.wait_for_phase(HostPhase.RUNNING)
    checkpoints.let_go.set()
    service.order(OrderKind.STOP, grace_s=30.0)
    service.wait_for_phase(HostPhase.EXITED)
    assert 20.0 < graces_s[0] <= 29.8
    service.order(OrderKind.RELEASE)


def test_the_folder_is_looked_at_before_the_other_ranks_of_a_failed_one_are_stopped(
    host_with, service: FakeService, checkpoints: FakeCheckpoints
) -> None:
    host = host_with(num_processes=2)
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    checkpoints.let_go.set()
    host.program.end(3, rank=1)
    service.wait_for_phase(HostPhase.EXITED)
    assert checkpoints.looks == [(FAILURE_GRACE_S / 4, [])]
    service.order(OrderKind.RELEASE)
