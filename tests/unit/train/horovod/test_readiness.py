"""Ready tensors: all ranks decide equally, in any order of submission."""

from __future__ import annotations

import pytest
from horovod_ranks import DecidingRank, run_round
from hypothesis import given, settings
from hypothesis import strategies as st

from clary.train._native.interface import Dtype
from clary.train.horovod.ballots import News
from clary.train.horovod.readiness import Readiness
from clary.train.horovod.requests import Description, Reduction, Verb


def allreduce(*shape: int, **changes: object) -> Description:
    return Description(Verb.ALLREDUCE, Dtype.FLOAT32, shape, **changes)  # type: ignore[arg-type]


def ranks_of(size: int, capacity: int = 8) -> list[DecidingRank]:
    return [DecidingRank(size, capacity) for _ in range(size)]


def submit(ranks: list[DecidingRank], name: str, description: Description) -> None:
    for rank in ranks:
        rank.submitted[name] = description


def test_a_tensor_runs_once_all_ranks_have_submitted_it():
    ranks = ranks_of(3)
    submit(ranks[:2], "a", allreduce(4))
    assert run_round(ranks)[0].ready == ()
    submit(ranks[2:], "a", allreduce(4))
    verdicts = run_round(ranks)
    assert [[one.name for one in verdict.ready] for verdict in verdicts] == [["a"]] * 3
    assert run_round(ranks)[0].ready == ()


def test_a_known_tensor_needs_no_second_announcement():
    ranks = ranks_of(2)
    for _ in range(2):
        submit(ranks, "a", allreduce(4))
        assert [one.name for one in run_round(ranks)[0].ready] == ["a"]
    submit(ranks, "a", allreduce(4))
    news, mask = ranks[0].news_and_mask()
    assert not news
    assert mask == 1


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (allreduce(5), "mismatched shape: rank 0 submitted (4,), rank 1 submitted (5,)"),
        (Description(Verb.ALLREDUCE, Dtype.INT32, (4,)), "mismatched data type: rank 0 submitted float32"),
        (Description(Verb.BROADCAST, Dtype.FLOAT32, (4,)), "mismatched operation: rank 0 submitted allreduce"),
        (allreduce(4, reduction=Reduction.MAX), "mismatched reduction: rank 0 submitted sum, rank 1 submitted max"),
        (allreduce(4, place="gpu"), "mismatched device: rank 0 submitted cpu, rank 1 submitted gpu"),
    ],
)
def test_tensors_that_differ_are_refused_on_all_ranks_and_may_be_submitted_again(other, words):
    ranks = ranks_of(2)
    submit(ranks[:1], "a", allreduce(4))
    submit(ranks[1:], "a", other)
    for verdict in run_round(ranks):
        assert verdict.ready[0].refusal.startswith(words)
    submit(ranks, "a", allreduce(4))
    assert run_round(ranks)[1].ready[0].refusal == ""


def test_a_known_tensor_with_a_new_shape_is_announced_again_by_all_ranks():
    ranks = ranks_of(2)
    submit(ranks, "a", allreduce(4))
    run_round(ranks)
    submit(ranks[:1], "a", allreduce(4))  # submitted by its bit
    submit(ranks[1:], "a", allreduce(6))
    assert run_round(ranks)[0].ready == ()
    assert "mismatched shape" in run_round(ranks)[0].ready[0].refusal


def test_a_group_runs_as_a_whole_or_not_at_all():
    ranks = ranks_of(2)
    group = allreduce(4, group="g", group_size=2)
    for repetition in range(3):
        submit(ranks, "g.1", group)
        submit(ranks[:1], "g.2", group)
        assert run_round(ranks)[0].ready == (), repetition
        submit(ranks[1:], "g.2", group)
        assert sorted(one.name for one in run_round(ranks)[0].ready) == ["g.1", "g.2"]


def test_a_refused_member_refuses_its_group():
    ranks = ranks_of(2)
    submit(ranks, "g.1", allreduce(4, group="g", group_size=2))
    submit(ranks[:1], "g.2", allreduce(4, group="g", group_size=2))
    submit(ranks[1:], "g.2", allreduce(9, group="g", group_size=2))
    assert all("mismatched shape" in one.refusal for one in run_round(ranks)[0].ready)
    assert len(ranks[0].ran) == 2


def test_joined_ranks_are_not_waited_for():
    ranks = ranks_of(3)
    submit(ranks, "known", allreduce(4))
    run_round(ranks)
    ranks[0].has_joined = True
    submit(ranks[1:], "known", allreduce(4))
    submit(ranks[1:], "new", allreduce(2))
    names = {one.name for _ in range(2) for one in run_round(ranks)[0].ready}
    assert names == {"known", "new"}
    submit(ranks[1:], "gather", Description(Verb.ALLGATHER, Dtype.FLOAT32, ()))
    assert "not supported with join" in run_round(ranks)[2].ready[0].refusal


def test_join_returns_the_last_rank_and_runs_no_unsubmitted_tensor():
    ranks = ranks_of(2)
    submit(ranks, "known", allreduce(4))
    run_round(ranks)
    ranks[1].has_joined = True
    assert run_round(ranks)[0].last_joined is None
    ranks[0].has_joined = True
    verdict = run_round(ranks)[0]
    assert verdict.last_joined == 0
    assert verdict.ready == ()
    submit(ranks, "known", allreduce(4))
    assert [one.name for one in run_round(ranks)[0].ready] == ["known"]


def test_the_least_recently_run_tensor_is_evicted():
    readiness = Readiness(1, capacity=2)
    for name in ("a", "b", "a", "c"):
        readiness.decide([News(announced=((name, False, allreduce(1)),))], 0)
    assert readiness.index_of("b", allreduce(1)) is None
    assert {readiness.index_of(name, allreduce(1)) for name in "ac"} == {0, 1}


def test_nameless_tensors_are_not_cached():
    readiness = Readiness(1, capacity=2)
    readiness.decide([News(announced=(("a", True, allreduce(1)),))], 0)
    assert readiness.index_of("a", allreduce(1)) is None


def test_missing_ranks_are_named():
    readiness = Readiness(3, capacity=2)
    readiness.decide([News(announced=(("a", False, allreduce(1)),)), News(), News()], 0)
    verdict = readiness.decide([News(overdue=("a",)), News(), News()], 0)
    assert verdict.overdue == {"a": (1, 2)}


ORDERS = st.integers(2, 4).flatmap(
    lambda size: st.tuples(
        st.integers(0, 4),
        st.lists(st.lists(st.permutations(["a", "b", "c", "d", "e"]), min_size=size, max_size=size), max_size=4),
        st.randoms(use_true_random=False),
    )
)


@settings(deadline=None, max_examples=150)
@given(ORDERS)
def test_every_order_of_submission_runs_each_tensor_once_and_in_one_order(case):
    capacity, steps, random = case
    size = len(steps[0]) if steps else 2
    ranks = ranks_of(size, capacity)
    for step in steps:
        waiting = [list(order) for order in step]
        while any(waiting):
            rank = random.choice([place for place, names in enumerate(waiting) if names])
            name = waiting[rank].pop(0)
            ranks[rank].submitted[name] = allreduce(len(name) + ord(name))
            if random.random() < 0.4:
                run_round(ranks)
        for _ in range(3):
            run_round(ranks)
        assert all(not rank.submitted for rank in ranks)
    assert all(rank.ran == ranks[0].ran for rank in ranks)
    assert sorted(name for name, _ in ranks[0].ran) == sorted("abcde" * len(steps))
    assert not any(refusal for _, refusal in ranks[0].ran)
