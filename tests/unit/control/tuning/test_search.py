"""Proposals: within their ranges, deterministic, each point of a finite space once; Hyperband's stops."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tuning_spaces import STRATEGIES, proposals, question, small_spaces, spaces

from clary.control.tuning.parameter_space import Categorical, Continuous, Integer, Scaling, num_values
from clary.control.tuning.search import Observation, Rungs, is_pruned, next_to_go_on, propose

LR = Continuous(name="lr", least=1e-5, greatest=1.0, scaling=Scaling.LOGARITHMIC)
LAYERS = Integer(name="layers", least=1, greatest=8, scaling=Scaling.LINEAR)
OPTIMIZER = Categorical(name="opt", values=("sgd", "adam"))
FINITE = (LAYERS, OPTIMIZER)
BEYOND_LISTS = (Integer(name="i", least=1, greatest=2**53, scaling=Scaling.LINEAR), OPTIMIZER)


def seen(parameters, value=0.0, *, is_over=True, curve=()):
    return Observation(parameters=parameters, value=value, is_over=is_over, curve=tuple(curve))


def check_point(space, parameters):
    assert list(parameters) == [one.name for one in space]
    for one in space:
        text = parameters[one.name]
        value = one.value(text)
        assert value is not None, (one, text)
        assert one.text(value) == text


def loss(parameters):
    return abs(math.log10(float(parameters["lr"])) + 2)


@settings(max_examples=150)
@given(space=spaces(), strategy=st.sampled_from(STRATEGIES), seed=st.integers(0, 2**31))
def test_each_proposal_lies_in_its_ranges_and_is_parsed_back_unchanged(space, strategy, seed):
    for parameters in proposals(space, 3, strategy=strategy, seed=seed):
        check_point(space, parameters)


@settings(max_examples=15)
@given(space=spaces(), seed=st.integers(0, 2**31), values=st.lists(st.none() | st.floats(), min_size=14, max_size=14))
def test_proposals_of_the_model_lie_in_their_ranges_too(space, seed, values):
    observations = []
    for value in values:
        parameters = propose(question(space, observations=observations, seed=seed))
        check_point(space, parameters)
        is_known = value is not None and math.isfinite(value)
        observations.append(seen(parameters, value if is_known else None, is_over=len(observations) % 4 != 3))


@settings(max_examples=30)
@given(space=spaces(), strategy=st.sampled_from(STRATEGIES), seed=st.integers(0, 2**31), data=st.data())
def test_a_proposal_depends_only_on_seed_number_and_observations(space, strategy, seed, data):
    asked = proposals(space, 13, strategy=strategy, seed=seed)
    killed_after = data.draw(st.integers(0, 12))
    stored = [seen(parameters) for parameters in asked[:killed_after]]
    assert propose(question(space, strategy=strategy, observations=stored, seed=seed)) == asked[killed_after]


def test_ranges_at_the_limits_of_floats_do_not_stop_the_search():
    space = (
        Continuous(name="tiny", least=0.0, greatest=5e-324, scaling=Scaling.LINEAR),
        Continuous(name="huge", least=0.0, greatest=1.7e308, scaling=Scaling.LINEAR),
        Continuous(name="wide", least=1e-300, greatest=1e300, scaling=Scaling.LOGARITHMIC),
        Integer(name="far", least=1, greatest=304_250_263_526_602, scaling=Scaling.LOGARITHMIC),
    )
    for parameters in proposals(space, 25):
        check_point(space, parameters)


def test_another_seed_or_number_gives_another_proposal():
    space = (LR,)
    found = [propose(question(space, seed=seed, number=number)) for seed in (1, 2) for number in (1, 2)]
    assert len({one["lr"] for one in found}) == 4


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_scalings_spread_values_over_their_orders_of_magnitude(strategy):
    space = (
        LR,
        Continuous(name="linear", least=1e-5, greatest=1.0, scaling=Scaling.LINEAR),
        Continuous(name="reverse", least=0.0, greatest=0.99999, scaling=Scaling.REVERSE_LOGARITHMIC),
        Integer(name="log", least=1, greatest=100_000, scaling=Scaling.LOGARITHMIC),
    )
    found = [propose(question(space, strategy=strategy, number=number)) for number in range(200)]

    def share(name, threshold):
        return sum(float(one[name]) < threshold for one in found) / len(found)

    assert 0.4 < share("lr", 1e-5**0.5) < 0.6
    assert 0.4 < share("linear", 0.5) < 0.6
    assert 0.4 < share("reverse", 1 - 1e-5**0.5) < 0.6
    assert 0.4 < share("log", 100_000**0.5) < 0.6


@pytest.mark.parametrize("is_maximized", [True, False])
def test_the_model_of_good_points_finds_better_points_than_chance(is_maximized):
    sign = -1 if is_maximized else 1
    space = (LR, LAYERS, OPTIMIZER)
    by_model, by_chance = ([], [])
    for found, strategy in ((by_model, "Bayesian"), (by_chance, "Random")):
        for seed in range(3):
            observations = []
            for _ in range(40):
                asked = question(
                    space, strategy=strategy, observations=observations, seed=seed, is_maximized=is_maximized
                )
                parameters = propose(asked)
                observations.append(seen(parameters, sign * loss(parameters)))
            found += [sign * one.value for one in observations[20:]]
    assert sum(by_model) / len(by_model) < 0.6 * sum(by_chance) / len(by_chance)


@settings(max_examples=25)
@given(space=small_spaces(), strategy=st.sampled_from(STRATEGIES), seed=st.integers(0, 2**31))
def test_a_finite_space_is_exhausted_before_any_point_is_repeated(space, strategy, seed):
    total = num_values(space)
    found = [tuple(one.items()) for one in proposals(space, total, strategy=strategy, seed=seed)]
    assert len(set(found)) == total
    stored = [seen(dict(one)) for one in found]
    check_point(space, propose(question(space, strategy=strategy, observations=stored, seed=seed)))


def test_points_of_running_and_failed_trials_are_not_proposed_again():
    taken = proposals(FINITE, 15)
    observations = [seen(one, None, is_over=number % 2 == 0) for number, one in enumerate(taken)]
    assert propose(question(FINITE, observations=observations)) not in taken


def test_a_point_that_a_parent_wrote_differently_is_not_proposed_again():
    space = (Integer(name="i", least=1, greatest=2, scaling=Scaling.LINEAR),)
    for number in range(20):
        assert propose(question(space, observations=[seen({"i": "1.0"})], number=number)) == {"i": "2"}


def test_an_untried_point_is_found_in_a_space_too_large_to_list(monkeypatch):
    taken = [{"i": str(number), "opt": opt} for number in (1, 2, 3) for opt in ("sgd", "adam")]
    monkeypatch.setattr("clary.control.tuning.search._sampled", lambda asked, attempt: taken[attempt % 6])
    assert propose(question(BEYOND_LISTS, observations=[seen(one) for one in taken])) == {"i": "4", "opt": "sgd"}


def test_observations_outside_the_ranges_do_not_enter_the_model():
    observations = [seen({"lr": "5.0"}, 0.0), seen({"lr": "0.01"}, None, is_over=False), seen({}, 1.0)] * 8
    check_point((LR,), propose(question((LR,), observations=observations)))


# Grids


@settings(max_examples=25)
@given(space=small_spaces())
def test_a_grid_has_each_point_once(space):
    total = num_values(space)
    found = proposals(space, total, strategy="Grid")
    assert len({tuple(one.items()) for one in found}) == total
    for one in found:
        check_point(space, one)
    with pytest.raises(ValueError, match="every point"):
        propose(question(space, strategy="Grid", observations=[seen(one) for one in found]))


def test_a_grid_varies_its_last_range_first():
    space = (OPTIMIZER, Categorical(name="act", values=("relu", "gelu")))
    assert [tuple(one.values()) for one in proposals(space, 4, strategy="Grid")] == [
        ("sgd", "relu"),
        ("sgd", "gelu"),
        ("adam", "relu"),
        ("adam", "gelu"),
    ]


def test_a_running_or_failed_trial_occupies_its_point_of_a_grid():
    observations = [seen({"opt": "sgd"}, None, is_over=False)]
    assert propose(question((OPTIMIZER,), strategy="Grid", observations=observations)) == {"opt": "adam"}


# Hyperband. Rungs are at 1, 3 and 9 values if the longest trial has 27; trials are divided among brackets that begin
# at the first, second, ... of these rungs.

PARAMETERS = {"lr": "0.1"}


def rungs(least, most, *, can_go_on=False):
    return Rungs(least=least, most=most, can_go_on=can_go_on)


def pruned_of(curves, resources, *, is_maximized=False, is_over=True):
    """Return for each trial whether Hyperband would stop it if it still ran, with all other curves as given."""
    found = []
    for index in range(len(curves)):
        observations = [
            seen(
                PARAMETERS,
                curve[-1] if is_over and place != index else None,
                is_over=is_over and place != index,
                curve=curve,
            )
            for place, curve in enumerate(curves)
        ]
        asked = question((LR,), strategy="Hyperband", observations=observations, is_maximized=is_maximized)
        found.append(is_pruned(asked, index, resources))
    return found


@pytest.mark.parametrize("is_maximized", [True, False])
def test_hyperband_stops_the_worse_trials_of_a_rung_and_never_the_best(is_maximized):
    curves = [[float(number)] for number in range(30)]
    found = pruned_of(curves, rungs(1, 27), is_maximized=is_maximized)
    ended = [number for number, is_ended in enumerate(found) if is_ended]
    best = 29 if is_maximized else 0
    assert 8 <= len(ended) <= 22  # two thirds of the trials whose bracket begins at the first rung
    assert best not in ended
    better, worse = (range(20, 30), range(10)) if is_maximized else (range(10), range(20, 30))
    assert len(set(ended) & set(better)) < len(set(ended) & set(worse))


def test_a_larger_max_resource_puts_more_trials_in_brackets_that_begin_later():
    at_first = sum(pruned_of([[float(number)] for number in range(30)], rungs(1, 27)))
    at_third = sum(pruned_of([[float(number)] * 9 for number in range(30)], rungs(1, 27)))
    assert 0 < at_first < at_third < 30


def test_a_single_trial_continues():
    assert pruned_of([[5.0]], rungs(1, 27)) == [False]


@pytest.mark.parametrize("most", [9, None])
def test_a_trial_with_the_maximum_number_of_values_ends_on_its_own(most):
    worst = [100.0] * 9
    others = [[float(number)] * 9 for number in range(30)]
    found = []
    for place in range(31):  # another index is in another bracket
        curves = [*others[:place], worst, *others[place:]]
        found.append(pruned_of(curves, rungs(1, most))[place])
    assert found == [False] * 31
    shorter = [[*others[:place], worst[:8], *others[place:]] for place in range(31)]
    assert any(pruned_of(curves, rungs(1, most))[place] for place, curves in enumerate(shorter)), "the test can fail"


def test_equal_trials_continue_together():
    assert pruned_of([[1.0]] * 20, rungs(1, 27)) == [False] * 20


def test_only_the_last_rung_that_a_trial_has_reached_counts():
    bad_begin = [9.0, 9.0, 0.0]
    for place in range(12):
        curves = [[1.0, 1.0, 1.0]] * 11
        curves.insert(place, bad_begin)
        assert not pruned_of(curves, rungs(1, 27))[place]


def test_a_trial_at_a_higher_rung_is_not_compared_with_trials_below_it():
    for place in range(12):
        curves = [[1.0]] * 11
        curves.insert(place, [5.0, 5.0, 5.0])
        assert not pruned_of(curves, rungs(1, 27))[place]


def test_values_between_rungs_do_not_count():
    curves = [[1.0, float(number)] for number in range(20)]
    assert pruned_of(curves, rungs(1, 27)) == [False] * 20


def test_no_trial_is_stopped_below_the_min_resource():
    curves = [[float(number)] * 2 for number in range(20)]
    assert pruned_of(curves, rungs(3, 27)) == [False] * 20
    assert any(pruned_of([[float(number)] * 3 for number in range(20)], rungs(3, 27)))


def test_a_trial_at_max_resource_is_not_stopped():
    curves = [[1.0] * 8 + [float(number)] for number in range(20)]
    assert pruned_of(curves, rungs(1, 9)) == [False] * 20
    assert pruned_of([[float(number)] for number in range(20)], rungs(1, 1)) == [False] * 20


def test_without_a_max_resource_the_longest_ended_trial_sets_it():
    curves = [[float(number)] for number in range(20)]
    assert (
        pruned_of(curves, rungs(1, None), is_over=False) == [False] * 20
    )  # no trial has ended, so the length of trials is unknown
    assert pruned_of(curves, rungs(1, None)) == [False] * 20
    longest = [[0.0] * 27]
    assert pruned_of([*longest, *curves], rungs(1, None)) == pruned_of([*longest, *curves], rungs(1, 27))
    assert any(pruned_of([*longest, *curves], rungs(1, None)))


@settings(max_examples=25)
@given(
    curves=st.lists(st.lists(st.floats(-1e300, 1e300), max_size=12), min_size=1, max_size=12),
    least=st.integers(1, 4),
    most=st.none() | st.integers(1, 40),
    can_go_on=st.booleans(),
)
def test_every_set_of_curves_gives_a_deterministic_result(curves, least, most, can_go_on):
    asked = rungs(least, most, can_go_on=can_go_on)
    assert pruned_of(curves, asked, is_over=False) == pruned_of(curves, asked, is_over=False)
    paused = [place for place, curve in enumerate(curves) if curve]
    found = next_to_go_on(halving_of(curves, running=set(range(len(curves))) - set(paused)), paused, asked)
    assert found is None or found in paused


# Trials that can be continued: each waits at its rung until it is among the best third.


def halving_of(curves, *, is_maximized=False, running=()):
    """Return the question for trials with such curves; all have ended except those at the indices in `running`."""
    observations = [
        seen(PARAMETERS, None if place in running else curve[-1], is_over=place not in running, curve=curve)
        for place, curve in enumerate(curves)
    ]
    return question((LR,), strategy="Hyperband", observations=observations, is_maximized=is_maximized)


def carried_out(values, *, is_maximized=False):
    """Continue trials with one value each to the next rung, one after the other, as long as one may be continued.

    Returns the indices in the order in which trials were continued, and the curves at the end.
    """
    curves, order = [[value] for value in values], []
    while True:
        asked = halving_of(curves, is_maximized=is_maximized)
        paused = [place for place, curve in enumerate(curves) if len(curve) < 27]
        place = next_to_go_on(asked, paused, rungs(1, 27, can_go_on=True))
        if place is None:
            return order, curves
        order.append(place)
        curves[place] = [values[place]] * (3 * len(curves[place]))
        assert len(order) < 200, "there is no end"


def test_the_first_trials_of_a_rung_are_paused_only_if_they_can_be_continued():
    for number in (1, 2):
        curves = [[1.0]] * number
        assert pruned_of(curves, rungs(1, 27)) == [False] * number
    many = [[float(number)] for number in range(30)]
    waits, stays = (pruned_of(many, rungs(1, 27, can_go_on=can_go_on)) for can_go_on in (True, False))
    assert sum(waits) >= sum(stays) > 0
    assert pruned_of([[1.0]], rungs(1, 2, can_go_on=True)) == [True], "its only rung"


@pytest.mark.parametrize("is_maximized", [True, False])
def test_a_third_of_each_rung_is_continued_and_the_best_first(is_maximized):
    values = [float(number * 7 % 60) for number in range(60)]
    order, curves = carried_out(values, is_maximized=is_maximized)
    assert order
    reached = {rung: sum(len(curve) >= rung for curve in curves) for rung in (1, 3, 9, 27)}
    for rung in (1, 3, 9):
        assert reached[3 * rung] <= reached[rung] / 3
    assert reached[27] >= 1
    better = sorted(values, reverse=is_maximized)[:10]
    assert {values[place] for place in order[:3]} <= set(better)


def test_an_early_continued_trial_uses_up_a_slot_of_its_rung():
    values = [float(number) for number in range(30)]
    order, _ = carried_out(values)
    first = order[0]
    asked_with = rungs(1, 27, can_go_on=True)
    paused = [place for place in range(30) if place != first]
    curves = [[value] for value in values]
    rest = [place for place in order[1:] if place != first]
    assert next_to_go_on(halving_of(curves), list(range(30)), asked_with) == first
    # Every trial except one of the best has been continued now, and all slots of each rung are used up.
    crowded = [curve if place in (first, *rest) else curve * 3 for place, curve in enumerate(curves)]
    at_first = [place for place in paused if len(crowded[place]) == 1]
    assert at_first
    assert next_to_go_on(halving_of(crowded), at_first, asked_with) is None
    running = halving_of(curves, running=set(range(30)) - {first})
    assert next_to_go_on(running, [first], asked_with) is None, "they may all get further"


def test_a_trial_with_the_maximum_number_of_values_is_not_continued():
    curves = [[float(number)] * 9 for number in range(30)]
    assert next_to_go_on(halving_of(curves), list(range(30)), rungs(1, 9, can_go_on=True)) is None
    assert next_to_go_on(halving_of(curves), [], rungs(1, 27, can_go_on=True)) is None
    assert next_to_go_on(halving_of(curves), list(range(30)), rungs(1, 27, can_go_on=True)) is not None
