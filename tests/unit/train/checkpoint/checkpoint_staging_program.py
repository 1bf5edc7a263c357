"""A keeper that copies tensors while the next forward and backward pass run."""

import contextlib
import functools
import tempfile
import threading
from pathlib import Path

import torch

from clary.train import checkpoint
from clary.train.checkpoint import staging, states

states.LEAST_LATE_BYTES = 0  # models of tests are small, and smaller tensors would be copied at once

WIDTH = 8


def in_folder(test):
    """Run a test with a new folder."""

    @functools.wraps(test)
    def run():
        with tempfile.TemporaryDirectory(prefix="clary-checkpoint-staging-") as at:
            test(Path(at))

    return run


def refused(call, *words):
    try:
        call()
    except checkpoint.CheckpointError as error:
        told = str(error)
    else:
        raise AssertionError(f"nothing was raised; expected {words}")
    assert all(word in told for word in words), told


@contextlib.contextmanager
def held_copies():
    """Block every copy until the yielded gate opens."""
    gate, real = threading.Event(), torch._foreach_copy_

    def late_copy(targets, sources):
        assert gate.wait(20)
        real(targets, sources)

    staging.torch._foreach_copy_ = late_copy
    try:
        yield gate
    finally:
        gate.set()
        staging.torch._foreach_copy_ = real


def make(kind=torch.optim.AdamW, **options):
    """Return a state whose optimizer has made one step."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Conv2d(2, WIDTH, 3), torch.nn.BatchNorm2d(WIDTH))
    model = model.to(memory_format=torch.channels_last)
    state = {"model": model, "optimizer": kind(model.parameters(), lr=0.1, **options), "epoch": 1}
    forward_backward(state)
    state["optimizer"].step()
    return state


def forward_backward(state):
    state["optimizer"].zero_grad()
    state["model"](torch.randn(2, 2, 6, 6)).square().sum().backward()


def values(state):
    """Return copies of all tensors by name."""
    found = {f"model {name}": value.clone() for name, value in state["model"].state_dict().items()}
    for number, own in enumerate(state["optimizer"].state.values()):
        for name, value in own.items():
            if isinstance(value, torch.Tensor):
                found[f"optimizer {number} {name}"] = value.clone()
    return found


def assert_restored(keeper, step, expected):
    state = make()
    assert keeper.restore(state) == step
    found = values(state)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@in_folder
def test_save_returns_before_weights_are_copied_and_the_next_step_waits(at):
    state = make()
    keeper = checkpoint.Keeper(at, async_staging=True)
    expected = values(state)
    with held_copies() as gate:
        keeper.save(1, state)
        forward_backward(state)  # changes the buffers of the batch normalization, which were copied at once
        opening = threading.Timer(0.3, gate.set)
        opening.start()
        assert not gate.is_set()
        state["optimizer"].step()
        assert gate.is_set()
        assert keeper.step_wait_s > 0.1
    keeper.wait()
    assert_restored(keeper, 1, expected)
    assert not state["optimizer"]._optimizer_step_pre_hooks
    keeper.close()


@in_folder
def test_each_of_several_saves_holds_the_values_of_its_own_time(at):
    state = make()
    keeper = checkpoint.Keeper(at, keep=9, async_staging=True)
    expected = {}
    for step in range(5):
        expected[step] = values(state)
        keeper.save(step, state)
        forward_backward(state)
        state["optimizer"].step()
    keeper.wait()
    for step in (4, 3, 2, 1, 0):
        assert_restored(keeper, step, expected[step])
        (at / f"step-{step:012d}").rename(at / f"seen-{step}")
    keeper.close()


@in_folder
def test_a_change_that_torch_counts_is_refused(at):
    state = make()
    keeper = checkpoint.Keeper(at, async_staging=True)
    with held_copies():
        keeper.save(1, state)
        with torch.no_grad():
            state["model"][0].weight[0, 0, 0, 0] += 1
    refused(keeper.wait, "step 1", "model/0.weight", "changed between the save and the next step")
    assert not list(at.glob("step-*"))
    keeper.save(2, state)
    keeper.wait()
    assert_restored(keeper, 2, values(state))
    keeper.close()


@in_folder
def test_a_change_of_all_elements_that_torch_does_not_count_is_refused(at):
    for change in (lambda one: one.data.mul_(0.5), lambda one: one.detach().numpy().fill(0)):
        state = make()
        keeper = checkpoint.Keeper(at, async_staging=True)
        with held_copies():
            keeper.save(1, state)
            change(state["model"][0].weight)
        refused(keeper.close, "step 1", "model/0.weight", "changed between")
        assert not list(at.glob("step-*"))


@in_folder
def test_a_step_of_an_optimizer_outside_the_state_is_refused(at):
    """A fused optimizer changes weights without increasing torch's version counter."""
    for options in ({}, {"fused": True}):
        state = make()
        other = torch.optim.SGD(state["model"].parameters(), lr=0.1, **options)
        keeper = checkpoint.Keeper(at, async_staging=True)
        forward_backward(state)
        with held_copies():
            keeper.save(1, state)
            other.step()
        refused(keeper.close, "step 1", "changed between")


