"""Ranks' records of their collectives make an autopsy more exact; an autopsy without records stays right."""

from dataclasses import replace

import pytest
from dumped_gangs import ALL_REDUCE, BARRIER, COMPUTING, LOADING, gang, process, suspects, waiting
from recorded_calls import call, group, waits

from clary.contract.stack_dumps import LeftCalls
from clary.control.analysis.autopsy import Weight, examine
from clary.control.analysis.rank_doings import Doing, doing_of, operation_of

# waits for a work object, called by the script itself
USER_WAIT = (("step", "train.py", 35), ("<module>", "train.py", 38))


def recorded(made, *groups):
    return replace(made, collectives=groups)


def in_step(number, *others):
    """Return ranks that wait in all_reduce, with their records, followed by `others`."""
    ranks = [
        recorded(process(rank, ALL_REDUCE), group(call(number - 1), waits(number))) for rank in range(4 - len(others))
    ]
    return gang(*ranks, *others)


def test_a_rank_that_waits_for_data_is_named_with_the_collective_that_it_has_not_entered():
    dumps = in_step(41, recorded(process(3, LOADING), group(call(39), call(40))))
    ((who, why),) = suspects(dumps)
    assert who == "rank 3 on algo-2"
    assert "3 ranks wait for it in all_reduce; it has not entered all_reduce #41 of group 0" in why


def test_a_stopped_rank_is_named_with_its_last_collective():
    ((_, why),) = suspects(in_step(41, recorded(process(3, COMPUTING, state="T"), group(call(40)))))
    assert "would let it go on; it has not entered all_reduce #41 of group 0" in why


def test_a_different_count_under_one_number_is_found_though_all_wait_at_one_line():
    odd = recorded(process(3, ALL_REDUCE), group(call(40), waits(41, count=8)))
    ((who, why),) = suspects(in_step(41, odd))
    assert who == "rank 3 on algo-2"
    assert "rank 3 entered all_reduce #41 with 8 float32 while ranks 0-2 entered all_reduce #41 with 4" in why


def test_a_different_operation_is_one_suspicion_with_line_and_number():
    odd = recorded(process(3, BARRIER), group(call(40), waits(41, "barrier")))
    ((who, why),) = suspects(in_step(41, odd))
    assert who == "rank 3 on algo-2"
    assert "waits in barrier at step (train.py:34)" in why
    assert "rank 3 entered barrier #41 while ranks 0-2 entered all_reduce #41" in why


def test_two_camps_are_one_suspicion_with_lines_and_numbers():
    others = [recorded(process(rank, BARRIER), group(call(5), waits(6, "barrier"))) for rank in (2, 3)]
    ((who, why),) = suspects(in_step(6, *others))
    assert who == "the order of collectives"
    assert "ranks 0, 1 in all_reduce at step (train.py:35)" in why
    assert "in barrier at step (train.py:34)" in why
    assert why.endswith("in group 0 ranks 2, 3 entered barrier #6 while ranks 0, 1 entered all_reduce #6")


def test_groups_used_in_different_orders_are_found_though_all_wait_at_one_line():
    def rank_of(number, here, there):
        groups = [group(one, name=name, ranks=(0, 1)) for one, name in ((here, "a"), (there, "b"))]
        return recorded(process(number, ALL_REDUCE), *groups)

    dumps = gang(rank_of(0, waits(5), call(8)), rank_of(1, call(4), waits(9)))
    ((who, why),) = suspects(dumps, num_ranks=2)
    assert who == "the order of collectives"
    assert "rank 0 waits in all_reduce #5 of group a, which rank 1 has not entered" in why


def test_a_rank_without_a_process_is_named_with_its_last_collective():
    dumps = in_step(41)
    left = LeftCalls(rank=3, groups=(group(call(40)),))
    ranks = [one for one in dumps["algo-2"].processes if one.rank != 3]
    dumps["algo-2"] = replace(dumps["algo-2"], processes=tuple(ranks), left=(left,))
    ((who, why),) = suspects(dumps)
    assert who == "rank 3"
    assert why.endswith("its last collective was all_reduce #40 of group 0, finished")


def test_a_recorded_lasting_wait_counts_though_no_stack_shows_it():
    lasting = recorded(process(0, USER_WAIT), group(waits(7, age_s=2.0)))
    assert (doing_of(lasting), operation_of(lasting)) == (Doing.WAITS_FOR_RANKS, "all_reduce")
    passing = recorded(process(0, USER_WAIT), group(waits(7, age_s=0.1)))
    assert doing_of(passing) is Doing.OTHER
    unseen = recorded(process(0, ()), group(waits(7, age_s=2.0)))
    assert (doing_of(unseen), operation_of(unseen)) == (Doing.WAITS_FOR_RANKS, "all_reduce")
    assert doing_of(recorded(process(0, LOADING), group(waits(7, age_s=2.0)))) is Doing.WAITS_FOR_DATA


@pytest.mark.parametrize("odd", [LOADING, COMPUTING, BARRIER, ALL_REDUCE])
def test_without_records_the_report_is_unchanged(odd):
    dumps = waiting(process(3, odd))
    found = examine(dumps, hosts=("algo-1", "algo-2"), num_ranks=4)
    assert found.collectives == ()
    assert not any("#" in suspicion.why for suspicion in found.suspicions)


def test_records_of_a_job_with_progress_raise_no_suspicion():
    ranks = [
        recorded(process(rank, ALL_REDUCE, waits=50), group(call(40), waits(41, count=4 + rank))) for rank in range(4)
    ]
    assert suspects(gang(*ranks), weights=tuple(Weight)) == []
