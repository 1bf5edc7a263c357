"""Uploads by a supervisor after its program has ended."""

from __future__ import annotations

import errno
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_steps import FakeSteps
from host_under_test import LIMITS

from clary.agent.supervisor import host_life
from clary.agent.supervisor.supervisor import EXIT_RELEASED, SPOOL_FOLDER
from clary.base.errors import AgentError, Fault, ObjectStoreError
from clary.base.plain import to_plain
from clary.contract.agent_protocol import HostPhase, OrderKind, StagedPart, UploadRole
from clary.testing.fake_service import FakeService


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
    assert not facts.could_not_upload


def test_an_upload_that_the_store_often_answers_wrongly_is_given_up_and_may_succeed_later(
    service: FakeService, host_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_life, "_FIRST_UPLOAD_PAUSE_S", 0.01)
    service.lead_through_life()
    host = host_of(FakeSteps(errors={"upload": AgentError("1 of 2 results are not in the store", retryable=True)}))
    host.program.end(0)
    facts = service.wait_for_phase(HostPhase.DONE)
    assert facts.could_not_upload
    assert len(host.steps.uploads) == 1 + host_life._MAX_REPEATS


@pytest.mark.parametrize(
    "error",
    [AgentError("Results at s3://b/k are not whole.", retryable=True), OSError(errno.EMFILE, "Too many open files")],
)
def test_an_upload_is_repeated_after_a_wrong_answer_and_between_lost_ones(
    service: FakeService, host_of, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(host_life, "_FIRST_UPLOAD_PAUSE_S", 0.001)
    service.lead_through_life()
    steps = FakeSteps()
    lost = ObjectStoreError("PUT s3://b/k: no answer.", retryable=True)
    failures = [error, *[lost] * 5, *[error] * (host_life._MAX_REPEATS - 1)]

    def fail(name: str) -> None:
        if name == "upload" and failures:
            raise failures.pop(0)

    steps.on_step = fail
    host = host_of(steps)
    host.program.end(0)
    facts = service.wait_for_phase(HostPhase.DONE)
    assert (facts.failure, facts.uploaded) == (None, steps.uploaded.uris)
    (note,) = facts.notes
    assert note.startswith("results could not be uploaded yet; they are kept, and the upload is tried again, 3 times")


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


def test_an_upload_that_the_store_does_not_answer_is_tried_again_until_the_results_are_stored(
    service: FakeService, host_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_life, "_FIRST_UPLOAD_PAUSE_S", 0.01)
    service.lead_through_life()
    steps = FakeSteps()
    num_tries = 0

    def fail_twice(name: str) -> None:
        nonlocal num_tries
        num_tries += name == "upload"
        if name == "upload" and num_tries < 3:
            raise ObjectStoreError(f"PUT s3://bucket/x: no answer, try {num_tries}.", retryable=True)

    steps.on_step = fail_twice
    host = host_of(steps)
    host.program.end(0)
    facts = service.wait_for_phase(HostPhase.DONE)
    assert (facts.failure, facts.uploaded) == (None, steps.uploaded.uris)
    (note,) = facts.notes
    assert note.startswith("results could not be uploaded yet; they are kept")
    assert note.endswith("3600 s in all (setting upload_timeout_s): PUT s3://bucket/x: no answer, try 1.")


def test_an_agent_that_is_released_ends_the_tries_of_its_upload_at_once(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    service.order_at(HostPhase.EXITED, OrderKind.UPLOAD, role="lead")
    service.order_at(HostPhase.UPLOADING, OrderKind.RELEASE)
    host = host_of(FakeSteps(errors={"upload": ObjectStoreError("no answer.", retryable=True)}))
    host.program.end(0)
    began_s = time.monotonic()
    assert host.join() == EXIT_RELEASED
    assert time.monotonic() - began_s < 5


def test_results_are_reported_before_the_wait_for_log_lines(
    service: FakeService, host_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.lead_through_life()
    told: list[tuple[HostPhase, tuple[str, ...]]] = []
    drain = host_life.HostLife._drain

    def drained(life: host_life.HostLife, *args: float, **limits: float) -> None:
        told.append((life._board.phase, life._board.facts.uploaded))
        assert life._board.phase is not HostPhase.UPLOADING or limits["most_s"] <= 1800
        drain(life, *args, **limits)

    monkeypatch.setattr(host_life.HostLife, "_drain", drained)
    host = host_of()
    host.program.end(0)
    service.wait_for_phase(HostPhase.DONE)
    assert told[-1] == (HostPhase.UPLOADING, host.steps.uploaded.uris)


def test_lines_that_earlier_waits_have_left_are_sent_at_the_release(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host = host_of(limits=replace(LIMITS, drain_most_s=0.1, release_lines_s=10.0))
    program = host.program
    service.fail("logs", count=6)
    program.print("Traceback\nValueError: the cause\n")
    program.end(1)
    assert host.join() == EXIT_RELEASED
    assert "ValueError: the cause" in service.texts
    assert service.facts.num_unsent_lines == 0


def test_a_released_host_reports_the_lines_that_the_service_does_not_take(service: FakeService, host_of) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host = host_of(limits=replace(LIMITS, drain_most_s=0.1, release_lines_s=0.2))
    program = host.program
    service.wait_for_text("prepared in")
    service.fail("logs", status=500, count=10_000)
    program.print("Traceback\nValueError: the cause\n")
    program.end(1)
    assert host.join() == EXIT_RELEASED
    assert service.facts.num_unsent_lines >= 2
    spool = Path(service.plan.work_folder) / "algo-1" / SPOOL_FOLDER
    assert any(b"ValueError: the cause" in path.read_bytes() for path in spool.iterdir())
