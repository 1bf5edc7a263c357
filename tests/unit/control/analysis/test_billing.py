"""Training seconds, billable seconds, savings, and the cost at on-demand rates."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_script import Script, at, exit_of

from clary.contract.agent_protocol import HostPhase
from clary.contract.statuses import TrainingJobStatus
from clary.control.analysis.billing import (
    JobPrice,
    bill,
    billable_seconds,
    savings_percent,
    training_time,
    whole_seconds,
)
from clary.control.jobs import events
from clary.control.jobs.training_job import EndCause

PRICE = JobPrice(usd_per_hour=7.2, spot_fraction=0.3, source="a list")
SPOT = {"EnableManagedSpotTraining": True}


def script(hosts=("algo-1",), *, request=None):
    made = Script(hosts)
    made.job = replace(made.job, request=request or {})
    return made


def wait(made, seconds):
    made.seconds += seconds
    return made


def finish(made):
    return made.all(HostPhase.EXITED, exits=(exit_of(0),)).all(HostPhase.DONE, exits=(exit_of(0),))


def reclaimed(made):
    """Reclaim, stop and release the attempt, in three seconds."""
    made.send(events.Reclaimed(reason="gone", grace_s=1)).all(HostPhase.EXITED, exits=(exit_of(1, killed=True),))
    return made.send(events.Released())


def test_time_counts_from_downloading_to_the_end_of_uploading():
    made = finish(wait(wait(script(), 100).ask().all(HostPhase.PREPARING), 30).all(HostPhase.RUNNING))
    assert made.job.status is TrainingJobStatus.COMPLETED
    assert training_time(made.job, now=at(9999)) == timedelta(seconds=33)
    assert made.job.training_started_at == at(102)


def test_a_job_that_never_downloaded_has_no_training_time_and_no_bill():
    made = script().send(events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=1))
    assert made.job.is_terminal
    assert training_time(made.job, now=at(50)) is None
    assert bill(made.job, PRICE, now=at(50)) is None


def test_the_wait_between_attempts_is_no_training_time_but_the_stop_is():
    made = script(request=SPOT).run()
    began = made.seconds - 2  # two seconds ago: the report of preparing
    reclaimed(wait(made, 20))
    first = made.seconds - began
    wait(made, 500).run()
    second_began = made.seconds - 2
    finish(wait(made, 40))
    assert [row.status.value for row in made.job.transitions] == [
        "Starting", "Downloading", "Training", "Interrupted", "Starting", "Downloading", "Training", "Uploading",
        "Completed",
    ]  # fmt: skip
    expected = first + made.seconds - second_began
    assert training_time(made.job, now=at(9999)) == timedelta(seconds=expected)
    billed = bill(made.job, PRICE, now=at(9999))
    assert (billed.training_s, billed.billable_s) == (expected, round(expected * 0.3))


def test_a_job_stopped_while_it_waits_is_billed_for_its_earlier_attempts():
    made = reclaimed(wait(script(request=SPOT).run(), 7))
    trained = training_time(made.job, now=at(made.seconds))
    wait(made, 1000).send(events.StopWanted(cause=EndCause.MAX_WAIT, grace_s=1))
    assert made.job.is_terminal
    assert training_time(made.job, now=at(9999)) == trained == timedelta(seconds=2 + 7 + 3)


def test_a_running_job_is_billed_up_to_now():
    made = wait(script().run(), 10)
    assert bill(made.job, PRICE, now=at(made.seconds)).training_s == 12


def test_an_attempt_that_never_downloaded_adds_nothing():
    made = wait(script(request=SPOT).ask(), 5)
    made.send(events.Reclaimed(reason="gone", grace_s=1)).all(HostPhase.EXITED).send(events.Released())
    assert training_time(made.job, now=at(99)) is None
    assert training_time(finish(made.run()).job, now=at(99)) == timedelta(seconds=4)


def test_after_a_clock_set_back_the_wait_between_attempts_is_no_training_time():
    made = wait(script(request=SPOT), 10).ask().report("algo-1", HostPhase.PREPARING)
    began_at = made.seconds
    made.seconds = 0  # every event now gets the time of the last transition
    reclaimed(made)
    assert made.job.past_attempts[0].ended_at == at(began_at)
    made.seconds = began_at + 500
    assert training_time(finish(made.run()).job, now=at(9999)) == timedelta(seconds=4)


def test_on_demand_capacity_is_billed_in_full_and_saves_nothing():
    billed = bill(finish(script().run()).job, PRICE, now=at(99))
    assert billed.billable_s == billed.training_s == 4
    assert billed.savings_percent == 0
    assert not billed.is_spot


def test_money_is_the_price_of_all_hosts_for_the_training_time():
    made = finish(wait(script(request=SPOT).run(), 96))
    billed = bill(made.job, PRICE, now=at(9999))
    assert billed.training_s == 100
    assert billed.on_demand_usd == pytest.approx(0.2)
    assert billed.spot_usd == pytest.approx(0.06)
    assert (billed.savings_percent, billed.source) == (70.0, "a list")


def test_without_a_price_there_is_time_and_no_money():
    price = JobPrice(usd_per_hour=None, spot_fraction=0.3, notes=("no price is known for x",))
    billed = bill(finish(script(request=SPOT).run()).job, price, now=at(99))
    assert (billed.on_demand_usd, billed.spot_usd, billed.notes) == (None, None, ("no price is known for x",))
    assert billed.billable_s == 1


def test_less_than_a_second_counts_as_one():
    assert whole_seconds(timedelta()) == whole_seconds(timedelta(seconds=0.4)) == 1
    assert whole_seconds(timedelta(seconds=2.6)) == 3


@given(training_s=st.integers(1, 10_000_000), fraction=st.floats(0.0001, 1))
def test_billable_seconds_are_at_least_one_and_never_more_than_training_seconds(training_s, fraction):
    billable_s = billable_seconds(training_s, fraction)
    assert 1 <= billable_s <= training_s
    assert 0 <= savings_percent(training_s, billable_s) < 100


def test_the_example_of_the_documentation():
    assert billable_seconds(121, 0.3) == 36
    assert f"{savings_percent(121, 36):.1f}" == "70.2"
