"""Attempts that end early: reclaimed capacity, and failures that are retried."""

from datetime import timedelta

import pytest
from job_script import MODEL_URI, Script, at, exit_of

from clary.base.errors import Fault
from clary.contract.agent_protocol import CheckpointFacts, Failure, HostPhase, OrderKind
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs import events
from clary.control.jobs.attempts import MAX_DETAILED
from clary.control.jobs.training_job import AttemptEnd, EndCause, RestartRule

RECLAIM = events.Reclaimed(reason="The spot capacity of algo-1 was reclaimed", grace_s=30.0)
STOPPED = (exit_of(None, signal=15, killed=True),)
LOST = events.HostLost(host="algo-2", why="algo-2 was lost: silent")
STOP = events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=5.0)


def reclaimed():
    """Return the script of a job whose hosts have all stopped after a reclaim."""
    return Script().run().send(RECLAIM).all(HostPhase.EXITED, exits=STOPPED)


def is_last(script):
    """Return whether every living host has the order to serve no other attempt."""
    orders = [record.order for record in script.job.hosts.values() if record.facts.phase is not HostPhase.LOST]
    (said,) = {order.arguments["is_last"] for order in orders if order.kind is OrderKind.RELEASE}
    return said


def finish(script):
    for host in script.hosts:
        script.numbers[host] = 0
    script.ask().all(HostPhase.PREPARING).all(HostPhase.PREPARED).all(HostPhase.RUNNING)
    script.all(HostPhase.EXITED, exits=(exit_of(0),))
    script.report("algo-2", HostPhase.DONE, exits=(exit_of(0),))
    return script.report("algo-1", HostPhase.DONE, exits=(exit_of(0),), uploaded=(MODEL_URI,))


def test_a_job_that_is_reclaimed_waits_without_hosts_and_completes_in_its_next_attempt():
    script = Script().run().send(RECLAIM)
    assert {script.order(host) for host in script.hosts} == {OrderKind.STOP}
    assert {record.order.grace_s for record in script.job.hosts.values()} == {30.0}
    assert script.job.status is TrainingJobStatus.IN_PROGRESS
    assert script.job.secondary_status is SecondaryStatus.INTERRUPTED
    script.all(HostPhase.EXITED, exits=STOPPED)
    assert script.job.is_leaving
    assert {script.order(host) for host in script.hosts} == {OrderKind.RELEASE}
    assert is_last(script)
    script.all(HostPhase.RELEASED, exits=STOPPED).send(events.Released())
    job = script.job
    assert (job.hosts, job.plan, job.is_released, job.is_leaving) == ({}, None, True, False)
    assert [(past.number, past.kind) for past in job.past_attempts] == [(1, AttemptEnd.RECLAIMED)]
    script.send(events.MustWait(reason="1 host of 4 is free"))
    assert script.job.secondary_status is SecondaryStatus.INTERRUPTED
    assert script.job.transitions[-1].message == f"{RECLAIM.reason}; 1 host of 4 is free"
    finish(script)
    assert script.job.status is TrainingJobStatus.COMPLETED
    assert script.job.attempt == 2
    assert " ".join(script.secondaries()) == (
        "Starting Downloading Training Interrupted Starting Downloading Training Uploading Completed"
    )


def test_a_program_that_had_finished_before_the_order_completes_the_job():
    script = Script().run().report("algo-1", HostPhase.EXITED, exits=(exit_of(0),))
    script.send(RECLAIM).report("algo-2", HostPhase.EXITED, exits=(exit_of(0),))
    assert script.order("algo-2") is OrderKind.UPLOAD
    script.report("algo-2", HostPhase.DONE, exits=(exit_of(0),))
    script.report("algo-1", HostPhase.DONE, exits=(exit_of(0),), uploaded=(MODEL_URI,))
    assert script.job.status is TrainingJobStatus.COMPLETED
    assert script.job.past_attempts == ()


def test_a_stopped_program_with_exit_code_0_has_not_finished():
    script = Script().run().send(RECLAIM).all(HostPhase.EXITED, exits=(exit_of(0, killed=True),))
    assert script.job.is_leaving


