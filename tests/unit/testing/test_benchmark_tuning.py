"""Benchmarks of tuning: the trained network, the comparison of searches, and the epochs that Hyperband uses."""

import contextlib
import json
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.tuning import bench_hyperband, numpy_network, tuning_quality
from benchmarks.tuning.bench_hyperband import NUM_TRIALS, WAYS, Compared, Curves, compared, lines, request
from benchmarks.tuning.hyperband_run import HyperbandRun
from benchmarks.tuning.json_process import JsonProcess
from benchmarks.tuning.numpy_network import MOST_LOSS, Examples, epochs
from benchmarks.tuning.optuna_peer import suggested
from benchmarks.tuning.real_data import NUM_HELD_SENTENCES, read_features
from benchmarks.tuning.search_comparison import GAUSSIAN, OPTUNA, OURS, RANDOM, Found, line_of, search
from benchmarks.tuning.tuning_functions import FUNCTIONS
from benchmarks.tuning.tuning_searches import as_ranges, best_of_optuna, best_of_ours, best_of_peer
from benchmarks.tuning.tuning_tasks import DIGITS_SPACE, HEAD_SPACE

from clary.control.tuning.parameter_space import Continuous, Scaling

POINT = {"lr": "0.01", "decay": "0.001", "hidden": "8", "batch": "16", "activation": "tanh"}
LR = Continuous(name="lr", least=1e-5, greatest=1.0, scaling=Scaling.LOGARITHMIC)


def blobs(num=200):
    """Return three clouds of points, one per class."""
    chance = np.random.default_rng(1)
    labels = chance.integers(0, 3, num)
    inputs = (chance.standard_normal((num, 4)) * 0.5 + np.eye(4)[labels] * 3).astype(np.float32)
    return Examples.split(inputs, labels, num_held=50)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_network_learns_deterministically(activation):
    told = list(epochs(blobs(), {**POINT, "activation": activation}, 8))
    assert told == list(epochs(blobs(), {**POINT, "activation": activation}, 8))
    assert told[-1].accuracy > 0.95
    assert told[-1].loss < 0.5 * told[0].loss


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_gradients_are_the_slopes_of_the_loss(activation):
    examples = blobs()
    inputs, labels = examples.inputs_ND.astype(np.float64), examples.labels_N
    weights = [one.astype(np.float64) for one in numpy_network._first_weights(np.random.default_rng(2), 4, 5, 3)]

    def loss():
        chances = numpy_network._probabilities(numpy_network._logits(weights, inputs, activation)[0])
        return -np.log(chances[np.arange(len(labels)), labels]).mean()

    gradients = numpy_network._gradients(weights, inputs, labels, activation)
    for weight, gradient in zip(weights, gradients, strict=True):
        place = np.unravel_index(int(np.abs(gradient).argmax()), gradient.shape)
        weight[place] += 1e-6
        above = loss()
        weight[place] -= 2e-6
        assert (above - loss()) / 2e-6 == pytest.approx(gradient[place], rel=1e-4)
        weight[place] += 1e-6


def test_a_diverging_training_reports_a_finite_loss():
    with np.errstate(all="ignore"):
        *_, last = epochs(blobs(), {**POINT, "lr": "1e30"}, 3)
    assert last.loss == MOST_LOSS


def test_features_are_standardised_and_a_constant_channel_stays_finite(tmp_path):
    inputs = np.random.default_rng(3).standard_normal((NUM_HELD_SENTENCES + 20, 3)).astype(np.float32) * 7 + 2
    inputs[:, 1] = 4.0
    np.savez(tmp_path / "features.npz", inputs=inputs, labels=np.arange(len(inputs)) % 10)
    found = read_features(tmp_path / "features.npz")
    every = np.concatenate([found.inputs_ND, found.held_inputs_ND])
    assert (len(found.labels_N), len(found.held_labels_N)) == (20, NUM_HELD_SENTENCES)
    assert every.mean(0) == pytest.approx([0, 0, 0], abs=1e-5)
    assert every.std(0) == pytest.approx([1, 0, 1], abs=1e-3)


def test_integers_and_categories_reach_optuna_in_the_form_of_hyperparameters():
    class Trial:
        def suggest_float(self, name, least, greatest, *, log):
            return least if log else greatest

        def suggest_int(self, name, least, greatest, *, log):
            return greatest if log else least

        def suggest_categorical(self, name, values):
            return values[-1]

    for space in (DIGITS_SPACE, HEAD_SPACE):
        point = suggested(Trial(), as_ranges(space))
        assert list(point) == [one.name for one in space]
        assert all(one.value(point[one.name]) is not None for one in space)
    reverse = Continuous(name="momentum", least=0.0, greatest=0.9, scaling=Scaling.REVERSE_LOGARITHMIC)
    with pytest.raises(ValueError, match="momentum"):
        as_ranges((reverse,))


