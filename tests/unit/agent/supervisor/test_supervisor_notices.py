"""Signals to the agent: notices that the host's capacity will end."""

from __future__ import annotations

import queue
import signal
import sys
import time
from dataclasses import replace

import pytest
from fake_steps import FakeSteps
from host_under_test import LIMITS

from clary.agent.supervisor.notice_period import GANG_ECHO_S
from clary.agent.supervisor.supervisor import EXIT_TERMINATED, SIGNAL_LOOK_S
from clary.contract.agent_protocol import RECLAIM_REASON, HostPhase, OrderKind
from clary.testing.fake_service import FakeService

TERM, KILL = signal.SIGTERM, signal.SIGKILL


@pytest.fixture
def run(service: FakeService, host_of):
    """Return a function that starts a host with a running program, and with changes of the plan about notices."""

    def run(*, ends_on_sigterm: bool = True, hold: tuple[str, ...] = (), **plan: object):
        service.plan = replace(service.plan, **plan)
        service.order_at(HostPhase.PREPARED, OrderKind.RUN)
        host = host_of(FakeSteps(ends_on_sigterm=ends_on_sigterm, hold=hold))
        assert host.program.signals == []
        return host

    return run


def noticed(service: FakeService):
    """Wait for the notice and return it."""
    service.wait_for("the notice", lambda service: service.facts.notice is not None)
    return service.facts.notice


def test_a_notice_is_reported_at_once_and_the_services_order_is_obeyed(service: FakeService, run) -> None:
    host = run(notice_grace_s=30.0, stop_grace_s=120.0)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE, is_last=True)
    host.supervisor.terminate("SIGTERM")
    notice = noticed(service)
    assert (notice.why, notice.grace_s) == ("SIGTERM from the engine", 30.0)
    (report,) = [report for report in service.reports if report.facts.notice is not None][:1]
    assert report.facts.phase is HostPhase.RUNNING
    assert 0.0 <= report.notice_age_s < 1.0
    service.order(OrderKind.STOP, grace_s=20.0, reason=RECLAIM_REASON)
    assert host.join() == EXIT_TERMINATED
    assert host.program.signals == [TERM]
    assert host.steps.announced == [(RECLAIM_REASON, 20.0, [])]
    assert service.facts.phase is HostPhase.RELEASED
    assert any("the capacity of this host is taken back (SIGTERM from the engine)" in text for text in service.texts)


def test_the_grace_of_an_order_is_limited_to_the_time_left_by_the_notice(service: FakeService, run) -> None:
    host = run(notice_grace_s=5.0)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host.supervisor.terminate()
    service.order(OrderKind.STOP, grace_s=60.0, reason=RECLAIM_REASON)
    host.join()
    ((_, grace_s, _),) = host.steps.announced
    assert 3.0 < grace_s <= 4.8, "5 s less the margin of 0.2 s, less what has passed"


def test_only_the_first_signal_counts(service: FakeService, run) -> None:
    host = run(notice_grace_s=30.0)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    for why in ("SIGUSR1", "SIGTERM", "SIGTERM"):
        host.supervisor.terminate(why)
    assert noticed(service).why == "SIGUSR1 from the engine"
    service.order(OrderKind.STOP, grace_s=20.0, reason=RECLAIM_REASON)
    assert host.join() == EXIT_TERMINATED
    assert host.program.signals == [TERM]
    assert len({report.facts.notice for report in service.reports if report.facts.notice}) == 1


def test_every_wait_ends_soon_enough_to_hear_a_signal_that_came_just_before_it(
    service: FakeService, run, monkeypatch
) -> None:
    waits = []

    class Recorded(queue.SimpleQueue):
        def get(self, block=True, timeout=None):
            if sys._getframe(1).f_code.co_filename.endswith("/supervisor.py"):  # other threads wait on their own
                waits.append(timeout)
            return super().get(block, timeout)

    monkeypatch.setattr(queue, "SimpleQueue", Recorded)
    host = run()
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host.supervisor.terminate()
    assert host.join() == EXIT_TERMINATED
    assert waits
    assert all(wait is not None and wait <= SIGNAL_LOOK_S for wait in waits)


