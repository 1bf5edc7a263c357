"""The evaluation of benchmarks `goodput` and `spot`: valid steps, lost steps, and the detection of wrong steps."""

import itertools
from dataclasses import replace

import pytest
from benchmarks.job_life.bench_goodput import MAX_KILLS_A_JOB, ceiling, kill_plan, shares
from benchmarks.training.step_history import FIRST_STATE, Step, history, parse, states

RIGHT = states(40, 4)


def lines(*attempts, states=RIGHT, ranks=(0,)):
    """Return the lines of attempts (token, first, last), one step a second; ranks report a step 10 ms apart."""
    clock = itertools.count()
    return [
        Step(number=number, state=states[number], at_s=at_s + rank / 100, rank=rank, attempt=token, save_s=0.01)
        for token, first, last in attempts
        for number in range(first, last + 1)
        for at_s in (float(next(clock)),)
        for rank in ranks
    ]


def test_step_lines_are_parsed_and_other_lines_ignored():
    log = ["prepared", f"step 7 {FIRST_STATE} at 12.5000 by 3 of 0badcafe after 0.00012", "step 8 of something"]
    assert parse(log) == [Step(number=7, state=FIRST_STATE, at_s=12.5, rank=3, attempt="0badcafe", save_s=0.00012)]


def test_repeated_steps_are_lost_and_count_once():
    told = history(lines(("a", 1, 10), ("b", 9, 20), ("c", 21, 30)), num_hosts=4)
    assert (told.committed, told.executed, told.lost, told.num_attempts) == (30, 32, 2, 3)
    assert told.losses == (2, 0)
    assert (told.wall_s, told.pauses_s, told.step_s) == (31.0, (1.0, 1.0), 1.0)
    assert told.problems == ()


def test_lines_that_a_dead_host_could_not_send_are_known_from_other_ranks():
    told = [line for line in lines(("a", 1, 10), ("b", 11, 20), ranks=(0, 1)) if line.rank == 0]
    others = [line for line in lines(("a", 1, 10), ("b", 11, 20), ranks=(1,)) if line.number not in (3, 17)]
    silent = [line for line in told if line.number not in (9, 10)]
    assert history([*others, *silent], num_hosts=4).problems == ()
    assert history([*others, *silent], num_hosts=4).executed == 20
    assert history(silent, num_hosts=4).problems == ("attempt b begins with step 11: expected at most 9",)


def test_a_rank_with_another_state_and_a_repeated_step_of_a_rank_are_found():
    good = lines(("a", 1, 5), ranks=(0, 1))
    bad = replace(good[3], state=FIRST_STATE)
    assert "attempt a, rank 1, step 2: expected state" in history([*good[:3], bad, *good[4:]], num_hosts=4).problems[0]
    assert history([*good, good[3]], num_hosts=4).problems == ("attempt a, rank 1, step 2: taken twice",)


def test_a_lost_step_that_counts_as_committed_is_found():
    told = history(lines(("a", 1, 10), ("b", 12, 20)), num_hosts=4)
    assert told.problems == ("attempt b begins with step 12: expected at most 11",)


def test_a_step_that_is_executed_twice_under_two_numbers_is_found():
    twice = [FIRST_STATE, *RIGHT[1:6], *RIGHT[5:40]]  # step 6 repeats step 5
    told = history(lines(("a", 1, 8), states=twice), num_hosts=4)
    assert told.problems[0] == f"attempt a, rank 0, step 6: expected state {RIGHT[6][:12]}, got {RIGHT[5][:12]}"


def test_wrong_host_counts_gaps_and_returning_attempts_are_found():
    assert history(lines(("a", 1, 3), states=states(3, 2)), num_hosts=4).problems
    assert "step 4 follows on step 2" in history(lines(("a", 1, 2), ("a", 4, 5)), num_hosts=4).problems[0]
    assert "attempt a comes back" in history(lines(("a", 1, 2), ("b", 3, 4), ("a", 5, 6)), num_hosts=4).problems[0]
    assert "begins with step 2: expected at most 1" in history(lines(("a", 2, 5)), num_hosts=4).problems[0]


def test_a_history_of_fewer_than_two_steps_is_an_error():
    with pytest.raises(ValueError, match="at least 2 steps, got 0"):
        history([], num_hosts=4)


def test_kills_are_distributed_among_jobs_and_planned_by_their_seed():
    assert shares(300) == [75] * 4
    assert shares(76) == [38, 38]
    assert max(shares(1000)) <= MAX_KILLS_A_JOB
    plan = kill_plan(200, 5.0, seed="a")
    assert plan == kill_plan(200, 5.0, seed="a") != kill_plan(200, 5.0, seed="b")
    assert all(2.5 <= pause_s <= 7.5 for pause_s, _ in plan)
    assert {host for _, host in plan} == {"algo-1", "algo-2", "algo-3", "algo-4"}


def test_the_ceiling_follows_the_formula():
    assert ceiling(save_s=0.1, interval_s=10.0, recover_s=5.0, between_failures_s=100.0) == pytest.approx(0.89)
