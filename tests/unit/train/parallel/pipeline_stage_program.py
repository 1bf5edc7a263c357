"""Split backward passes compared with whole ones. Functions `test_...()`; see `torch_programs`."""

import copy
import logging

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from clary.train.parallel.pipeline.stage import Stage

WIDTH = 6


class Attention(nn.Module):
    """A small transformer layer: residuals, a norm, products of activations, one weight used by two branches."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, hidden):
        query, key, value = self.qkv(self.norm(hidden)).chunk(3, -1)
        weights = torch.softmax(query @ key.transpose(-1, -2), -1)
        return hidden + self.out(weights @ value) * self.scale.exp()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, hidden):
        return torch.tanh(self.first(hidden) @ self.weight) @ self.weight


class TwoOutputs(nn.Module):
    """Takes two inputs, one of them integers; one output has no gradient, and one depends on weights only."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.position = nn.Parameter(torch.randn(3, WIDTH))

    def forward(self, hidden, ids):
        return self.layer(hidden) + self.position[ids], ids + 1, self.position.sin()


class Doubled(torch.autograd.Function):
    """A function that computes all its gradients at once."""

    @staticmethod
    def forward(context, value, weight):
        context.save_for_backward(value, weight)
        return 2 * value @ weight

    @staticmethod
    def backward(context, gradient):
        value, weight = context.saved_tensors
        Doubled.num_calls += 1
        return 2 * gradient @ weight.T, 2 * value.T @ gradient

    num_calls = 0


class InPython(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden):
        return self.last(Doubled.apply(hidden, self.weight))


class Checkpointed(nn.Module):
    def __init__(self, *, use_reentrant):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.use_reentrant = use_reentrant

    def forward(self, hidden):
        return checkpoint(self.layers, hidden, use_reentrant=self.use_reentrant)


class Identity(nn.Module):
    def forward(self, hidden):
        return hidden


def mlp():
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH), nn.Tanh())


def both_ways(module, inputs, *, num_microbatches=2):
    """Return gradients of inputs and parameters, by whole and by split backward passes, with weights last."""
    found = []
    for is_split in (False, True):
        stage = Stage(copy.deepcopy(module), 0)
        gradients = []
        for microbatch in range(num_microbatches):
            torch.manual_seed(microbatch)
            outputs = stage.forward(microbatch, inputs)
            seeds = [torch.randn_like(one) for one in outputs if one.requires_grad]
            gradients += (stage.backward_input if is_split else stage.backward)(microbatch, seeds)
        if is_split:
            for microbatch in range(num_microbatches):
                stage.backward_weight(microbatch)
        assert stage.num_alive == 0
        found.append([*gradients, *(parameter.grad for parameter in stage.module.parameters())])
    return found


def assert_equal(module, *inputs):
    whole, halves = both_ways(module, inputs)
    assert len(whole) == len(halves) > 0
    for one, other in zip(whole, halves, strict=True):
        assert one is not None
        assert torch.equal(one, other), (one - other).abs().max()


def hidden(*, wants=True):
    torch.manual_seed(7)
    return torch.randn(3, WIDTH, requires_grad=wants)


def said(caller):
    """Return the lines that stages log during a call."""
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logger = logging.getLogger("clary.train.parallel.pipeline.stage")
    logger.addHandler(handler)
    try:
        caller()
    finally:
        logger.removeHandler(handler)
    return records


def test_split_backwards_equal_whole_backwards_bitwise():
    torch.manual_seed(0)
    for module in (mlp(), Attention(), nn.Sequential(Attention(), Attention()), nn.Linear(WIDTH, WIDTH)):
        assert said(lambda module=module: assert_equal(module, hidden())) == []


def test_split_backward_of_a_first_stage_whose_input_needs_no_gradient():
    torch.manual_seed(0)
    assert_equal(mlp(), hidden(wants=False))
    assert_equal(nn.Sequential(nn.Embedding(9, WIDTH), Attention()), torch.tensor([[1, 2, 8]]))


def test_split_backward_of_a_stage_with_several_inputs_and_outputs():
    torch.manual_seed(0)
    # The weights of `position` are used by a sum and by an output that depends on no input: two places.
    words = said(lambda: assert_equal(TwoOutputs(), hidden(), torch.tensor([0, 2, 1])))
    reason = "not put off: the gradients of position, used in several places or by a function in Python"
    assert words == [f"stage 0 (TwoOutputs): {reason}"]