def test_a_second_reclaim_and_reports_of_the_old_attempt_change_nothing():
    script = reclaimed()
    before = script.job
    assert script.send(RECLAIM).job is before
    script.send(events.Released())
    waiting = script.job
    assert script.report("algo-1", HostPhase.LOST).job is waiting
    assert script.send(RECLAIM).job is waiting
    assert script.send(events.Released()).job is waiting


def test_a_job_that_ends_already_is_not_reclaimed():
    script = Script().run().send(STOP)
    assert script.send(RECLAIM).job.ending is None


def test_a_stop_while_an_attempt_ends_keeps_its_results():
    script = Script().run().send(RECLAIM).send(STOP)
    assert script.job.status is TrainingJobStatus.STOPPING
    script.all(HostPhase.EXITED, exits=STOPPED).report("algo-2", HostPhase.DONE, exits=STOPPED)
    script.report("algo-1", HostPhase.DONE, exits=STOPPED, uploaded=(MODEL_URI,))
    assert script.job.status is TrainingJobStatus.STOPPED
    assert script.job.model_artifacts_uri == MODEL_URI


def test_a_stop_while_a_failed_attempt_stops_ends_the_job_without_a_restart():
    script = Script(restart_rule=RestartRule(max_restarts=1)).run().send(LOST)
    assert (script.job.end_cause, script.job.ending) == (EndCause.FAILURE, None)
    script.send(STOP)
    assert script.job.status is TrainingJobStatus.STOPPING
    script.report("algo-1", HostPhase.EXITED, exits=STOPPED)
    script.report("algo-1", HostPhase.DONE, exits=STOPPED, uploaded=(MODEL_URI,))
    assert (script.job.status, script.job.failure) == (TrainingJobStatus.STOPPED, None)
    assert script.job.past_attempts == ()


def test_a_stop_of_a_job_that_fails_for_good_changes_nothing():
    script = Script().run().send(LOST)
    before = script.job
    assert script.send(STOP).job is before


def test_a_stop_of_a_reclaimed_attempt_ends_the_job_at_its_release():
    script = reclaimed().send(STOP)
    assert script.job.status is TrainingJobStatus.STOPPING
    script.send(events.Released())
    assert script.job.status is TrainingJobStatus.STOPPED
    assert script.job.is_released


def test_a_stop_of_a_job_that_waits_for_capacity_ends_it_at_once():
    script = reclaimed().send(events.Released()).send(STOP)
    assert script.job.status is TrainingJobStatus.STOPPED
    assert script.job.training_ended_at is not None


def test_a_lost_host_restarts_a_job_that_may_be_restarted():
    script = Script(restart_rule=RestartRule(max_restarts=1)).run().send(LOST)
    assert script.order("algo-1") is OrderKind.STOP
    script.report("algo-1", HostPhase.EXITED, exits=STOPPED)
    assert script.job.secondary_status is SecondaryStatus.RESTARTING
    assert script.job.failure is None
    assert not is_last(script)
    script.send(events.Released())
    past = script.job.past_attempts[0]
    assert (past.kind, past.failure.host) == (AttemptEnd.RESTARTED, "algo-2")
    assert script.job.not_before is None, "the first restart comes at once"
    finish(script)
    assert script.job.status is TrainingJobStatus.COMPLETED
    assert script.job.not_before is None


def test_restarts_have_a_bound_and_the_last_failure_ends_the_job():
    script = Script(restart_rule=RestartRule(max_restarts=2))
    for pauses in (False, True):
        script.numbers = dict.fromkeys(script.hosts, 0)
        script.run().send(LOST).report("algo-1", HostPhase.EXITED, exits=STOPPED)
        assert is_last(script) == pauses, "a job that pauses gives its hosts back"
        script.send(events.Released())
    assert script.job.not_before - script.job.past_attempts[1].asked_at == timedelta(seconds=1)
    script.numbers = dict.fromkeys(script.hosts, 0)
    script.run().send(LOST).report("algo-1", HostPhase.EXITED, exits=STOPPED)
    script.report("algo-1", HostPhase.DONE, exits=STOPPED)
    assert script.job.status is TrainingJobStatus.FAILED
    assert "algo-2 was lost" in script.job.failure.message