def test_each_search_tries_the_same_number_of_points_and_returns_the_lowest_value():
    values = []

    def function(point):
        values.append(abs(np.log10(float(point["lr"])) + 2))
        return values[-1]

    class Peer:
        def __init__(self):
            self.orders = []

        def ask(self, order):
            self.orders.append(order)
            return {"ask": {"lr": str(10.0 ** -len(self.orders))}}

    peer = Peer()
    for begin in (
        lambda: best_of_ours((LR,), function, strategy="Bayesian", seed=1, num_points=12),
        lambda: best_of_optuna((LR,), function, seed=1, num_points=12),
        lambda: best_of_peer(peer, (LR,), function, seed=1, num_points=12),
    ):
        values.clear()
        found = begin()
        assert len(values) == 12
        assert found == min(values)
    assert [order.get("value") for order in peer.orders] == [None, *values[:-1]]


def test_a_program_answers_line_by_line_and_its_end_is_an_error():
    echo = (
        "import sys, json\nfor line in sys.stdin:\n    order = json.loads(line)\n    if order.get('end'): sys.exit(7)\n"
    )
    echo += "    print(json.dumps({'got': order}), flush=True)"
    with JsonProcess("the echo", [sys.executable, "-c", echo]) as process:
        assert process.ask({"a": 1}) == {"got": {"a": 1}}
        with pytest.raises(SystemExit, match=r"the echo: expected an answer within .* s, got exit code 7"):
            process.ask({"end": True})


def found_of(ours, optuna, random, gaussian=None, *, is_repeatable=True):
    least = {OURS: ours, OPTUNA: optuna, RANDOM: random, **({} if gaussian is None else {GAUSSIAN: gaussian})}
    return Found(least, is_repeatable)


def test_the_quality_goal_is_below_optuna_s_third_quartile_and_below_random():
    optuna, random = [1.0, 2.0, 3.0, 4.0], [5.0, 5.0, 5.0, 5.0]
    for ours, met in ((3.7, True), (3.8, False)):
        line = line_of("digits", "loss", found_of([ours] * 4, optuna, random, optuna), num_seeds=4)
        assert (line.met, line.verified, line.peers[GAUSSIAN]) == (met, True, 2.5)
        assert (line.details["within_optunas"], line.details["below_random"]) == (met, True)
    line = line_of("digits", "loss", found_of([3.0] * 4, optuna, [2.9] * 4), num_seeds=4)
    assert (line.met, line.details["below_random"]) == (False, False)


def test_a_missing_peer_is_named_and_a_training_that_is_not_repeatable_is_not_verified():
    changing = found_of([1.0, 1.0], [1.0, 1.0], [2.0, 2.0], is_repeatable=False)
    line = line_of("digits", "loss", changing, num_seeds=2)
    assert "make .venvs/sdk3.stamp" in line.peer_note
    assert GAUSSIAN not in line.peers
    assert line.verified is False


def names(letter, number):
    return [f"{letter}{index}" for index in range(number)]