def test_a_weight_that_is_used_twice_counts_once():
    torch.manual_seed(0)
    words = said(lambda: assert_equal(Tied(), hidden()))
    assert len(words) == 1
    assert "not put off: the gradients of weight, used in several places" in words[0]


def test_a_function_in_python_runs_once():
    torch.manual_seed(0)
    Doubled.num_calls = 0
    assert "the gradients of weight," in said(lambda: assert_equal(InPython(), hidden()))[0]
    assert Doubled.num_calls == 4  # two microbatches, in both modes


def test_checkpointed_modules():
    torch.manual_seed(0)
    assert said(lambda: assert_equal(Checkpointed(use_reentrant=False), hidden())) == []
    words = said(lambda: assert_equal(Checkpointed(use_reentrant=True), hidden()))
    assert words == [
        "stage 0 (Checkpointed): a module is checkpointed with reentry: gradients of weights are not put off"
    ]


def test_stages_without_weights_and_identity_stages():
    assert_equal(nn.Tanh(), hidden())
    assert_equal(Identity(), hidden())


def test_a_frozen_weight_gets_no_gradient():
    torch.manual_seed(0)
    module = mlp()
    module[0].weight.requires_grad_(requires_grad=False)
    (first, *_), (other, *_) = both_ways(module, [hidden()])
    assert torch.equal(first, other)
    stage = Stage(module, 0)
    (output,) = stage.forward(0, [hidden()])
    stage.backward_input(0, [torch.ones_like(output)])
    stage.backward_weight(0)
    assert module[0].weight.grad is None
    assert module[0].bias.grad is not None


def flops(caller):
    with FlopCounterMode(display=False) as counter:
        caller()
    return counter.get_total_flops()


def test_weight_gradients_are_deferred_and_no_product_is_computed_twice():
    torch.manual_seed(0)
    for module in (mlp(), Attention()):
        stage, whole = Stage(module, 1), Stage(copy.deepcopy(module), 1)
        forward = flops(lambda stage=stage: stage.forward(0, [hidden()]))
        (output,) = whole.forward(0, [hidden()])
        seed = torch.ones_like(output)
        backward = flops(lambda whole=whole, seed=seed: whole.backward(0, [seed]))
        first = flops(lambda stage=stage, seed=seed: stage.backward_input(0, [seed]))
        assert all(parameter.grad is None for parameter in stage.module.parameters())
        second = flops(lambda stage=stage: stage.backward_weight(0))
        assert first + second == backward
        if isinstance(
            module, nn.Sequential
        ):  # only products with weights: one for forward, one for the input, one for the weight
            assert first == second == forward > 0
        else:
            assert second > 0


def test_gradient_hooks_are_called_for_every_microbatch():
    stage = Stage(mlp(), 0)
    seen = []
    for parameter in stage.module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: seen.append(tuple(parameter.shape)))
    for microbatch in range(2):
        (output,) = stage.forward(microbatch, [hidden()])
        stage.backward_input(microbatch, [torch.ones_like(output)])
        assert len(seen) == 4 * microbatch
        stage.backward_weight(microbatch)
    assert len(seen) == 8


def test_activations_are_freed_after_the_second_half():
    stage = Stage(mlp(), 0)
    (output,) = stage.forward(0, [hidden()])
    stage.backward_input(0, [torch.ones_like(output)])
    assert stage.num_alive == 1
    stage.backward_weight(0)
    assert stage.num_alive == 0
    stage.forward(3, [hidden()])
    stage.forget()
    assert stage.num_alive == 0


def test_an_unused_input_gets_zeros():
    class First(nn.Module):
        def forward(self, one, other):
            return 2 * one

    stage = Stage(First(), 0)
    for backward in (stage.backward, stage.backward_input):
        (output,) = stage.forward(0, [hidden(), hidden()])
        one, other = backward(0, [torch.ones_like(output)])
        assert one.unique().tolist() == [2]
        assert other.unique().tolist() == [0]


def test_an_output_that_is_no_tensor_is_refused_with_the_stage():
    class Words(nn.Module):
        def forward(self, one):
            return one, "word"

    words = ""
    try:
        Stage(Words(), 3).forward(0, [hidden()])
    except TypeError as error:
        words = str(error)
    assert "stage 3 (Words) gave str; expected a tensor" in words
