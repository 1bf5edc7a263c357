"""Notices that capacity ends: from an agent's report, or an engine's signal, to the end of the attempt."""

import math
from dataclasses import replace
from datetime import timedelta

import pytest
from job_script import MODEL_URI, PLAN, Script, at, exit_of

from clary.contract.agent_protocol import CapacityNotice, Failure, HostPhase, OrderKind
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.analysis.billing import JobPrice, bill
from clary.control.jobs import events, notices
from clary.control.jobs.training_job import AttemptEnd, EndCause, RestartRule

NOTICE = CapacityNotice(why="SIGTERM from the engine", at=at(40), grace_s=20.0)
STOPPED = (exit_of(None, signal=15, killed=True),)
GRACE_S = 120.0


class NoticedScript(Script):
    """A job whose plan holds the grace time of programs."""

    def ask(self):
        streams = tuple(f"job/{host}-1" for host in self.hosts)
        plan = {**PLAN, "stop_grace_s": GRACE_S}
        return self.send(events.HostsAsked(plan=plan, host_names=tuple(self.hosts), log_streams=streams))


def graces(script):
    return {record.order.grace_s for record in script.job.hosts.values() if record.order.kind is OrderKind.STOP}


@pytest.mark.parametrize(
    ("left_s", "grace_s", "said"),
    [
        (20.0, 18.1, "; 20 s are left"),
        (500.0, GRACE_S, "; 500 s are left"),
        (1.0, 0.905, "; 1 s are left"),
        (-3.0, 0.0, "; 0 s are left"),
        (None, GRACE_S, ""),
        (math.nan, GRACE_S, ""),
        (math.inf, GRACE_S, ""),
    ],
)
def test_programs_get_the_remaining_time_less_a_margin(left_s, grace_s, said):
    event = notices.reclaimed("algo-2", "SIGTERM from the engine", left_s, GRACE_S)
    assert event.reason == f"algo-2: its capacity is taken back (SIGTERM from the engine){said}"
    assert event.grace_s == pytest.approx(grace_s)


def test_the_text_of_a_notice_is_shortened_to_one_printable_line():
    event = notices.reclaimed("algo-1", "a\nb\x1b" + "c" * 1000, None, GRACE_S)
    assert event.reason.isprintable()
    assert len(event.reason) < 300


@pytest.mark.parametrize(
    ("age_s", "grace_s"), [(0.0, 18.1), (5.0, 13.575), (-100.0, 18.1), (math.nan, 18.1), (1e9, 0.0)]
)
def test_the_age_of_a_notice_is_counted_by_its_host(age_s, grace_s):
    event = notices.of_report("algo-1", NOTICE, age_s=age_s, stop_grace_s=GRACE_S, now=at(1000))
    assert event.grace_s == pytest.approx(grace_s)
    assert at(1000) - timedelta(days=1) <= event.noticed_at <= at(1000)


def test_a_notice_stops_the_whole_gang_and_the_next_attempt_uses_up_no_restart():
    script = NoticedScript(restart_rule=RestartRule(max_restarts=1)).run()
    script.report("algo-2", HostPhase.RUNNING, notice=NOTICE, notice_age_s=1.5)
    assert {script.order(host) for host in script.hosts} == {OrderKind.STOP}
    assert list(graces(script)) == [pytest.approx(18.5 * 0.905)]
    assert {record.order.reason for record in script.job.hosts.values()} == {"reclaimed"}
    assert script.job.secondary_status is SecondaryStatus.INTERRUPTED
    assert "algo-2: its capacity is taken back (SIGTERM from the engine)" in script.job.transitions[-1].message
    script.report("algo-1", HostPhase.EXITED, exits=STOPPED).report("algo-2", HostPhase.EXITED, exits=STOPPED)
    assert {script.order(host) for host in script.hosts} == {OrderKind.RELEASE}
    script.send(events.Released())
    (past,) = script.job.past_attempts
    assert past.kind is AttemptEnd.RECLAIMED
    assert past.hosts["algo-2"].notice is None, "the last report of that host had none"


def test_the_engine_s_reason_takes_the_place_of_the_signal_that_an_agent_reported():
    script = NoticedScript().run().report("algo-2", HostPhase.RUNNING, notice=NOTICE)
    assert script.job.ending.is_by_signal
    told = events.ReclaimExplained(reason="algo-1: its capacity is taken back (Slurm job 6 was cancelled by alice)")
    script.send(told)
    assert script.job.transitions[-1].message == told.reason
    assert script.secondaries().count("Interrupted") == 1
    script.send(replace(told, reason="another one")).all(HostPhase.EXITED, exits=STOPPED).send(events.Released())
    assert script.job.past_attempts[0].reason == told.reason


