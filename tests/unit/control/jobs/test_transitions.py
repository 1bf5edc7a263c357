"""The life of a job as a state machine: examples for each path, properties for every interleaving."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from job_script import MODEL_URI, PLAN, START, Script, at, exit_of, new_job

from clary.base.errors import Fault
from clary.contract.agent_protocol import Failure, HostFacts, HostPhase, OrderKind, Report, StagedPart
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs import attempts, events, transitions
from clary.control.jobs.training_job import AttemptEnd, EndCause, RestartRule


def test_a_successful_job_passes_through_every_status_in_order():
    script = Script().run().all(HostPhase.EXITED, exits=(exit_of(0),))
    assert script.order("algo-2") is OrderKind.UPLOAD
    assert script.order("algo-1") is OrderKind.RUN, "the leader waits until the others have staged"
    part = StagedPart(host="algo-2", kind="model", uri="s3://b/x", size_bytes=1, num_files=1)
    script.report("algo-2", HostPhase.DONE, exits=(exit_of(0),), staged=(part,))
    lead = script.job.hosts["algo-1"].order
    assert (lead.kind, lead.arguments["role"]) == (OrderKind.UPLOAD, "lead")
    assert [item["host"] for item in lead.arguments["staged"]] == ["algo-2"]
    assert not script.job.is_terminal
    script.report("algo-1", HostPhase.DONE, exits=(exit_of(0),), uploaded=(MODEL_URI,))
    assert script.job.status is TrainingJobStatus.COMPLETED
    assert script.secondaries() == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert script.job.model_artifacts_uri == MODEL_URI
    assert all(record.order.kind is OrderKind.RELEASE for record in script.job.hosts.values())
    assert all(record.order.arguments["is_last"] for record in script.job.hosts.values())


def test_hosts_run_only_when_all_are_prepared():
    script = Script().ask().all(HostPhase.PREPARING).report("algo-1", HostPhase.PREPARED)
    assert script.order("algo-1") is OrderKind.PREPARE
    script.report("algo-2", HostPhase.PREPARED)
    assert {script.order(host) for host in script.hosts} == {OrderKind.RUN}


def test_one_failing_host_stops_the_others_and_names_the_first_cause():
    script = Script().run().report("algo-2", HostPhase.EXITED, exits=(exit_of(3, seconds=40, rank=2),))
    assert script.order("algo-1") is OrderKind.STOP
    script.report("algo-1", HostPhase.EXITED, exits=(exit_of(None, signal=15, killed=True),))
    assert (script.job.failure.host, script.job.failure.rank, script.job.failure.exit_code) == ("algo-2", 2, 3)
    script.report("algo-2", HostPhase.DONE, exits=(exit_of(3),))
    script.report("algo-1", HostPhase.DONE, exits=(exit_of(None, signal=15, killed=True),), uploaded=(MODEL_URI,))
    assert script.job.status is TrainingJobStatus.FAILED
    assert "Uploading" in script.secondaries(), "results of failed jobs are kept"


def test_the_failure_file_replaces_the_message_and_keeps_the_exit_code():
    script = (
        Script(("algo-1",)).run().report("algo-1", HostPhase.EXITED, exits=(exit_of(1),), failure_file="my own words")
    )
    assert script.job.failure.message == "my own words"
    assert script.job.failure.exit_code == 1


def test_a_job_whose_leader_cannot_upload_is_failed_not_completed():
    script = Script(("algo-1",)).run().all(HostPhase.EXITED, exits=(exit_of(0),))
    failure = Failure(fault=Fault.INFRASTRUCTURE.value, message="disk full")
    script.report("algo-1", HostPhase.DONE, exits=(exit_of(0),), failure=failure)
    assert script.job.status is TrainingJobStatus.FAILED
    assert script.job.failure.message == "disk full"


def test_a_leader_lost_while_uploading_fails_the_job():
    script = (
        Script(("algo-1",))
        .run()
        .all(HostPhase.EXITED, exits=(exit_of(0),))
        .all(HostPhase.UPLOADING, exits=(exit_of(0),))
    )
    script.send(events.HostLost(host="algo-1", why="silent"))
    assert script.job.status is TrainingJobStatus.FAILED


def test_a_failed_download_ends_without_upload():
    script = Script().ask().all(HostPhase.PREPARING)
    failure = Failure(fault=Fault.USER.value, message="Data download failed: x")
    script.report("algo-1", HostPhase.EXITED, failure=failure)
    assert script.order("algo-2") is OrderKind.STOP
    script.report("algo-2", HostPhase.EXITED)
    assert script.job.status is TrainingJobStatus.FAILED
    assert script.secondaries() == ["Starting", "Downloading", "Failed"]


def test_stopping_a_running_job_uploads_and_ends_stopped():
    script = Script().run().send(events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=120))
    assert script.job.status is TrainingJobStatus.STOPPING
    assert {script.job.hosts[host].order.grace_s for host in script.hosts} == {120}
    script.all(HostPhase.EXITED, exits=(exit_of(None, signal=15, killed=True),))
    assert script.job.secondary_status is SecondaryStatus.UPLOADING
    script.report("algo-2", HostPhase.DONE, exits=(exit_of(None, signal=15, killed=True),))
    script.report("algo-1", HostPhase.DONE, exits=(exit_of(1, killed=True),), uploaded=(MODEL_URI,))
    assert script.job.status is TrainingJobStatus.STOPPED
    assert script.job.model_artifacts_uri == MODEL_URI


def test_stopping_a_waiting_job_ends_at_once():
    script = Script().send(events.MustWait(reason="2 of 2 hosts are taken by job x"))
    assert script.job.secondary_status is SecondaryStatus.PENDING
    script.send(events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=1))
    assert script.job.status is TrainingJobStatus.STOPPED
    assert script.job.training_ended_at is None


def test_max_runtime_ends_stopped_with_its_own_secondary_status():
    script = Script(("algo-1",)).run().send(events.StopWanted(cause=EndCause.MAX_RUNTIME, grace_s=1))
    script.report("algo-1", HostPhase.EXITED, exits=(exit_of(0),))
    script.report("algo-1", HostPhase.DONE, exits=(exit_of(0),), uploaded=(MODEL_URI,))
    assert script.job.secondary_status is SecondaryStatus.MAX_RUNTIME_EXCEEDED
    assert script.job.status is TrainingJobStatus.STOPPED


def test_a_failed_launch_is_a_failed_job():
    script = Script().ask().send(events.LaunchFailed(message="no namespaces", fault=Fault.INFRASTRUCTURE))
    assert script.job.status is TrainingJobStatus.FAILED
    assert script.job.failure.message == "no namespaces"


def test_a_report_of_a_lost_host_changes_nothing():
    script = Script().run().send(events.HostLost(host="algo-2", why="silent for 5 s"))
    before = script.job
    script.report("algo-2", HostPhase.RUNNING)
    assert script.job is before


@pytest.mark.parametrize("phase", [HostPhase.PREPARING, HostPhase.PREPARED])
def test_a_phase_never_goes_back(phase):
    script = Script().run()
    before = script.job
    script.report("algo-1", phase)
    assert script.job is before


def test_a_stopped_job_whose_results_are_overdue_stays_stopped_and_tells_it():
    script = Script().run().send(events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=1.0))
    for host in ("algo-1", "algo-2"):
        script.report(host, HostPhase.EXITED, exits=(exit_of(0, seconds=1),))
    script.send(events.UploadOverdue(limit_s=1.0))
    assert (script.job.status, script.job.end_cause) == (TrainingJobStatus.STOPPED, EndCause.STOP_REQUESTED)
    assert "did not reach the object store" in script.job.failure.message
    assert script.job.model_artifacts_uri is None


def _events():
    hosts = st.sampled_from(["algo-1", "algo-2", "algo-3"])
    exits = st.lists(
        st.builds(
            exit_of,
            st.sampled_from([0, 0, 1, 137]),
            seconds=st.integers(0, 90),
            killed=st.booleans(),
        ),
        max_size=2,
    ).map(tuple)
    failure = st.none() | st.builds(
        Failure, fault=st.sampled_from([f.value for f in Fault]), message=st.text(max_size=5)
    )
    facts = st.builds(
        HostFacts,
        phase=st.sampled_from(list(HostPhase)),
        phase_started_at=st.just(START),
        exits=exits,
        failure=failure,
        uploaded=st.sampled_from([(), (MODEL_URI,)]),
        could_not_upload=st.booleans(),
    )
    return st.one_of(
        st.builds(events.MustWait, reason=st.sampled_from(["a", "b"])),
        st.just(events.HostsAsked(plan=PLAN, host_names=("algo-1", "algo-2"), log_streams=())),
        st.just(events.NetworkReady(plan=PLAN)),
        st.builds(events.LaunchFailed, message=st.text(max_size=5), fault=st.sampled_from(list(Fault))),
        st.builds(events.HostReported, host=hosts, report=st.builds(Report, number=st.integers(1, 40), facts=facts)),
        st.builds(events.HostLost, host=hosts, why=st.just("silent")),
        st.builds(
            events.StopWanted,
            cause=st.sampled_from([EndCause.STOP_REQUESTED, EndCause.MAX_RUNTIME]),
            grace_s=st.just(1.0),
        ),
        st.just(events.Reclaimed(reason="the capacity of algo-1 was reclaimed", grace_s=1.0)),
        st.just(events.ReclaimExplained(reason="the engine tells why")),
        st.just(events.UploadOverdue(limit_s=1.0)),
        st.just(events.Released()),
    )


@settings(max_examples=400)
@given(st.lists(st.tuples(_events(), st.integers(-5, 30)), max_size=30), st.integers(0, 2))
def test_every_interleaving_of_events_keeps_the_job_s_invariants(history, max_restarts):
    job, seconds, cause = new_job(restart_rule=RestartRule(max_restarts=max_restarts)), 0, None
    for event, step in history:
        seconds += step
        before = job
        job = transitions.apply(job, event, now=at(seconds))
        if before.is_terminal:
            assert job.status is before.status, "a terminal status absorbs everything"
            assert job.transitions == before.transitions
            assert job.failure == before.failure
        rows = job.transitions
        assert all(row.ended_at is not None for row in rows[:-1]), "one transition is open at most"
        starts = [row.started_at for row in rows]
        assert starts == sorted(starts), "time never goes back"
        assert all(a.ended_at == b.started_at for a, b in itertools.pairwise(rows))
        assert rows[-1].status is job.secondary_status
        assert all(row.message for row in rows)
        is_tried_again = cause is EndCause.FAILURE and job.ending is not None and before.ending is None
        is_stopped_instead = isinstance(event, events.StopWanted) and attempts.will_be_retried(before)
        if cause not in (None, EndCause.SUCCESS) and not is_tried_again and not is_stopped_instead:
            assert job.end_cause is cause, "the first cause stays"
        restarts = [past for past in job.past_attempts if past.kind is AttemptEnd.RESTARTED]
        assert len(restarts) <= max_restarts
        assert all(past.failure is not None and past.failure.is_retryable for past in restarts)
        assert [past.number for past in job.past_attempts] == list(range(1, len(job.past_attempts) + 1))
        assert job.attempt - len(job.past_attempts) in (0, 1)
        if not job.is_terminal and not job.hosts:
            assert job.is_released, "a job that waits has no hosts"
        if job.is_terminal and not before.is_terminal:
            assert job.ending is None
        cause = job.end_cause
        if job.status is TrainingJobStatus.COMPLETED:
            assert all(exit_.exit_code == 0 for record in job.hosts.values() for exit_ in record.facts.exits)
            assert job.failure is None
        if job.status is TrainingJobStatus.FAILED:
            assert job.failure is not None
        for name, record in job.hosts.items():
            if name in before.hosts and record.order is not None and before.hosts[name].order is not None:
                assert record.order.number >= before.hosts[name].order.number
