"""The verdict on a failed attempt waits for late facts on hosts and links if these facts can change it."""

from datetime import UTC, datetime

import pytest
from job_script import Script, at, exit_of

from clary.contract.agent_protocol import Clue, HostPhase, OrderKind
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs import deadlines, events
from clary.control.jobs.training_job import AttemptEnd, EndCause, RestartRule

LIMITS = deadlines.Limits(stop_grace_s=5, host_timeout_s=3, launch_timeout_s=60, upload_timeout_s=600)
KILLED = (exit_of(None, signal=15, killed=True),)
RETRIES = RestartRule(max_restarts=3)


def failed(rule=RETRIES, *, hosts=("algo-1", "algo-2"), code=1, clues=()):
    """A job whose first host has failed; the other hosts have obeyed their stop orders and exited."""
    script = Script(hosts=hosts, restart_rule=rule).run()
    for host in hosts[1:]:
        script.report(host, HostPhase.RUNNING)
    exits = (exit_of(code, seconds=script.seconds),)
    script.report(hosts[0], HostPhase.EXITED, exits=exits, clues=clues)
    for host in hosts[1:]:
        assert script.order(host) is OrderKind.STOP, "nothing waits with the order to stop"
        script.report(host, HostPhase.EXITED, exits=KILLED)
    return script


def cut_off(script):
    return events.HostCutOff(host="algo-2", why="algo-2 was lost: its link", last_sign_at=at(script.seconds - 3))


def is_open(script):
    return script.job.status is TrainingJobStatus.IN_PROGRESS and script.job.ending is None


def due(script, seconds):
    return deadlines.due(script.job, now=at(seconds), limits=LIMITS, silent_s={})


def test_a_network_exit_code_waits_for_a_broken_link_and_restarts_the_job():
    script = failed()
    assert is_open(script)
    script.send(cut_off(script))
    assert script.job.secondary_status is SecondaryStatus.RESTARTING
    assert (script.job.ending.kind, script.job.ending.failure.host) == (AttemptEnd.RESTARTED, "algo-2")
    assert {script.order(host) for host in script.hosts} == {OrderKind.RELEASE}


def test_the_verdict_is_final_when_no_loss_is_found_within_the_silence_limit():
    script = failed()
    failed_s = (script.job.failed_at - at(0)).total_seconds()
    assert due(script, failed_s + 4.9) is None
    assert isinstance(due(script, failed_s + 5), events.NoMoreEvidence)
    assert isinstance(due(script, failed_s - 3600), events.NoMoreEvidence), "the machine's clock was set back"
    script.send(events.NoMoreEvidence())
    assert script.order("algo-2") is OrderKind.UPLOAD
    assert (script.job.end_cause, script.job.failure.host) == (EndCause.FAILURE, "algo-1")
    assert due(script, failed_s + 6) is None
    assert script.send(cut_off(script)).job.failure.host == "algo-1", "its results are under way"


def test_a_host_that_is_lost_during_the_wait_ends_the_wait():
    script = failed()
    lost = events.HostLost(host="algo-2", why="algo-2 was lost: silent", last_sign_at=at(1))
    assert script.send(lost).job.secondary_status is SecondaryStatus.RESTARTING


def test_a_broken_connection_waits_like_an_exit_code():
    script = failed(clues=(Clue(rank=0, at=at(4), text="ConnectionResetError: [Errno 104]"),))
    assert is_open(script)


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ({"rule": RestartRule()}, "nothing is tried again whatever the cause"),
        ({"hosts": ("algo-1",)}, "there is no other host"),
        ({"clues": (Clue(rank=0, at=at(4), text="KeyError: 'label'"),)}, "no peer has brought that about"),
    ],
)
def test_a_failure_is_final_at_once_where_evidence_would_change_nothing(job, why):
    script = failed(**job)
    assert OrderKind.UPLOAD in {script.order(host) for host in script.hosts}, why


def test_a_failure_that_is_restarted_anyway_is_restarted_without_a_wait():
    rule = RestartRule(max_restarts=3, includes_programs=True)
    script = failed(rule, clues=(Clue(rank=0, at=at(4), text="ConnectionResetError: [Errno 104]"),))
    assert script.job.secondary_status is SecondaryStatus.RESTARTING


def test_the_next_attempt_waits_for_its_own_evidence():
    script = failed()
    script.send(cut_off(script)).all(HostPhase.RELEASED, exits=KILLED).send(events.Released())
    assert (script.job.failed_at, script.job.has_all_evidence) == (None, False)


def test_a_broken_link_of_a_host_without_a_reported_exit_changes_nothing():
    script = Script(restart_rule=RETRIES).run()
    before = script.job
    assert script.send(cut_off(script)).job is before
    assert script.send(events.NoMoreEvidence()).job is before


def test_a_program_s_clue_with_the_earliest_datetime_does_not_break_the_report():
    earliest = datetime.min.replace(tzinfo=UTC)
    clue = Clue(rank=0, at=earliest, text="process rank 0 with PID 7 on node algo-1 exited on signal 9")
    script = failed(RestartRule(), clues=(clue,))
    assert script.job.failure is not None
    assert script.job.hosts["algo-1"].facts.clues[0].at > at(-3600)
