"""Uploads by a supervisor after its program has ended."""

from __future__ import annotations

from dataclasses import replace

from fake_steps import FakeSteps

from clary.agent.supervisor.supervisor import EXIT_RELEASED
from clary.base.errors import Fault, ObjectStoreError
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