def test_an_engine_s_reason_explains_no_other_end():
    told = events.ReclaimExplained(reason="too late")
    script = NoticedScript().run().send(told)
    assert script.job.ending is None
    script.send(events.Reclaimed(reason="the engine's own words", grace_s=5.0)).send(told)
    assert script.job.ending.reason == "the engine's own words"


def test_a_job_on_demand_pays_its_full_price_for_a_reclaimed_attempt():
    script = NoticedScript().run().report("algo-1", HostPhase.RUNNING, notice=NOTICE)
    script.all(HostPhase.EXITED, exits=STOPPED).send(events.Released())
    price = JobPrice(usd_per_hour=3600.0, spot_fraction=0.3)
    billed = bill(script.job, price, now=at(script.seconds))
    assert not billed.is_spot
    assert billed.billable_s == billed.training_s
    assert billed.savings_percent == 0


def test_notices_of_all_hosts_end_the_attempt_once():
    script = NoticedScript().run()
    script.report("algo-1", HostPhase.RUNNING, notice=NOTICE)
    ending = script.job.ending
    script.report("algo-2", HostPhase.RUNNING, notice=NOTICE)
    assert script.job.ending == ending
    assert script.secondaries().count("Interrupted") == 1


@pytest.mark.parametrize("phase", [HostPhase.PREPARING, HostPhase.PREPARED])
def test_a_notice_before_the_program_runs_ends_the_attempt_too(phase):
    script = NoticedScript().ask().all(phase).report("algo-1", phase, notice=NOTICE)
    assert script.job.ending.kind is AttemptEnd.RECLAIMED


def test_a_host_that_is_lost_after_its_notice_is_no_failure():
    script = NoticedScript().run().report("algo-2", HostPhase.RUNNING, notice=NOTICE)
    script.send(events.HostLost(host="algo-2", why="algo-2 was lost: its agent ended"))
    script.report("algo-1", HostPhase.EXITED, exits=STOPPED)
    assert script.job.is_leaving
    assert script.job.failure is None


def failing(script, host="algo-1"):
    """Have a host report that its program has failed."""
    failure = Failure(fault="algorithm", message="rank 0 ended with exit code 1", exit_code=1)
    return script.report(host, HostPhase.RUNNING, exits=(exit_of(1),), failure=failure)


def test_a_failure_just_before_a_notice_is_not_blamed_on_the_job():
    script = failing(NoticedScript().run())
    assert script.job.end_cause is EndCause.FAILURE
    script.report("algo-2", HostPhase.RUNNING, notice=NOTICE, notice_age_s=0.5)
    assert script.job.ending.kind is AttemptEnd.RECLAIMED
    assert (script.job.end_cause, script.job.failure) == (None, None)
    script.all(HostPhase.EXITED, exits=STOPPED).send(events.Released())
    assert script.job.past_attempts[0].failure is None


def test_a_failure_long_before_the_notice_stays_the_cause():
    script = failing(NoticedScript().run())
    for _ in range(5):
        script.send(events.MustWait(reason="nothing: a second goes by"))
    script.report("algo-2", HostPhase.RUNNING, notice=NOTICE)
    assert script.job.end_cause is EndCause.FAILURE
    assert script.job.ending is None


def test_a_stop_request_prevails_over_a_notice():
    stop = events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=5.0)
    script = NoticedScript().run().send(stop).report("algo-1", HostPhase.RUNNING, notice=NOTICE)
    assert script.job.ending is None
    assert script.job.status is TrainingJobStatus.STOPPING


def test_programs_that_exit_with_0_after_an_engine_s_signal_have_not_finished():
    script = NoticedScript().run()
    answered = (exit_of(0, seconds=40.001),)
    for host in script.hosts:
        script.report(host, HostPhase.EXITED, exits=answered, notice=NOTICE)
    assert script.job.is_leaving
    assert script.job.status is TrainingJobStatus.IN_PROGRESS


def test_programs_that_had_finished_before_the_notice_complete_the_job():
    script = NoticedScript().run()
    script.report("algo-1", HostPhase.EXITED, exits=(exit_of(0, seconds=30),))
    script.report("algo-2", HostPhase.EXITED, exits=(exit_of(0, seconds=30),), notice=NOTICE)
    script.report("algo-2", HostPhase.DONE, exits=(exit_of(0, seconds=30),), notice=NOTICE)
    script.report("algo-1", HostPhase.DONE, exits=(exit_of(0, seconds=30),), uploaded=(MODEL_URI,))
    assert script.job.status is TrainingJobStatus.COMPLETED
