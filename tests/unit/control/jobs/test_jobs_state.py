"""The state of a job (Queued, Starting, Running ...), and the seconds that the job spent in each state."""

import pytest
from job_script import Script, at, new_job

from clary.contract.agent_protocol import HostPhase
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs import events, transitions
from clary.control.jobs.job_state import JobState, job_state, job_times, state_of
from clary.control.jobs.training_job import EndCause


def test_a_new_job_is_queued_and_its_whole_age_counts_as_queued():
    job = new_job()
    assert job_state(job) is JobState.QUEUED
    times = job_times(job, now=at(30))
    assert (times.queued_s, times.starting_s, times.took_s, times.started_at) == (30, 0, None, None)


def test_the_duration_is_from_start_to_end_however_long_the_job_was_queued():
    script = Script(("algo-1",))
    script.job = transitions.apply(script.job, events.MustWait(reason="full"), now=at(1))
    assert job_state(script.job) is JobState.QUEUED
    script.seconds = 1600
    script.ask()
    assert job_state(script.job) is JobState.STARTING
    script.report("algo-1", HostPhase.PREPARING).report("algo-1", HostPhase.PREPARED)
    script.report("algo-1", HostPhase.RUNNING)
    assert job_state(script.job) is JobState.RUNNING
    script.send(events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=1))
    assert job_state(script.job) is JobState.STOPPING
    times = job_times(script.job, now=at(1610))
    assert (times.queued_s, times.starting_s, times.running_s, times.stopping_s) == (1601, 3, 1, 5)
    assert times.took_s == 8, "since the first host began to download"


def test_a_job_that_was_stopped_in_the_queue_has_an_end_and_no_duration():
    job = transitions.apply(new_job(), events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=1), now=at(9))
    assert job_state(job) is JobState.STOPPED
    times = job_times(job, now=at(99))
    assert (times.queued_s, times.took_s, times.ended_at) == (9, None, at(9))


def test_a_job_between_two_attempts_is_queued():
    script = Script(("algo-1",)).ask().report("algo-1", HostPhase.PREPARING)
    script.send(events.Reclaimed(reason="gone", grace_s=1))
    assert job_state(script.job) is JobState.QUEUED


@pytest.mark.parametrize("secondary", SecondaryStatus)
def test_every_pair_of_statuses_has_a_state(secondary):
    for status in TrainingJobStatus:
        assert state_of(status.value, secondary.value) in JobState
