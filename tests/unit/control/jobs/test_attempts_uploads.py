"""Attempts that lose a host, or the way to the object store, between the program's end and the end of the job."""

import pytest
from job_script import MODEL_URI, Script, exit_of

from clary.base.errors import Fault
from clary.contract.agent_protocol import Failure, HostPhase, OrderKind, StagedPart
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs import attempts, events
from clary.control.jobs.training_job import AttemptEnd, EndCause, RestartRule

WELL = (exit_of(0),)
PART = StagedPart(host="algo-2", kind="model", uri="s3://b/x", size_bytes=1, num_files=1)
UNANSWERED = Failure(fault=Fault.INFRASTRUCTURE.value, message="PUT s3://b/x: no answer", retryable=True)
REFUSED = Failure(fault=Fault.USER.value, message="PUT s3://b/x: S3 answered 403", retryable=False)


def uploading(*hosts, max_restarts=1):
    """Return the script of a job whose programs have succeeded and whose leader uploads."""
    script = Script(hosts or ("algo-1",), restart_rule=RestartRule(max_restarts=max_restarts)).run()
    script.all(HostPhase.EXITED, exits=WELL)
    for host in hosts[1:]:
        script.report(host, HostPhase.DONE, exits=WELL, staged=(PART,))
    return script.report("algo-1", HostPhase.UPLOADING, exits=WELL)


def lose(script, host="algo-1"):
    return script.send(events.HostLost(host=host, why=f"{host} was lost: its machine has no power"))


def is_tried_again(script):
    job = script.job
    return job.ending is not None and job.ending.kind is AttemptEnd.RESTARTED and not job.is_terminal


@pytest.mark.parametrize("hosts", [("algo-1",), ("algo-1", "algo-2")])
def test_a_job_whose_leader_is_lost_while_it_uploads_is_tried_again(hosts):
    script = lose(uploading(*hosts))
    assert is_tried_again(script)
    assert script.job.secondary_status is SecondaryStatus.RESTARTING
    for host in hosts[1:]:
        script.report(host, HostPhase.RELEASED, exits=WELL, staged=(PART,))
    script.send(events.Released())
    assert not script.job.is_terminal
    assert [past.kind for past in script.job.past_attempts] == [AttemptEnd.RESTARTED]
    assert script.job.model_artifacts_uri is None


def test_a_host_that_is_lost_before_it_has_staged_its_results_leads_to_a_retry():
    script = Script(restart_rule=RestartRule(max_restarts=1)).run().all(HostPhase.EXITED, exits=WELL)
    script.report("algo-2", HostPhase.UPLOADING, exits=WELL)
    assert is_tried_again(lose(script, "algo-2"))
    assert script.order("algo-1") is OrderKind.RELEASE


def test_an_upload_that_a_store_did_not_answer_leads_to_a_retry_and_never_completes_the_job():
    script = uploading().report("algo-1", HostPhase.DONE, exits=WELL, failure=UNANSWERED, could_not_upload=True)
    assert is_tried_again(script)
    script.report("algo-1", HostPhase.RELEASED, exits=WELL, failure=UNANSWERED, could_not_upload=True)
    assert is_tried_again(script), "exit codes of 0 must not complete a job without results"
    script.send(events.Released())
    assert script.job.status is TrainingJobStatus.IN_PROGRESS
    assert script.job.hosts == {}


def test_a_refused_upload_fails_the_job():
    script = uploading().report("algo-1", HostPhase.DONE, exits=WELL, failure=REFUSED)
    assert script.job.status is TrainingJobStatus.FAILED


def test_without_restarts_left_a_leader_lost_while_it_uploads_fails_the_job():
    script = lose(uploading(max_restarts=0))
    assert script.job.status is TrainingJobStatus.FAILED


def test_a_leader_that_is_lost_after_it_has_reported_its_results_completes_the_job():
    script = uploading().report("algo-1", HostPhase.UPLOADING, exits=WELL, uploaded=(MODEL_URI,))
    assert not script.job.is_terminal, "its last log lines follow"
    lose(script)
    assert (script.job.status, script.job.model_artifacts_uri) == (TrainingJobStatus.COMPLETED, MODEL_URI)
    lose(script)
    assert (script.job.status, script.job.past_attempts) == (TrainingJobStatus.COMPLETED, ())


def test_a_host_that_is_lost_after_it_has_reported_its_staged_results_is_no_failure():
    script = Script(restart_rule=RestartRule(max_restarts=1)).run().all(HostPhase.EXITED, exits=WELL)
    lose(script.report("algo-2", HostPhase.UPLOADING, exits=WELL, staged=(PART,)), "algo-2")
    order = script.job.hosts["algo-1"].order
    assert (order.kind, order.arguments["role"]) == (OrderKind.UPLOAD, "lead")
    assert [part["host"] for part in order.arguments["staged"]] == ["algo-2"]
    script.report("algo-1", HostPhase.DONE, exits=WELL, uploaded=(MODEL_URI,))
    assert script.job.status is TrainingJobStatus.COMPLETED


def test_a_stopped_job_whose_leader_is_lost_while_it_uploads_is_not_tried_again():
    script = Script(("algo-1",), restart_rule=RestartRule(max_restarts=1)).run()
    script.send(events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=1.0))
    lose(script.all(HostPhase.EXITED, exits=WELL))
    assert script.job.status is TrainingJobStatus.STOPPED


def test_a_failed_program_is_not_tried_again_because_its_host_is_lost_during_the_upload():
    script = Script(("algo-1",), restart_rule=RestartRule(max_restarts=1)).run()
    script.all(HostPhase.EXITED, exits=(exit_of(3, seconds=5),))
    assert not attempts.will_be_retried(script.job)
    lose(script)
    assert (script.job.status, script.job.failure.exit_code) == (TrainingJobStatus.FAILED, 3)


def test_results_that_stand_are_not_overdue_because_log_lines_still_follow():
    script = uploading().report("algo-1", HostPhase.UPLOADING, exits=WELL, uploaded=(MODEL_URI,))
    script.send(events.UploadOverdue(limit_s=1.0))
    assert (script.job.status, script.job.failure) == (TrainingJobStatus.COMPLETED, None)
    assert script.job.model_artifacts_uri == MODEL_URI


@pytest.mark.parametrize("hosts", [("algo-1",), ("algo-1", "algo-2")])
def test_a_finished_program_whose_last_checkpoints_are_missing_still_has_its_model_uploaded(hosts):
    missing = Failure(fault=Fault.INFRASTRUCTURE.value, message="checkpoints are missing", retryable=True)
    script = Script(hosts, restart_rule=RestartRule(max_restarts=1)).run()
    for host in reversed(hosts):
        script.report(host, HostPhase.EXITED, exits=WELL, failure=missing)
    for host in hosts[1:]:
        script.report(host, HostPhase.DONE, exits=WELL, failure=missing)
    script.report("algo-1", HostPhase.DONE, exits=WELL, failure=missing, uploaded=(MODEL_URI,))
    assert (script.job.status, script.job.model_artifacts_uri) == (TrainingJobStatus.FAILED, MODEL_URI)
    assert script.job.past_attempts == ()


def test_an_upload_whose_attempt_ends_for_a_retry_is_never_overdue():
    script = lose(uploading()).send(events.UploadOverdue(limit_s=1.0))
    assert is_tried_again(script)
