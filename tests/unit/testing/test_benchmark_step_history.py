"""The bookkeeping of benchmarks `goodput` and `spot`: what counts, what was lost, and that wrong steps are found."""

import itertools

import pytest
from benchmarks.bench_goodput import MAX_KILLS_A_JOB, ceiling, kill_plan, shares
from benchmarks.step_history import FIRST_STATE, Step, history, parse, states

RIGHT = states(40, 4)


def steps(*attempts, states=RIGHT):
    """The steps of attempts, each (token, first, last), one a second."""
    clock = itertools.count()
    return [
        Step(number=number, state=states[number], at_s=float(next(clock)), attempt=token, save_s=0.01)
        for token, first, last in attempts
        for number in range(first, last + 1)
    ]


def test_lines_of_steps_are_told_from_other_lines():
    lines = ["prepared in 0.2 s", f"step 7 {FIRST_STATE} at 12.5000 of 0badcafe after 0.00012", "step 8 of something"]
    assert parse(lines) == [Step(number=7, state=FIRST_STATE, at_s=12.5, attempt="0badcafe", save_s=0.00012)]


def test_steps_that_were_taken_again_are_lost_and_count_once():
    told = history(steps(("a", 1, 10), ("b", 9, 20), ("c", 21, 30)), num_hosts=4)
    assert (told.committed, told.executed, told.lost, told.num_attempts) == (30, 32, 2, 3)
    assert told.losses == (2, 0)
    assert (told.wall_s, told.pauses_s, told.step_s) == (31.0, (1.0, 1.0), 1.0)
    assert told.problems == ()


def test_a_lost_step_that_counts_as_committed_is_found():
    told = history(steps(("a", 1, 10), ("b", 12, 20)), num_hosts=4)
    assert told.problems == ("attempt b begins with step 12: expected at most 11",)


def test_a_step_that_is_taken_twice_under_two_numbers_is_found():
    twice = [FIRST_STATE, *RIGHT[1:6], *RIGHT[5:40]]  # step 6 has done again what step 5 had done
    told = history(steps(("a", 1, 8), states=twice), num_hosts=4)
    assert told.problems[0] == f"attempt a, step 6: expected state {RIGHT[6][:12]}, got {RIGHT[5][:12]}"


def test_steps_of_another_number_of_hosts_a_gap_and_an_attempt_that_comes_back_are_found():
    assert history(steps(("a", 1, 3), states=states(3, 2)), num_hosts=4).problems
    assert "step 4 follows on step 2" in history(steps(("a", 1, 2), ("a", 4, 5)), num_hosts=4).problems[0]
    assert "attempt a comes back" in history(steps(("a", 1, 2), ("b", 3, 4), ("a", 5, 6)), num_hosts=4).problems[0]
    assert "first step has number 2" in history(steps(("a", 2, 5)), num_hosts=4).problems[0]


def test_nothing_can_be_said_of_less_than_two_steps():
    with pytest.raises(ValueError, match="at least 2 steps, got 0"):
        history([], num_hosts=4)


def test_kills_are_shared_out_among_jobs_and_planned_by_their_seed():
    assert shares(300) == [75] * 4
    assert shares(76) == [38, 38]
    assert max(shares(1000)) <= MAX_KILLS_A_JOB
    plan = kill_plan(200, 5.0, seed="a")
    assert plan == kill_plan(200, 5.0, seed="a") != kill_plan(200, 5.0, seed="b")
    assert all(2.5 <= pause_s <= 7.5 for pause_s, _ in plan)
    assert {host for _, host in plan} == {"algo-1", "algo-2", "algo-3", "algo-4"}


def test_the_ceiling_is_the_formula():
    assert ceiling(save_s=0.1, interval_s=10.0, recover_s=5.0, between_failures_s=100.0) == pytest.approx(0.89)