def test_the_pauses_grow_only_while_no_attempt_stores_a_checkpoint():
    script = Script(restart_rule=RestartRule(max_restarts=9))
    pauses_s = []
    for stores in (False, False, False, True, False, False):
        script.numbers = dict.fromkeys(script.hosts, 0)
        stored = CheckpointFacts(set_number=1, committed_at=at(1)) if stores else CheckpointFacts()
        script.run().send(LOST).report("algo-1", HostPhase.EXITED, exits=STOPPED, checkpoints=stored)
        script.send(events.Released())
        asked_at = script.job.past_attempts[-1].asked_at
        pauses_s.append(0 if script.job.not_before is None else (script.job.not_before - asked_at).total_seconds())
    assert pauses_s == [0, 1, 2, 0, 0, 1]


@pytest.mark.parametrize(
    ("words", "includes_programs", "is_tried_again"),
    [
        ("ImportError: no module named x", True, False),
        ("rank 0 was ended by signal 9 (SIGKILL)", False, False),
        ("rank 0 was ended by signal 9 (SIGKILL)", True, True),
    ],
)
def test_a_program_is_restarted_only_on_request_and_if_a_retry_can_help(words, includes_programs, is_tried_again):
    rule = RestartRule(max_restarts=3, includes_programs=includes_programs)
    exits = (exit_of(None, signal=9),) if "signal" in words else (exit_of(1),)
    failure = Failure(fault=Fault.ALGORITHM.value, message=words)
    script = Script(("algo-1",), restart_rule=rule).run().all(HostPhase.EXITED, exits=exits, failure=failure)
    assert (script.job.secondary_status is SecondaryStatus.RESTARTING) is is_tried_again


def test_a_machine_without_uv_fails_the_job_at_once_and_a_lost_host_does_not():
    words = "Requirements are installed with uv, which is neither beside the agent's interpreter nor in PATH."
    for message, is_tried_again in ((words, False), ("the machine's disk does not answer", True)):
        script = Script(("algo-1",), restart_rule=RestartRule(max_restarts=3)).ask().all(HostPhase.PREPARING)
        failure = Failure(fault=Fault.INFRASTRUCTURE.value, message=message)
        script.all(HostPhase.EXITED, exits=(), failure=failure)
        assert (script.job.secondary_status is SecondaryStatus.RESTARTING) is is_tried_again, message
        if not is_tried_again:
            script.all(HostPhase.DONE, exits=())
            assert script.job.status is TrainingJobStatus.FAILED
            assert words in script.job.failure.message


def test_a_deterministic_failure_reported_after_its_effect_is_not_restarted():
    rule = RestartRule(max_restarts=3, includes_programs=True)
    script = Script(restart_rule=rule).run()
    effect = Failure(fault=Fault.ALGORITHM.value, message="rank 0 ended with exit code 1: ConnectionResetError: peer")
    script.report("algo-1", HostPhase.EXITED, exits=(exit_of(1, seconds=41),), failure=effect)
    assert script.job.ending is None, "the other host has not told its side"
    cause = Failure(fault=Fault.ALGORITHM.value, message="rank 1 ended with exit code 1: NameError: name 'x'")
    script.report("algo-2", HostPhase.EXITED, exits=(exit_of(1, seconds=40, rank=1),), failure=cause)
    assert script.job.ending is None
    assert script.job.end_cause is EndCause.FAILURE


def test_hosts_that_could_not_be_launched_are_requested_again():
    script = Script(restart_rule=RestartRule(max_restarts=1)).ask()
    script.send(events.LaunchFailed(message="no namespaces left", fault=Fault.INFRASTRUCTURE))
    assert script.job.is_leaving
    finish(script.send(events.Released()))
    assert script.job.status is TrainingJobStatus.COMPLETED


def test_a_long_history_keeps_the_hosts_of_its_last_attempts_only():
    script = Script()
    for _ in range(MAX_DETAILED + 5):
        script.numbers = dict.fromkeys(script.hosts, 0)
        script.run().send(RECLAIM).all(HostPhase.EXITED, exits=STOPPED).send(events.Released())
    with_hosts = [past.number for past in script.job.past_attempts if past.hosts]
    assert with_hosts == list(range(6, MAX_DETAILED + 6))
    assert script.job.attempt == MAX_DETAILED + 5
