"""The plan of a partition: near the optimum, cut high in the tree, with shared modules together."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.train.parallel.partition.plan import SLACK, ModuleCost, placed_by_hand, plan_partition


def module(name, seconds=1.0, memory_bytes=1.0, shared=()):
    return ModuleCost(name, seconds, memory_bytes, frozenset(shared))


def layers(num_layers, parts=("attention", "mlp"), **costs):
    return [module(f"layers.{layer}.{part}", **costs) for layer in range(num_layers) for part in parts]


def optimum(weights, num_parts):
    """Return the cost of the best partition, by trying every cut."""
    total = sum(weights)
    return min(
        max(sum(weights[begin:end]) for begin, end in zip((0, *cuts), (*cuts, len(weights)), strict=True)) / total
        for used in range(1, min(num_parts, len(weights)) + 1)
        for cuts in itertools.combinations(range(1, len(weights)), used - 1)
    )


@given(st.lists(st.integers(1, 100), min_size=1, max_size=10), st.integers(1, 5))
def test_the_most_expensive_part_is_near_the_exhaustive_optimum(seconds, num_parts):
    modules = [module(f"m{place}", float(cost)) for place, cost in enumerate(seconds)]
    plan = plan_partition(modules, num_parts, memory_weight=0)
    assert max(plan.costs) <= optimum(seconds, num_parts) * (1 + SLACK) + 1e-9
    assert sum(plan.costs) == pytest.approx(1)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=12), st.integers(1, 6))
def test_parts_are_runs_in_the_order_of_the_forward_pass_and_all_are_used(seconds, num_parts):
    modules = [module(f"m{place}", float(cost)) for place, cost in enumerate(seconds)]
    parts = list(plan_partition(modules, num_parts, memory_weight=0.5).part_of.values())
    assert parts == sorted(parts)
    assert set(parts) == set(range(min(num_parts, len(modules))))


def test_cuts_are_between_layers_if_that_costs_little():
    modules = [module("embedding", 1.1), *layers(4)]
    plan = plan_partition(modules, 2, memory_weight=0)
    begins = [name for name in plan.part_of if plan.part_of[name] == 1]
    assert begins[0] == "layers.2.attention"
    uneven = [module("a.x", 10), module("a.y", 10), module("b", 1)]
    assert plan_partition(uneven, 2, memory_weight=0).part_of == {"a.x": 0, "a.y": 1, "b": 1}


def test_modules_that_share_parameters_transitively_are_in_one_part():
    modules = [
        module("embedding", shared=[1]),
        *layers(4, parts=("mlp",)),
        module("head", shared=[1, 2]),
        module("bias", shared=[2]),
    ]
    plan = plan_partition(modules, 2, memory_weight=0)
    assert plan.part_of["embedding"] == plan.part_of["head"] == plan.part_of["bias"] == 0
    assert max(plan.costs) == pytest.approx(4 / 7)
    assert plan.part_of["layers.3.mlp"] == 1


def test_ranks_without_a_module_are_reported():
    plan = plan_partition([module("a", shared=[1]), module("b", shared=[1]), module("c")], 4, memory_weight=0)
    assert plan.part_of == {"a": 0, "b": 0, "c": 1}
    assert "cut before c (2 parts stay empty" in plan.reason


def test_memory_and_time_are_weighted():
    modules = [module("a", 9, 1), module("b", 1, 1), module("c", 1, 1), module("d", 1, 9)]
    assert list(plan_partition(modules, 2, memory_weight=0).part_of.values()) == [0, 1, 1, 1]
    assert list(plan_partition(modules, 2, memory_weight=1).part_of.values()) == [0, 0, 0, 1]
    untimed = [module("a", 0, 1), module("b", 0, 3), module("c", 0, 4)]
    assert plan_partition(untimed, 2, memory_weight=0).costs == pytest.approx((0.5, 0.5))
    nothing = [module("a", 0, 0), module("b", 0, 0)]
    assert plan_partition(nothing, 2, memory_weight=0.5).costs == (0.5, 0.5)


def test_the_plan_names_its_cuts_and_the_reasons():
    text = str(plan_partition(layers(2), 2, memory_weight=0.8))
    assert text.startswith("Partition assignments:\n  layers.0.attention: 0\n")
    assert "cut before layers.1.attention: parts have 50.0%, 50.0% of the model by 0.8 x memory + 0.2 x time" in text


def test_equal_input_gives_equal_plans():
    drawn = random.Random(7)
    modules = [
        module(f"layers.{layer}.{part}", drawn.uniform(1, 2), drawn.uniform(1, 2))
        for layer in range(50)
        for part in ("norm", "attention", "mlp.up", "mlp.down")
    ]
    plan = plan_partition(modules, 8, memory_weight=0.5)
    assert plan == plan_partition(modules, 8, memory_weight=0.5)


def test_the_innermost_manual_placement_wins():
    names = ["embedding", "layers", "layers.0", "layers.0.mlp", "layers.1", "head"]
    placed = {"layers": 1, "layers.0.mlp": 2, "head": 3}
    assert list(placed_by_hand(names, placed, 0).values()) == [0, 1, 1, 2, 1, 3]
    assert placed_by_hand(["", "a"], {"": 2}, 0) == {"": 2, "a": 2}


def test_an_impossible_partition_is_refused():
    for modules, num_parts in (([], 2), ([module("a")], 0)):
        with pytest.raises(ValueError, match="expected 1 or more of both"):
            plan_partition(modules, num_parts, memory_weight=0)
    with pytest.raises(ValueError, match="two modules have one name"):
        plan_partition([module("a"), module("a")], 2, memory_weight=0)
