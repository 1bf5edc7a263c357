"""How batches are split into microbatches and results merged. Functions `test_...()`; see `torch_programs`."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import torch

from clary.train.parallel.microbatches import StepOutput, merge_results, split_arguments


class Pair(NamedTuple):
    left: object
    right: object


@dataclass
class ModelOutput(OrderedDict):
    """Like transformers' results: a dict whose keys are fields."""

    loss: object = None
    logits: object = None

    def __post_init__(self):
        for name in ("loss", "logits"):
            if getattr(self, name) is not None:
                self[name] = getattr(self, name)


class Graph:
    """An object that splits itself."""

    def smp_slice(self, num_mb, mb, axis):
        return (num_mb, mb, axis)


def raised(function, *arguments, **keywords):
    try:
        function(*arguments, **keywords)
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller looks at it
        return error
    raise AssertionError("nothing was raised")


def train(model, inputs, target, *rest, scale=1.0, **more):
    """Stands for the function of a step."""


def test_tensors_are_split_at_any_depth_and_all_other_values_are_passed_whole():
    batch = torch.arange(8).reshape(4, 2)
    model = object()
    inputs = {"ids": batch, "nested": [batch, (batch, "word")], "number": 3}
    first, second = split_arguments(train, [model, inputs], {"target": batch, "scale": 2.0}, 2)
    for number, (arguments, keywords) in enumerate((first, second)):
        part = batch[2 * number : 2 * number + 2]
        assert arguments[0] is model
        assert torch.equal(arguments[1]["ids"], part)
        assert torch.equal(arguments[1]["nested"][0], part)
        assert torch.equal(arguments[1]["nested"][1][0], part)
        assert arguments[1]["nested"][1][1] == "word"
        assert arguments[1]["number"] == 3
        assert torch.equal(keywords["target"], part)
        assert keywords["scale"] == 2.0


def test_containers_keep_their_types():
    batch = torch.zeros(4, 2)
    value = [Pair(batch, 1), {batch}, frozenset({batch}), OrderedDict(a=batch), ModelOutput(loss=batch)]
    (arguments, _), _ = split_arguments(train, [None, value], {}, 2)
    pair, one, frozen, ordered, output = arguments[1]
    assert isinstance(pair, Pair)
    assert pair.left.shape == (2, 2)
    assert [type(one), type(frozen), type(ordered), type(output)] == [set, frozenset, OrderedDict, ModelOutput]
    assert output["loss"].shape == output.loss.shape == next(iter(one)).shape == (2, 2)


def test_names_choose_the_axis_or_keep_an_argument_whole():
    batch = torch.zeros(3, 4)
    split = split_arguments(
        train, [None, batch, batch], {"extra": batch}, 2, whole=["target"], axes={"inputs": 1, "extra": -1}
    )
    for arguments, keywords in split:
        assert arguments[1].shape == keywords["extra"].shape == (3, 2)
        assert arguments[2] is batch


def test_objects_with_their_own_split_method_are_called():
    split = split_arguments(train, [None, Graph()], {}, 3, axes={"inputs": 1})
    assert [arguments[1] for arguments, _ in split] == [(3, 0, 1), (3, 1, 1), (3, 2, 1)]


def test_scalars_and_surplus_positional_arguments_are_accepted():
    scalar, batch = torch.tensor(5.0), torch.zeros(4)
    for arguments, _ in split_arguments(train, [None, scalar, None, batch], {}, 4):
        assert arguments[1] is scalar
        assert arguments[3].shape == (1,)


def test_an_argument_that_cannot_be_split_is_refused_by_name():
    error = raised(split_arguments, train, [None, {"ids": torch.zeros(5, 2)}], {}, 2)
    assert isinstance(error, ValueError)
    assert "inputs['ids'] has length 5 along axis 0 (shape (5, 2)), which is not a multiple of 2 microbatches" in str(
        error
    )
    assert "no axis 3" in str(raised(split_arguments, train, [None, torch.zeros(4)], {}, 2, axes={"inputs": 3}))

    def narrow(inputs):
        """Takes one argument."""

    assert "no argument 'input'" in str(raised(split_arguments, narrow, [1], {}, 2, whole=["input"]))
    assert isinstance(raised(split_arguments, narrow, [1, 2], {}, 2), TypeError)


def test_tensors_become_step_outputs_in_containers_of_the_same_type():
    results = [
        ModelOutput(loss=torch.tensor(float(number)), logits=(torch.full((2, 3), number), number))
        for number in range(4)
    ]
    merged = merge_results(results)
    assert isinstance(merged, ModelOutput)
    assert isinstance(merged["loss"], StepOutput)
    assert merged.loss.reduce_mean() == 1.5
    assert merged["loss"].reduce_sum() == 6
    assert merged["loss"].stack().tolist() == [0, 1, 2, 3]
    logits, numbers = merged["logits"]
    assert logits.concat().shape == (8, 3)
    assert numbers == [0, 1, 2, 3]
    assert merge_results([Pair(1, 2), Pair(3, 4)]) == Pair([1, 3], [2, 4])
    assert merge_results([None, None]) == [None, None]
    assert merge_results([{"words": {"a"}}, {"words": {"a", "b"}}]) == {"words": [{"a"}, {"a", "b"}]}


def test_detached_outputs_hold_no_graph():
    results = [torch.ones(2, requires_grad=True) * 2 for _ in range(2)]
    assert merge_results(results).outputs[0].requires_grad
    assert not merge_results(results, detach=True).outputs[0].requires_grad


def test_splitting_and_merging_is_the_identity():
    batch = torch.randn(6, 3)
    for num_microbatches in (1, 2, 3, 6):
        parts = [arguments[1] for arguments, _ in split_arguments(train, [None, batch], {}, num_microbatches)]
        assert torch.equal(merge_results(parts).concat(), batch)


def test_microbatches_with_different_results_are_refused():
    one, two = torch.zeros(1), {"a": 1}
    assert "Tensor and dict" in str(raised(merge_results, [one, two]))
    assert "different keys" in str(raised(merge_results, [{"a": 1}, {"b": 1}]))
    assert "[1, 2] values" in str(raised(merge_results, [[1], [1, 2]]))
