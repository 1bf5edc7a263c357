"""Deadlines of a job, to the second."""

from datetime import timedelta

import pytest

from clary.contract.agent_protocol import HostFacts, HostPhase, Order, OrderKind
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.contract.stop_limits import STOP_ALLOWANCE_S
from clary.control.jobs import deadlines, events
from clary.control.jobs.training_job import EndCause, HostRecord, StatusTransition, TrainingJob
from clary.testing.control_plane import LIMITS, request_of
from clary.testing.fake_clock import START


def job_of(*phases, secondary=SecondaryStatus.STARTING, order=None, request=None, **fields):
    status = TrainingJobStatus.IN_PROGRESS
    facts = [HostFacts(phase=phase, phase_started_at=START) for phase in phases]
    hosts = {f"algo-{index + 1}": HostRecord(facts=item, order=order) for index, item in enumerate(facts)}
    rows = (StatusTransition(status=secondary, started_at=START, message="m"),)
    record = {
        "name": "job",
        "arn": "arn",
        "request": request or request_of(),
        "status": status,
        "secondary_status": secondary,
        "transitions": rows,
        "created_at": START,
        "modified_at": START,
        "hosts": hosts,
    }
    return TrainingJob(**{**record, **fields})


def due(job, seconds, **silent_s):
    silences = {name.replace("_", "-"): value for name, value in silent_s.items()}
    return deadlines.due(job, now=START + timedelta(seconds=seconds), limits=LIMITS, silent_s=silences)


def test_max_runtime_is_due_to_the_second_and_only_once():
    job = job_of(HostPhase.RUNNING, secondary=SecondaryStatus.TRAINING)
    assert due(job, 3599.9) is None
    assert due(job, 3600) == events.StopWanted(cause=EndCause.MAX_RUNTIME, grace_s=120)
    assert due(job_of(HostPhase.RUNNING, secondary=SecondaryStatus.TRAINING, end_cause=EndCause.SUCCESS), 3600) is None


def test_max_runtime_counts_training_of_all_attempts_and_no_wait_between_them():
    kinds = ("Training", "Interrupted", "Starting", "Downloading", "Training")
    starts = (0, 2000, 5000, 5010, 5020)
    rows = tuple(
        StatusTransition(
            status=SecondaryStatus(kind),
            started_at=START + timedelta(seconds=start),
            ended_at=None if end is None else START + timedelta(seconds=end),
            message="m",
        )
        for kind, start, end in zip(kinds, starts, (*starts[1:], None), strict=True)
    )
    job = job_of(HostPhase.RUNNING, transitions=rows)
    assert due(job, 5020 + 1599.9) is None
    assert due(job, 5020 + 1600).cause is EndCause.MAX_RUNTIME


def test_nothing_is_due_for_a_job_that_has_ended():
    job = job_of(HostPhase.RUNNING, secondary=SecondaryStatus.TRAINING, status=TrainingJobStatus.STOPPED)
    assert due(job, 1e6, algo_1=1e6) is None


def test_the_pending_limit_ends_with_the_wait():
    request = request_of(StoppingCondition={"MaxPendingTimeInSeconds": 1800})
    assert due(job_of(request=request), 1800).cause is EndCause.MAX_PENDING
    assert due(job_of(HostPhase.PREPARING, request=request), 1800) is None


def test_the_wait_limit_counts_the_run_too():
    request = request_of(StoppingCondition={"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 90})
    assert due(job_of(HostPhase.PREPARING, request=request), 89) is None
    assert due(job_of(HostPhase.PREPARING, request=request), 90).cause is EndCause.MAX_WAIT


def test_only_jobs_with_a_limit_on_waiting_can_expire_in_the_queue():
    assert not deadlines.can_expire_waiting(job_of())
    for member in ("MaxPendingTimeInSeconds", "MaxWaitTimeInSeconds"):
        assert deadlines.can_expire_waiting(job_of(request=request_of(StoppingCondition={member: 1})))


@pytest.mark.parametrize(
    ("phase", "limit_s"),
    [
        (HostPhase.LAUNCHING, LIMITS.launch_timeout_s),
        (HostPhase.PREPARING, LIMITS.host_timeout_s),
        (HostPhase.PREPARED, LIMITS.host_timeout_s),
        (HostPhase.RUNNING, LIMITS.host_timeout_s),
        (HostPhase.EXITED, LIMITS.host_timeout_s),
        (HostPhase.UPLOADING, LIMITS.host_timeout_s),
    ],
)
def test_a_silent_host_is_lost_after_the_limit_of_its_phase(phase, limit_s):
    job = job_of(HostPhase.RUNNING, phase)
    assert due(job, 1, algo_1=0.0, algo_2=limit_s - 0.1) is None
    assert due(job, 1, algo_1=0.0, algo_2=limit_s).host == "algo-2"


@pytest.mark.parametrize("phase", [HostPhase.DONE, HostPhase.RELEASED, HostPhase.LOST])
def test_a_host_that_owes_no_report_may_be_silent(phase):
    assert due(job_of(phase), 1, algo_1=1e6) is None


def test_an_upload_is_overdue_only_while_it_was_ordered():
    order = Order(number=2, kind=OrderKind.UPLOAD)
    fields = {"secondary": SecondaryStatus.UPLOADING, "end_cause": EndCause.SUCCESS}
    job = job_of(HostPhase.UPLOADING, order=order, **fields)
    assert due(job, 599) is None
    assert due(job, 600) == events.UploadOverdue(limit_s=600)
    assert due(job_of(HostPhase.EXITED, **fields), 600) is None


def test_an_order_to_stop_has_a_deadline():
    job = job_of(HostPhase.EXITED, HostPhase.RUNNING, end_cause=EndCause.STOP_REQUESTED, stop_ordered_at=START)
    limit_s = LIMITS.stop_grace_s + STOP_ALLOWANCE_S
    assert due(job, limit_s - 1) is None
    assert due(job, limit_s).host == "algo-2"


def test_the_deadline_of_a_stop_counts_no_time_without_a_service():
    job = job_of(HostPhase.RUNNING, end_cause=EndCause.STOP_REQUESTED, stop_ordered_at=START)
    limit_s = LIMITS.stop_grace_s + STOP_ALLOWANCE_S
    now = START + timedelta(seconds=10 * limit_s)
    assert deadlines.due(job, now=now, limits=LIMITS, silent_s={}, served_s=limit_s - 1) is None
    assert deadlines.due(job, now=now, limits=LIMITS, silent_s={}, served_s=limit_s).host == "algo-1"


def test_the_deadline_of_an_upload_counts_no_time_without_a_service():
    order = Order(number=3, kind=OrderKind.UPLOAD)
    job = job_of(HostPhase.UPLOADING, secondary=SecondaryStatus.UPLOADING, order=order, end_cause=EndCause.SUCCESS)
    now, limit_s = START + timedelta(days=1), LIMITS.upload_timeout_s
    assert deadlines.due(job, now=now, limits=LIMITS, silent_s={}, served_s=limit_s - 1) is None
    overdue = deadlines.due(job, now=now, limits=LIMITS, silent_s={}, served_s=limit_s)
    assert overdue == events.UploadOverdue(limit_s=limit_s)