LEAST_POINTS = {
    "branin": {"x": math.pi, "y": 2.275},
    "hartmann6": dict(zip(names("x", 6), (0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573), strict=True)),
    "ackley2": dict.fromkeys(names("x", 2), 0),
    "ackley5": dict.fromkeys(names("x", 5), 0),
    "rosenbrock": {"x": 1, "y": 1},
    "mixed-branin": {"x": math.pi, "y": 2.275, "kind": 3},
    "mixed-ackley": {**dict.fromkeys(names("x", 3), 0), "kind": "a", "switch": "on"},
    "mixed-hartmann3": {"x0": 0.114614, "x1": 0.555649, "x2": 0.852547, "side": "north"},
    "integer-rastrigin": {"i0": 0, "i1": 0, "x0": 0.0, "x1": 0.0},
    "learning": {"lr": 10**-2.5, "decay": 1e-4},
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_its_minimum_at_the_known_point(name):
    space, function, least = FUNCTIONS[name]
    point = {key: str(value) for key, value in LEAST_POINTS[name].items()}
    assert [one.name for one in space] == list(point)
    assert all(one.value(text) is not None for one, text in zip(space, point.values(), strict=True))
    assert function(point) == pytest.approx(least, abs=1e-4)
    assert best_of_ours(space, function, strategy="Random", seed=1, num_points=50) > least - 1e-4


def test_each_of_ten_functions_gets_a_new_peer_and_the_goals_are_counted(monkeypatch):
    peers, used = [object(), object()], []
    begun = iter(peers)

    @contextlib.contextmanager
    def gaussian():
        yield next(begun)

    def fake(space, function, peer, *, num_seeds, num_points, name):
        used.append((name, peer))
        ours = 5.0 if name == "ackley5" else 2.0
        random = 1.0 if name == "branin" else 9.0
        least = {OURS: [ours] * 2, OPTUNA: [3.0] * 2, RANDOM: [random] * 2, GAUSSIAN: [1.0] * 2}
        return Found({who: [one + FUNCTIONS[name][2] for one in values] for who, values in least.items()}, True)

    monkeypatch.setattr(tuning_quality, "gaussian_process", gaussian)
    monkeypatch.setattr(tuning_quality, "search", fake)
    *each, last = tuning_quality.quality(2)
    assert [line.case.partition(",")[0] for line in each] == list(FUNCTIONS)
    assert sorted(name for name, _ in used) == sorted(FUNCTIONS)
    assert len(FUNCTIONS) == 10
    assert {id(peer) for _, peer in used} <= {id(peer) for peer in peers}
    assert [line.ours for line in each if line.case.startswith("hartmann6")] == [pytest.approx(2.0)]
    assert (last.ours, last.met, last.verified) == (8, False, True)
    assert last.details == {"above_optunas_third_quartile": ["ackley5"], "not_below_random": ["branin"]}


def test_a_value_below_a_known_minimum_is_not_verified():
    found = found_of([0.1, 0.1], [0.1, 0.1], [1.0, -0.01])
    assert tuning_quality.line_of_function("branin", found, 2).verified is False
    assert tuning_quality.line_of_function("branin", found_of([0.1] * 2, [0.1] * 2, [1.0] * 2), 2).verified is True


def test_the_first_point_is_evaluated_again_and_every_search_gets_the_same_number():
    asked = []

    def drifting(point):
        asked.append(point)
        return float(len(asked))

    found = search((LR,), drifting, None, num_seeds=2, num_points=3, name="drifts")
    assert len(asked) == 2 * 3 * 3 + 1
    assert asked[-1] == asked[0]
    assert found.is_repeatable is False
    assert {who: len(values) for who, values in found.least.items()} == {OURS: 2, RANDOM: 2, OPTUNA: 2}
    assert search((LR,), lambda _: 1.0, None, num_seeds=1, num_points=2, name="steady").is_repeatable


class FakeCurves:
    """Curves that rise to a height given by the point; counts the requests for each point."""

    def __init__(self):
        self.asked = {}

    def whole(self, point):
        key = json.dumps(point, sort_keys=True)
        self.asked[key] = self.asked.get(key, 0) + 1
        height = 1 - abs(np.log10(float(point["lr"])) + 2) / 4
        return tuple(height * (1 - 0.5 ** (epoch + 1)) for epoch in range(bench_hyperband.NUM_EPOCHS))

    trained = whole


@pytest.mark.parametrize("way", sorted(WAYS))
def test_hyperband_uses_fewer_epochs_and_continues_trials_only_with_checkpoints(way, monkeypatch):
    monkeypatch.setattr(bench_hyperband, "NUM_TRIALS", 24)
    curves = FakeCurves()
    tuned = HyperbandRun(request(WAYS[way]), curves.whole, seed=1).run()
    told = compared(tuned, curves)
    assert tuned.num_trials == 24
    assert told.problems == ()
    assert told.num_epochs == sum(len(one.curve({})) for one in tuned.configurations)
    assert 0 < told.share < 0.8
    assert told.best == max(one.curve({})[-1] for one in tuned.configurations)
    assert told.best_of_all >= told.best
    if way == "stays ended":
        assert told.num_configurations == 24
    else:
        assert told.num_configurations <= 24
        assert all(len(one.curve({})) <= bench_hyperband.NUM_EPOCHS for one in tuned.configurations)


def test_values_that_do_not_come_from_the_training_are_reported():
    curves = FakeCurves()
    ended = HyperbandRun(request({}), curves.whole, seed=1).run()
    first = ended.configurations[0].first
    wrong = replace(first, outcome=replace(first.outcome, curve=(0.123,)))
    changed = [replace(ended.configurations[0], trials=(wrong,)), *ended.configurations[1:]]
    told = compared(replace(ended, configurations=changed), curves)
    assert told.problems == ("trial 1: its values are not the first of its training",)


def test_the_lines_of_hyperband_use_medians_and_name_their_goals():
    one = Compared(num_configurations=60, num_trials=NUM_TRIALS, num_epochs=486, share=0.3, best=0.9, best_of_all=0.9)
    share, best = lines("goes on", [one, replace(one, share=0.5), replace(one, share=0.35, best=0.8)])
    assert (share.ours, share.met, best.ours, best.met) == (0.35, True, 0.9, True)
    share, best = lines("goes on", [replace(one, share=0.41, best=0.89, problems=("wrong",))])
    assert (share.met, best.met, share.verified, best.verified) == (False, False, False, False)


def test_curves_are_cached_and_trained_again_on_request():
    curves = Curves(blobs(), 3)
    assert curves.whole(POINT) is curves.whole(dict(reversed(POINT.items())))
    assert curves.trained(POINT) == curves.whole(POINT)