def test_a_host_without_an_order_stops_by_itself_and_exits_in_time(service: FakeService, run) -> None:
    host = run(notice_grace_s=1.5, ends_on_sigterm=False)
    began_s = time.monotonic()
    host.supervisor.terminate()
    assert host.join() == EXIT_TERMINATED
    took_s = time.monotonic() - began_s
    assert host.program.signals == [TERM, KILL]
    assert 1.2 < took_s < 3.0
    ((reason, grace_s, _),) = host.steps.announced
    assert reason == RECLAIM_REASON
    assert 0.5 < grace_s <= 1.2, "1.5 s less the margin and two heartbeats"
    assert service.facts.phase is HostPhase.EXITED


def test_a_notice_to_a_host_whose_engine_does_not_kill_leaves_the_grace_of_a_stop(service: FakeService, run) -> None:
    host = run(stop_grace_s=0.6, ends_on_sigterm=False)
    host.supervisor.terminate()
    assert noticed(service).why == "SIGTERM"
    assert noticed(service).grace_s is None
    assert host.join() == EXIT_TERMINATED
    assert host.program.signals == [TERM, KILL]
    assert service.facts.phase is HostPhase.EXITED


def test_a_host_without_the_service_stops_by_itself_and_reports_later(service: FakeService, run) -> None:
    host = run(notice_grace_s=20.0)
    program = host.program
    service.kill()
    program.print("last words\n")
    host.supervisor.terminate()
    deadline_s = time.monotonic() + 10.0
    while not program.signals and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert program.signals == [TERM]
    assert host.exit_code is None, "it stays to tell how it ended"
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    service.restart()
    assert host.join() == EXIT_TERMINATED
    assert noticed(service).why == "SIGTERM from the engine"
    assert "last words" in service.texts


def test_a_host_exits_in_time_while_the_service_stays_unreachable(service: FakeService, run) -> None:
    host = run(notice_grace_s=1.5)
    program = host.program
    service.kill()
    program.print("never delivered\n")
    began_s = time.monotonic()
    host.supervisor.terminate()
    assert host.join() == EXIT_TERMINATED
    assert time.monotonic() - began_s < 4.0


def test_a_notice_during_preparation_aborts_it_and_is_reported(service: FakeService, host_of) -> None:
    service.plan = replace(service.plan, notice_grace_s=30.0)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host = host_of(FakeSteps(hold=["code"]))
    service.wait_for_phase(HostPhase.PREPARING)
    host.supervisor.terminate()
    assert host.join() == EXIT_TERMINATED
    assert noticed(service).why
    assert host.steps.program is None


def test_a_notice_before_the_plan_is_reported_as_the_agent_exits(service: FakeService, host_of) -> None:
    service.fail("assignment", status=503, count=1000)
    host = host_of()
    service.wait_for_phase(HostPhase.PREPARING)
    host.supervisor.terminate()
    assert host.join() == EXIT_TERMINATED
    assert noticed(service).why == "SIGTERM"
    assert service.facts.phase is HostPhase.EXITED


def test_a_notice_lets_an_upload_finish(service: FakeService, run) -> None:
    service.order_at(HostPhase.EXITED, OrderKind.UPLOAD, role="lead", staged=[])
    service.order_at(HostPhase.DONE, OrderKind.RELEASE)
    host = run(notice_grace_s=30.0, hold=("upload",))
    host.program.end(0)
    service.wait_for_phase(HostPhase.UPLOADING)
    host.supervisor.terminate()
    noticed(service)
    host.steps.let_go("upload")
    assert host.join() == EXIT_TERMINATED
    assert service.facts.uploaded == ("s3://bucket/model.tar.gz",)


def test_an_upload_outlasts_the_grace_of_a_notice_if_no_engine_kills(service: FakeService, run) -> None:
    service.order_at(HostPhase.EXITED, OrderKind.UPLOAD, role="lead", staged=[])
    host = run(stop_grace_s=0.3, hold=("upload",))
    host.program.end(0)
    service.wait_for_phase(HostPhase.UPLOADING)
    host.supervisor.terminate()
    assert noticed(service).grace_s is None
    time.sleep(0.3 + 2 * LIMITS.after_stop_s)
    assert host.exit_code is None, "nobody kills this host: its results reach the store"
    host.steps.let_go("upload")
    service.wait_for_phase(HostPhase.DONE)
    service.order(OrderKind.RELEASE)
    assert host.join() == EXIT_TERMINATED
    assert service.facts.phase is HostPhase.RELEASED, "it has stayed for the service's answer"
    assert service.facts.uploaded == ("s3://bucket/model.tar.gz",)


