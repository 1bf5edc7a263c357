"""Plans of buckets, against all plans there are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.train.collective.buckets import (
    MAX_PIECES,
    CommunicationCost,
    Gradient,
    end_of,
    plan_buckets,
    plan_caps,
)

_COSTS = st.builds(
    CommunicationCost,
    latency_s=st.sampled_from([0.0, 0.001, 0.01, 0.5]),
    bytes_per_s=st.sampled_from([10.0, 1e3, 1e5]),
    copy_bytes_per_s=st.sampled_from([100.0, 1e4, math.inf]),
)
_GRADIENTS = st.lists(
    st.builds(Gradient, num_bytes=st.integers(0, 400), ready_s=st.floats(0, 3, allow_nan=False)), min_size=1, max_size=8
)


def _end(gradients: Sequence[Gradient], cost: CommunicationCost, cuts: Sequence[int]) -> float:
    end_s, first = 0.0, 0
    for last in cuts:
        ready_s = max(gradient.ready_s for gradient in gradients[:last])
        num_bytes = sum(gradient.num_bytes for gradient in gradients[first:last])
        wire_s = num_bytes / cost.bytes_per_s
        end_s = max(ready_s + cost.latency_s + wire_s, end_s + cost.latency_s, end_s + wire_s)
        if last == len(gradients):
            end_s += num_bytes / cost.copy_bytes_per_s
        first = last
    return end_s


def _all_cuts(num: int) -> Iterator[tuple[int, ...]]:
    for count in range(num):
        for inner in itertools.combinations(range(1, num), count):
            yield (*inner, num)


@given(_GRADIENTS, _COSTS, st.sampled_from([0.0, 0.01, 0.2]))
def test_no_plan_ends_earlier_than_the_slack_allows(
    gradients: list[Gradient], cost: CommunicationCost, slack: float
) -> None:
    plan = plan_buckets(gradients, cost, slack=slack)
    best_s = min(_end(gradients, cost, cuts) for cuts in _all_cuts(len(gradients)))
    assert plan.earliest_s == pytest.approx(best_s)
    assert plan.end_s <= best_s * (1 + slack) * (1 + 1e-9)
    assert plan.end_s == pytest.approx(_end(gradients, cost, plan.ends))


@given(_GRADIENTS, _COSTS)
def test_a_plan_holds_every_gradient_once_and_in_order(gradients: list[Gradient], cost: CommunicationCost) -> None:
    plan = plan_buckets(gradients, cost)
    assert plan.ends[-1] == len(gradients)
    assert sorted(set(plan.ends)) == list(plan.ends)
    sizes = [
        sum(gradient.num_bytes for gradient in gradients[first:last])
        for first, last in zip((0, *plan.ends), plan.ends, strict=False)
    ]
    assert sizes == list(plan.sizes)


@given(_GRADIENTS, _COSTS)
def test_every_bucket_of_a_plan_ends_about_as_early_as_it_can(
    gradients: list[Gradient], cost: CommunicationCost
) -> None:
    slack = 0.05
    plan = plan_buckets(gradients, cost, slack=slack)
    for count in range(1, len(plan.ends) + 1):
        prefix = gradients[: plan.ends[count - 1]]
        of_prefix = cost if len(prefix) == len(gradients) else replace(cost, copy_bytes_per_s=math.inf)
        earliest_s = min(_end(prefix, of_prefix, cuts) for cuts in _all_cuts(len(prefix)))
        assert _end(gradients, cost, plan.ends[:count]) <= (earliest_s + slack * plan.earliest_s) * (1 + 1e-9)


def test_gradients_that_are_all_ready_at_once_make_one_bucket() -> None:
    plan = plan_buckets([Gradient(1000, 0.0)] * 20, CommunicationCost(0.001, 1e6))
    assert plan.ends == (20,)
    assert plan.reason.startswith("communication sets the pace")


def test_a_fast_link_leaves_a_small_last_bucket() -> None:
    layers = [Gradient(1 << 20, 0.01 * (index + 1)) for index in range(32)]
    plan = plan_buckets(layers, CommunicationCost(0.0002, 125e6))
    assert plan.sizes[-1] == 1 << 20
    assert plan.reason.startswith("the backward pass sets the pace")
    assert plan.end_s < 0.33 + 0.0002


def test_a_slow_start_of_messages_makes_fewer_buckets() -> None:
    layers = [Gradient(1 << 20, 0.01 * (index + 1)) for index in range(32)]
    counts = [len(plan_buckets(layers, CommunicationCost(latency_s, 125e6)).sizes) for latency_s in (0.0, 0.01, 0.2)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] < counts[0]


def test_the_latency_of_a_bucket_passes_while_the_one_before_is_on_the_link() -> None:
    cost = CommunicationCost(0.01, 100.0)
    gradients = [Gradient(10, 0.0), Gradient(10, 0.0), Gradient(10, 0.5)]
    plan = plan_buckets(gradients, cost, slack=0.0)
    assert plan.end_s == pytest.approx(0.61)
    assert end_of(gradients, cost, 10, 10) == pytest.approx(0.61)
    assert end_of(gradients[:2], cost, 10, 10) == pytest.approx(0.21)  # one latency, and 20 bytes on the link
    assert end_of([Gradient(0, 0.0)] * 2, cost, 0, 0) == pytest.approx(0.02)  # two latencies: nothing hides them


def test_a_slow_copy_makes_the_last_bucket_smaller() -> None:
    layers = [Gradient(1 << 20, 0.005 * (index + 1)) for index in range(32)]
    last = [
        plan_buckets(layers, CommunicationCost(0.00014, 121e6, rate)).sizes[-1] for rate in (1e8, 1e9, 1e10, math.inf)
    ]
    assert last == sorted(last)
    assert last[0] < last[-1]


def test_many_gradients_are_planned_in_pieces() -> None:
    gradients = [Gradient(100, 1e-5 * index) for index in range(4 * MAX_PIECES)]
    plan = plan_buckets(gradients, CommunicationCost(1e-4, 1e7))
    assert plan.ends[-1] == len(gradients)
    assert sum(plan.sizes) == 100 * len(gradients)


@given(_GRADIENTS, _COSTS)
def test_caps_close_buckets_as_torch_does_and_none_tried_is_better(
    gradients: list[Gradient], cost: CommunicationCost
) -> None:
    first, rest = plan_caps(gradients, cost)
    assert first <= rest
    cuts: list[int] = []
    num_bytes, cap = 0, first
    for index, gradient in enumerate(gradients):
        num_bytes += gradient.num_bytes
        if num_bytes >= cap:
            cuts.append(index + 1)
            num_bytes, cap = 0, rest
    if num_bytes:
        cuts.append(len(gradients))
    closed = gradients[: cuts[-1]] if cuts else []  # without empty gradients after the last bucket
    assert end_of(gradients, cost, first, rest) == pytest.approx(_end(closed, cost, cuts))
    powers = [1 << bits for bits in range(12)]
    best_s = min(end_of(gradients, cost, *pair) for pair in itertools.product(powers, powers) if pair[0] <= pair[1])
    assert end_of(gradients, cost, first, rest) <= best_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("gradients", "cost"),
    [
        ([], CommunicationCost(0, 1)),
        ([Gradient(-1, 0)], CommunicationCost(0, 1)),
        ([Gradient(1, math.nan)], CommunicationCost(0, 1)),
        ([Gradient(1, 0)], CommunicationCost(-1, 1)),
        ([Gradient(1, 0)], CommunicationCost(0, 0)),
        ([Gradient(1, 0)], CommunicationCost(0, 1, 0)),
    ],
)
def test_what_makes_no_sense_is_refused(gradients: list[Gradient], cost: CommunicationCost) -> None:
    with pytest.raises(ValueError, match="expected"):
        plan_buckets(gradients, cost)
