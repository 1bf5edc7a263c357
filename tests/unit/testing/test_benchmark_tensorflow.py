"""Checks of benchmark `tensorflow`: wrong sums, losses that differ from those of one process, the pipeline bound."""

import json

import numpy as np
import pytest
from benchmarks.frameworks.bench_tensorflow import pipeline_bound_s, pipeline_line, told_of_losses
from benchmarks.frameworks.tensorflow_gang import Trained, _entry, train_in_turns
from benchmarks.frameworks.tensorflow_samples import Training, make_batch, wrong_sums

PLACES = np.array([0, 3, 1])
INPUTS = [np.array([0.5, -0.25, 0.125]), np.array([0.25, 1.0, -2.0])]


def chained(num_calls, dtype=np.float32):
    """Return a rank's array after `num_calls` correct calls; elements 0, 3 and 1 of four are compared."""
    result = np.zeros(4, dtype)
    result[PLACES] = sum(INPUTS) * 2 ** (num_calls - 1)
    return result


def answer(losses, seconds=None, processor_s=0.1):
    return {"losses": losses, "seconds": seconds or [1.0] * len(losses), "processor_s": processor_s}


def trained(*losses, step_s=1.0, processor_s=(0.1,)):
    found = Trained()
    found.add([answer(list(losses), [step_s] * len(losses), one) for one in processor_s], is_timed=True)
    return found


class FakeGang:
    """Answers like two ranks, and records its orders in a list that several gangs share."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def ask(self, order):
        self.log.append((self.name, order["do"], order.get("num_steps")))
        if order["do"] != "train":
            return [{}, {}]
        return [answer([2.0] * order["num_steps"], [float(rank + 1)] * order["num_steps"], rank) for rank in (0, 1)]


def test_the_result_of_a_chain_of_sums_is_correct_for_any_length():
    for num_calls in (1, 2, 60):
        assert wrong_sums(INPUTS, chained(num_calls), PLACES, num_calls) == ""


@pytest.mark.parametrize("defect", ["a call too few", "own input", "one element", "no number"])
def test_wrong_sums_are_reported_with_the_expected_ones(defect):
    result = chained(3)
    if defect == "a call too few":
        result = chained(2)
    elif defect == "own input":
        result[PLACES] = INPUTS[0]
    elif defect == "one element":
        result[1] *= 1.00001
    else:
        result[3] = np.nan
    assert "sums are wrong, first" in wrong_sums(INPUTS, result, PLACES, 3)


def test_a_result_of_another_shape_or_type_is_reported():
    for result in (chained(1, np.float64), chained(1)[:2], chained(1).reshape(2, 2)):
        assert "expected what was put in" in wrong_sums(INPUTS, result, PLACES, 1)


def test_all_ranks_together_see_the_batch_of_one_process_and_a_new_one_in_each_step():
    seen = {}

    def keep(name):
        return lambda images, labels: seen.setdefault(name, []).append((images, labels)) or 1.0

    parts = {"whole": slice(None), "first": slice(0, 4), "second": slice(4, 8)}
    for name, part in parts.items():
        training = Training(keep(name), 8, part, np.array)
        assert training.run(1)["losses"] + training.run(2)["losses"] == [1.0] * 3
    for step in range(3):
        whole, first, second = (seen[name][step] for name in parts)
        assert whole[0].shape == (8, 28, 28, 1)
        assert np.array_equal(whole[0], np.concatenate([first[0], second[0]]))
        assert np.array_equal(whole[1], np.concatenate([first[1], second[1]]))
    assert not np.array_equal(seen["whole"][0][0], seen["whole"][1][0])
    assert np.array_equal(make_batch(2, 8)[0], seen["whole"][2][0])


def test_a_step_takes_as_long_as_its_slowest_rank():
    found = Trained()
    found.add([answer([2.0, 1.0], [9.0, 9.0]), answer([2.0, 1.0], [9.0, 9.0])], is_timed=False)
    found.add([answer([0.5], [1.0], 0.3), answer([0.5], [3.0], 0.4)], is_timed=True)
    assert (found.seconds, found.losses, found.processor_s) == ([3.0], [2.0, 1.0, 0.5], [[0.3, 0.4]])
    assert found.problems == []


@pytest.mark.parametrize("other", [1.001, float("nan"), float("inf")])
def test_ranks_with_different_losses_are_reported(other):
    found = Trained()
    found.add([answer([2.0, 1.0]), answer([2.0, other])], is_timed=True)
    assert found.problems == [f"step 1: ranks have losses {[1.0, other]}"]


def test_losses_are_compared_step_by_step_with_those_of_one_process():
    ways = {"smp": trained(2.0, 1.00005), "alone": trained(2.0, 1.0)}
    assert told_of_losses(ways, ("smp",))["problems"] == []
    for wrong in (1.0002, float("nan")):
        told = told_of_losses({**ways, "smp": trained(2.0, wrong)}, ("smp",))
        assert "losses differ from those of one process" in str(told["problems"])
    with pytest.raises(ValueError, match="argument 2 is longer"):
        told_of_losses({**ways, "smp": trained(2.0)}, ("smp",))
    with pytest.raises(ValueError, match="no step was taken"):
        told_of_losses({"smp": Trained(), "alone": Trained()}, ("smp",))


def test_gangs_run_alternately_in_a_rotating_order():
    log = []
    found = train_in_turns(
        {name: FakeGang(name, log) for name in "abc"}, batch=8, num_warm_up=1, num_steps=2, num_turns=2
    )
    assert [name for name, do, num_steps in log if (do, num_steps) == ("train", 2)] == list("abcbca")
    assert [len(one.losses) for one in found.values()] == [5, 5, 5]
    assert [one.seconds for one in found.values()] == [[2.0] * 4] * 3


def test_the_bound_of_a_pipeline_follows_the_formula():
    assert pipeline_bound_s(8.0, 2, 4) == 5.0
    assert pipeline_bound_s(8.0, 1, 4) == 8.0
    assert pipeline_bound_s(8.0, 2, 1) == 8.0


def test_the_pipeline_line_compares_with_one_process_on_one_core_and_on_all_cores():
    alone, one_core = trained(2.0, step_s=0.5), trained(2.0, step_s=0.8, processor_s=(0.75,))
    ways = {"smp": trained(2.0, step_s=0.5, processor_s=(0.2, 0.3)), "alone on one core": one_core, "alone": alone}
    line = pipeline_line(ways)
    assert (line.bound_ratio, line.ratio, line.met, line.verified) == (1.0, 1.0, True, True)
    assert line.peers == {"one process on one core": 800.0, "one process": 500.0}
    assert line.details["processor time of a step by rank, ms"] == [200.0, 300.0]
    wrong = pipeline_line({**ways, "smp": trained(2.1, step_s=0.5, processor_s=(0.2, 0.3))})
    assert (wrong.met, wrong.verified) == (False, False)


def test_every_rank_of_a_gang_has_its_index_and_all_have_one_cluster():
    variables = [dict(word.split("=", 1) for word in _entry(rank, [7001, 7002])[1:]) for rank in (0, 1)]
    configs = [json.loads(one["TF_CONFIG"]) for one in variables]
    assert [one["RANK"] for one in variables] == ["0", "1"]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": index} for index in (0, 1)]
    assert [config["cluster"] for config in configs] == [{"worker": ["127.0.0.1:7001", "127.0.0.1:7002"]}] * 2
    assert [one["MASTER_PORT"] for one in variables] == ["7001"] * 2
    assert not any(word.startswith("TF_CONFIG") for word in _entry(0, [7001]))