@in_folder
def test_every_kind_of_optimizer_waits_for_the_copy(at):
    kinds = [
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adafactor, {}),
    ]
    for number, (kind, options) in enumerate(kinds):
        state = make(kind, **options)
        keeper = checkpoint.Keeper(at / str(number), async_staging=True)
        expected = values(state)
        forward_backward(state)
        expected.update({f"model {name}": one.clone() for name, one in state["model"].state_dict().items()})
        with held_copies() as gate:
            keeper.save(number, state)
            threading.Timer(0.1, gate.set).start()
            state["optimizer"].step()
        keeper.wait()
        fresh = make(kind, **options)
        assert keeper.restore(fresh) == number
        found = values(fresh)
        assert all(torch.equal(found[name], one) for name, one in expected.items()), (kind, options)
        keeper.close()


@in_folder
def test_tensors_that_no_optimizer_of_the_state_owns_are_copied_at_once(at):
    state = make()
    keeper = checkpoint.Keeper(at, async_staging=True)
    expected = values(state)
    with held_copies():
        keeper.save(1, {"model": state["model"]})
        with torch.no_grad():
            state["model"][0].weight.zero_()
    keeper.wait()
    found = make()
    assert keeper.restore({"model": found["model"]}) == 1
    assert torch.equal(found["model"][0].weight, expected["model 0.weight"])
    keeper.close()


@in_folder
def test_without_the_option_no_tensor_is_copied_late(at):
    state = make()
    keeper = checkpoint.Keeper(at)
    expected = values(state)
    keeper.save(1, state)
    state["model"][0].weight.data.zero_()
    assert not state["optimizer"]._optimizer_step_pre_hooks
    keeper.wait()
    assert_restored(keeper, 1, expected)
    assert keeper.step_wait_s == 0.0
    keeper.close()


@in_folder
def test_a_hanging_copy_fails_the_step_and_the_wait_at_the_limit(at):
    state = make()
    keeper = checkpoint.Keeper(at, async_staging=True, limit_s=0.5)
    with held_copies():
        keeper.save(1, state)
        refused(state["optimizer"].step, "step 1", "waited 0.5 s for the copy")
        refused(keeper.wait, "step 1", "0.5 s")


@in_folder
def test_a_failing_copy_is_reported_and_blocks_no_step(at):
    state = make()
    keeper = checkpoint.Keeper(at, async_staging=True)
    real = torch._foreach_copy_

    def failing(targets, sources):
        raise RuntimeError("memory is bad, said for this test")

    staging.torch._foreach_copy_ = failing
    try:
        keeper.save(1, state)
        state["optimizer"].step()
        refused(keeper.wait, "step 1", "memory is bad")
    finally:
        staging.torch._foreach_copy_ = real
    assert not list(at.glob("step-*"))
    keeper.close()


def test_samples_of_tensors_of_all_types_shapes_and_strides_are_copies_of_their_elements():
    kinds = (torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64, torch.uint8, torch.bool)
    kinds += (torch.float8_e4m3fn, torch.float8_e5m2)
    tensors = [torch.arange(1, 41).to(torch.float32).reshape(5, 8).to(kind) for kind in kinds]
    tensors += [torch.randn(6, 7).t(), torch.randn(3), torch.randn(())]
    samples = staging._copied_samples(tensors)
    for tensor, sample in zip(tensors, samples, strict=True):
        expected = staging._sampled(tensor)
        assert torch.equal(staging._bits(sample), staging._bits(expected)), tensor.dtype
        assert sample.data_ptr() != tensor.data_ptr()


def test_peers_and_async_staging_exclude_each_other():
    told = ""
    try:
        checkpoint.Keeper("/nowhere", peers=True, async_staging=True)
    except ValueError as error:
        told = str(error)
    assert "peers and async_staging" in told