def test_a_finished_host_waits_for_its_order_to_upload_if_no_engine_kills(service: FakeService, run) -> None:
    host = run(stop_grace_s=0.3)
    host.program.end(0)
    service.wait_for_phase(HostPhase.EXITED)
    host.supervisor.terminate()
    noticed(service)
    time.sleep(0.3 + 2 * LIMITS.after_stop_s)
    assert host.exit_code is None, "other hosts of the job still run"
    service.order_at(HostPhase.DONE, OrderKind.RELEASE)
    service.order(OrderKind.UPLOAD, role="lead", staged=[])
    assert host.join() == EXIT_TERMINATED
    assert service.facts.uploaded == ("s3://bucket/model.tar.gz",)


def test_an_upload_does_not_outlast_the_engines_kill(service: FakeService, run) -> None:
    service.order_at(HostPhase.EXITED, OrderKind.UPLOAD, role="lead", staged=[])
    host = run(notice_grace_s=1.0, stop_grace_s=120.0, hold=("upload",))
    host.program.end(0)
    service.wait_for_phase(HostPhase.UPLOADING)
    host.supervisor.terminate()
    assert host.join() == EXIT_TERMINATED
    assert service.facts.phase is HostPhase.UPLOADING


def test_a_signal_to_all_processes_is_both_a_notice_and_a_stop(service: FakeService, run) -> None:
    host = run(notice_grace_s=30.0, stop_grace_s=120.0)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host.program.hear_from_outside()
    assert noticed(service).why == "SIGTERM from the engine"
    assert host.join() == EXIT_TERMINATED
    ((reason, grace_s, _),) = host.steps.announced
    assert reason == RECLAIM_REASON
    assert 20.0 < grace_s <= 29.8


def test_a_process_that_a_signal_to_every_process_ends_does_not_shorten_the_grace_of_others(
    service: FakeService, host_of
) -> None:
    service.plan = replace(service.plan, notice_grace_s=30.0)
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host = host_of(FakeSteps(num_processes=2, ends_on_sigterm=False))
    program = host.program
    program.end(-TERM, rank=0)  # the end is noticed before the signal to the host's first process
    program.hear_from_outside()
    service.wait_for("the stop", lambda _: host.steps.announced)
    time.sleep(0.3)
    assert KILL not in program.signals
    assert host.steps.announced[0][1] > 20.0
    program.end(0, rank=1)
    facts = service.wait_for_phase(HostPhase.EXITED)
    assert facts.notice is not None
    assert host.join() == EXIT_TERMINATED


@pytest.mark.parametrize("is_signalled", [False, True])
def test_a_stop_waits_for_an_engine_that_signals_all_processes(service: FakeService, run, is_signalled: bool) -> None:
    host = run(notice_grace_s=30.0, engine_signals_all=True, ends_on_sigterm=False)
    program = host.program
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    began_s = time.monotonic()
    service.order(OrderKind.STOP, grace_s=20.0, reason=RECLAIM_REASON)
    time.sleep(0.3)
    assert program.signals == []
    if is_signalled:
        program.hear_from_outside()
    service.wait_for("SIGTERM", lambda _: program.signals)
    took_s = time.monotonic() - began_s
    assert took_s < GANG_ECHO_S if is_signalled else took_s >= GANG_ECHO_S
    program.end(0)
    host.join()
    assert host.steps.announced[0][1] <= 20.0


def test_other_stops_do_not_wait_for_an_engine(service: FakeService, run) -> None:
    host = run(notice_grace_s=30.0, engine_signals_all=True)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    began_s = time.monotonic()
    service.order(OrderKind.STOP, grace_s=20.0, reason="stop_requested")
    service.wait_for("SIGTERM", lambda _: host.program.signals)
    assert time.monotonic() - began_s < GANG_ECHO_S / 2
    host.join()
