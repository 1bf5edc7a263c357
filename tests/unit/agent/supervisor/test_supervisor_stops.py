"""Orders to stop, in every phase, and processes that do not end."""

from __future__ import annotations

import signal
import time

import pytest
from fake_steps import FakeSteps

from clary.agent.supervisor import program_watch
from clary.agent.supervisor.supervisor import EXIT_RELEASED
from clary.contract.agent_protocol import HostPhase, OrderKind
from clary.testing.fake_service import FakeService


@pytest.mark.parametrize("part", ["tree", "code", "channel:data", "environment"])
def test_a_stop_during_preparation_aborts_every_part(service: FakeService, host_of, part: str) -> None:
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


def test_a_stop_signals_all_processes_and_ends_as_soon_as_they_have(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    host = host_of(FakeSteps(num_processes=2))
    program = host.program
    started_s = time.monotonic()
    service.order(OrderKind.STOP, grace_s=60.0, reason="why")
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert time.monotonic() - started_s < 20.0
    assert program.signals == [signal.SIGTERM]
    assert [(item.signal, item.is_consequence) for item in facts.exits] == [(15, True), (15, True)]
    assert facts.failure is None
    assert "clary: stopping the program (why): SIGTERM now, SIGKILL in 60 s" in service.texts
    service.order(OrderKind.RELEASE)


def test_the_stop_notice_is_written_before_any_process_is_signalled(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host = host_of(FakeSteps(ends_on_sigterm=False))
    assert host.program.signals == []
    service.order(OrderKind.STOP, grace_s=60.0, reason="why")
    service.order(OrderKind.STOP, grace_s=90.0, reason="would extend it")
    service.order(OrderKind.STOP, grace_s=0.1, reason="shortens it")
    service.wait_for_phase(HostPhase.EXITED)
    assert host.steps.announced == [("why", 60.0, []), ("shortens it", 0.1, [signal.SIGTERM])]


def test_a_stop_continues_if_its_notice_cannot_be_written(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host = host_of(FakeSteps(errors={"announce": OSError(28, "No space left on device")}))
    program = host.program
    service.order(OrderKind.STOP, grace_s=60.0)
    service.wait_for_phase(HostPhase.EXITED)
    assert program.signals == [signal.SIGTERM]
    assert any("the notice of the stop could not be written" in text for text in service.texts)


def test_processes_that_outlive_the_grace_are_killed(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host = host_of(FakeSteps(ends_on_sigterm=False))
    program = host.program
    service.order(OrderKind.STOP, grace_s=0.2)
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert program.signals == [signal.SIGTERM, signal.SIGKILL]
    assert [(item.signal, item.is_consequence) for item in facts.exits] == [(9, True)]


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
    assert [(item.exit_code, item.is_consequence) for item in facts.exits] == [(0, True)]
    assert "saved" in service.texts


def test_a_stop_waits_for_child_processes_of_the_program(service: FakeService, host_of) -> None:
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


def test_unkillable_processes_do_not_hold_the_host(
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
