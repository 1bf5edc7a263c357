"""Benchmarks of tuning: the network that they train, searches that are compared, and epochs that Hyperband counts."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.tuning import bench_hyperband, numpy_network
from benchmarks.tuning.bench_hyperband import NUM_TRIALS, WAYS, Compared, Curves, compared, lines, request
from benchmarks.tuning.hyperband_run import HyperbandRun
from benchmarks.tuning.json_process import JsonProcess
from benchmarks.tuning.numpy_network import MOST_LOSS, Examples, epochs
from benchmarks.tuning.optuna_peer import suggested
from benchmarks.tuning.real_data import NUM_HELD_SENTENCES, read_features
from benchmarks.tuning.tuning_searches import as_ranges, best_of_optuna, best_of_ours, best_of_peer
from benchmarks.tuning.tuning_tasks import DIGITS_SPACE, GAUSSIAN, HEAD_SPACE, OPTUNA, OURS, RANDOM, Found, line_of

from clary.control.tuning.parameter_space import Continuous, Scaling

POINT = {"lr": "0.01", "decay": "0.001", "hidden": "8", "batch": "16", "activation": "tanh"}
LR = Continuous(name="lr", least=1e-5, greatest=1.0, scaling=Scaling.LOGARITHMIC)


def blobs(num=200):
    """Three clouds of points, each a class."""
    chance = np.random.default_rng(1)
    labels = chance.integers(0, 3, num)
    inputs = (chance.standard_normal((num, 4)) * 0.5 + np.eye(4)[labels] * 3).astype(np.float32)
    return Examples.split(inputs, labels, num_held=50)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_network_learns_and_is_the_same_each_time(activation):
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


def test_a_training_that_diverges_tells_a_number():
    with np.errstate(all="ignore"):
        *_, last = epochs(blobs(), {**POINT, "lr": "1e30"}, 3)
    assert last.loss == MOST_LOSS


def test_features_have_one_scale_and_a_constant_channel_stays_finite(tmp_path):
    inputs = np.random.default_rng(3).standard_normal((NUM_HELD_SENTENCES + 20, 3)).astype(np.float32) * 7 + 2
    inputs[:, 1] = 4.0
    np.savez(tmp_path / "features.npz", inputs=inputs, labels=np.arange(len(inputs)) % 10)
    found = read_features(tmp_path / "features.npz")
    every = np.concatenate([found.inputs_ND, found.held_inputs_ND])
    assert (len(found.labels_N), len(found.held_labels_N)) == (20, NUM_HELD_SENTENCES)
    assert every.mean(0) == pytest.approx([0, 0, 0], abs=1e-5)
    assert every.std(0) == pytest.approx([1, 0, 1], abs=1e-3)


def test_whole_numbers_and_categories_reach_optuna_as_hyperparameters_are_written():
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


def test_each_search_tries_as_many_points_and_returns_the_least_value():
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
    for search in (
        lambda: best_of_ours((LR,), function, strategy="Bayesian", seed=1, num_points=12),
        lambda: best_of_optuna((LR,), function, seed=1, num_points=12),
        lambda: best_of_peer(peer, (LR,), function, seed=1, num_points=12),
    ):
        values.clear()
        found = search()
        assert len(values) == 12
        assert found == min(values)
    assert [order.get("value") for order in peer.orders] == [None, *values[:-1]]


def test_a_program_answers_line_by_line_and_its_end_is_told():
    echo = (
        "import sys, json\nfor line in sys.stdin:\n    order = json.loads(line)\n    if order.get('end'): sys.exit(7)\n"
    )
    echo += "    print(json.dumps({'got': order}), flush=True)"
    with JsonProcess("the echo", [sys.executable, "-c", echo]) as process:
        assert process.ask({"a": 1}) == {"got": {"a": 1}}
        with pytest.raises(SystemExit, match=r"the echo: expected an answer within .* s, got exit code 7"):
            process.ask({"end": True})


def found_of(ours, optuna, random, gaussian=None, *, is_repeatable=True):
    losses = {OURS: ours, OPTUNA: optuna, RANDOM: random, **({} if gaussian is None else {GAUSSIAN: gaussian})}
    return Found(losses, is_repeatable)


def test_the_goal_of_quality_is_optunas_third_quartile_and_less_than_random():
    optuna, random = [1.0, 2.0, 3.0, 4.0], [5.0, 5.0, 5.0, 5.0]
    for ours, met in ((3.7, True), (3.8, False)):
        line = line_of("digits", 4, found_of([ours] * 4, optuna, random, optuna))
        assert (line.met, line.verified, line.peers[GAUSSIAN]) == (met, True, 2.5)
    assert line_of("digits", 4, found_of([3.0] * 4, optuna, [2.9] * 4)).met is False


def test_a_missing_peer_is_named_and_a_training_that_does_not_repeat_is_not_verified():
    line = line_of("digits", 2, found_of([1.0, 1.0], [1.0, 1.0], [2.0, 2.0], is_repeatable=False))
    assert "make .venvs/sdk3.stamp" in line.peer_note
    assert GAUSSIAN not in line.peers
    assert line.verified is False


class FakeCurves:
    """Curves of which each rises to a height of its point; counts how often a point was asked for."""

    def __init__(self):
        self.asked = {}

    def whole(self, point):
        key = json.dumps(point, sort_keys=True)
        self.asked[key] = self.asked.get(key, 0) + 1
        height = 1 - abs(np.log10(float(point["lr"])) + 2) / 4
        return tuple(height * (1 - 0.5 ** (epoch + 1)) for epoch in range(bench_hyperband.NUM_EPOCHS))

    trained = whole


@pytest.mark.parametrize("way", sorted(WAYS))
def test_hyperband_spends_fewer_epochs_and_goes_on_only_with_checkpoints(way, monkeypatch):
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


def test_values_that_are_not_of_the_training_are_told():
    curves = FakeCurves()
    ended = HyperbandRun(request({}), curves.whole, seed=1).run()
    first = ended.configurations[0].first
    wrong = replace(first, outcome=replace(first.outcome, curve=(0.123,)))
    changed = [replace(ended.configurations[0], trials=(wrong,)), *ended.configurations[1:]]
    told = compared(replace(ended, configurations=changed), curves)
    assert told.problems == ("trial 1: its values are not the first of its training",)


def test_the_lines_of_hyperband_take_medians_and_name_their_goals():
    one = Compared(num_configurations=60, num_trials=NUM_TRIALS, num_epochs=486, share=0.3, best=0.9, best_of_all=0.9)
    share, best = lines("goes on", [one, replace(one, share=0.5), replace(one, share=0.35, best=0.8)])
    assert (share.ours, share.met, best.ours, best.met) == (0.35, True, 0.9, True)
    share, best = lines("goes on", [replace(one, share=0.41, best=0.89, problems=("wrong",))])
    assert (share.met, best.met, share.verified, best.verified) == (False, False, False, False)


def test_curves_are_trained_once_and_anew_when_asked():
    curves = Curves(blobs(), 3)
    assert curves.whole(POINT) is curves.whole(dict(reversed(POINT.items())))
    assert curves.trained(POINT) == curves.whole(POINT)
