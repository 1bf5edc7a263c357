"""A keeper in one process without a process group, and the flattening of values."""

import collections
import functools
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import torch

from clary.train import checkpoint
from clary.train.checkpoint import keeper as keeper_module
from clary.train.checkpoint import saving, states
from clary.train.checkpoint.parameter_groups import check_groups
from clary.train.checkpoint.snapshot import Memory
from clary.train.checkpoint.states import holes, put_together, take_apart


class Pair(NamedTuple):
    left: object
    right: object


def in_folder(test):
    """Run a test with a new folder."""

    @functools.wraps(test)
    def run():
        with tempfile.TemporaryDirectory(prefix="clary-checkpoint-alone-") as at:
            test(Path(at))

    return run


def refused(call, kind, *words):
    try:
        call()
    except kind as error:
        told = str(error)
    else:
        raise AssertionError(f"nothing was raised; expected {words}")
    assert all(word in told for word in words), told


@in_folder
def test_one_process_saves_and_restores(at):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    schedule.step()
    state = {"model": model, "optimizer": optimizer, "schedule": schedule, "draws": torch.get_rng_state(), "epoch": 3}
    with checkpoint.Keeper(at) as keeper:
        assert keeper.restore({}) is None
        assert not keeper.should_stop()
        keeper.save(11, state)
        before = [value.clone() for value in model.state_dict().values()]
        drawn = torch.rand(3)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    other = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    back = {"model": model, "optimizer": other, "schedule": torch.optim.lr_scheduler.StepLR(other, 7),
            "draws": torch.get_rng_state(), "epoch": 0}  # fmt: skip
    with checkpoint.Keeper(at) as keeper:
        assert keeper.restore(back) == 11
    assert all(torch.equal(*both) for both in zip(model.state_dict().values(), before, strict=True))
    assert back["epoch"] == 3
    assert (back["schedule"].last_epoch, back["schedule"].step_size) == (1, 1)
    torch.set_rng_state(back["draws"])
    assert torch.equal(torch.rand(3), drawn)
    assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    for parameter in model.parameters():
        assert torch.equal(other.state[parameter]["momentum_buffer"], optimizer.state[parameter]["momentum_buffer"])


@in_folder
def test_wrappers_leave_no_trace_in_names(at):
    model = torch.nn.Linear(2, 2)
    with checkpoint.Keeper(at) as keeper:
        keeper.save(0, {"model": torch.compile(model, backend="eager")})
        keeper.wait()
        other = torch.nn.Linear(2, 2)
        assert keeper.restore({"model": other}) == 0
    assert torch.equal(other.weight, model.weight)


@in_folder
def test_a_program_that_numbers_its_steps_anew_restores_its_own_last_step(at):
    def run(*steps):
        with checkpoint.Keeper(at, keep=3) as keeper:
            for step in steps:
                keeper.save(step, {"value": step})

    def restored():
        with checkpoint.Keeper(at) as keeper:
            state = {"value": None}
            step = keeper.restore(state)
            assert state["value"] == step
            return step

    run(200, 300)
    assert restored() == 300
    run(0)
    assert restored() == 0
    run(10, 5)
    assert restored() == 5
    run(400)
    assert restored() == 400


@in_folder
def test_an_optimizer_with_other_groups_is_refused(at):
    model = torch.nn.Linear(2, 2)
    with checkpoint.Keeper(at) as keeper:
        keeper.save(0, {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=1.0)})
        keeper.wait()
        groups = [{"params": [one]} for one in model.parameters()]
        other = {"model": model, "optimizer": torch.optim.SGD(groups, lr=1.0)}
        refused(lambda: keeper.restore(other), checkpoint.CheckpointError, "has 2 groups of parameters; 1 were saved")


def three_layers(groups):
    """Return a state of a model of three layers after a step, with groups of the layers with these numbers."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2, bias=False) for _ in range(3)))
    optimizer = torch.optim.AdamW(
        [
            {"params": [model[layer].weight for layer in layers], "lr": 0.1 * (at + 1)}
            for at, layers in enumerate(groups)
        ]
    )
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


@in_folder
def test_an_optimizer_whose_parameters_are_in_other_groups_is_refused(at):
    with checkpoint.Keeper(at) as keeper:
        saved = three_layers([[0], [1, 2]])
        keeper.save(0, saved)
        keeper.wait()
        for groups in ([[1], [0, 2]], [[0, 1], [2]], [[], [0, 1, 2]]):
            other = three_layers(groups)
            before = other["model"][0].weight.clone()
            words = "optimizer", "model/1.weight" if groups[0] else "model/0.weight", "group 0", "group 1"
            refused(functools.partial(keeper.restore, other), checkpoint.CheckpointError, *words)
            assert torch.equal(other["model"][0].weight, before)
        fewer = three_layers([[0], [2]])
        refused(lambda: keeper.restore(fewer), checkpoint.CheckpointError, "optimizer", "lacks", "model/1.weight")
        more = three_layers([[0], [1, 2]])
        more["optimizer"].param_groups[1]["params"].append(torch.nn.Parameter(torch.ones(1)))
        refused(lambda: keeper.restore(more), checkpoint.CheckpointError, "optimizer", "1.2")
        fitting = three_layers([[0], [2, 1]])  # parameters are found by name
        assert keeper.restore(fitting) == 0
        for layer in range(3):
            moments = [one["optimizer"].state[one["model"][layer].weight] for one in (saved, fitting)]
            assert torch.equal(moments[0]["exp_avg"], moments[1]["exp_avg"])


@in_folder
def test_an_optimizer_is_not_restored_without_its_model(at):
    with checkpoint.Keeper(at) as keeper:
        keeper.save(0, three_layers([[0, 1, 2]]))
        keeper.wait()
        other = three_layers([[0, 1, 2]])
        assert keeper.restore({"model": other["model"]}) == 0
        before = other["optimizer"].state_dict()
        words = "optimizer", "0.0", "model/0.weight", "together"
        refused(lambda: keeper.restore({"optimizer": other["optimizer"]}), checkpoint.CheckpointError, *words)
        assert other["optimizer"].state_dict()["state"].keys() == before["state"].keys() == {0, 1, 2}
        keeper.save(1, {"optimizer": other["optimizer"]})
        assert keeper.restore({"optimizer": three_layers([[0, 1, 2]])["optimizer"]}) == 1


@in_folder
def test_checkpoints_without_names_of_parameters_are_restored(at):
    without = {"flatten": lambda state: {k: v for k, v in states.flatten(state).items() if "/parameters/" not in k}}
    with checkpoint.Keeper(at) as keeper:
        with mock.patch.multiple(keeper_module, **without):
            saved = three_layers([[0], [1, 2]])
            keeper.save(0, saved)
        keeper.wait()
        other = three_layers([[0], [1, 2]])
        assert keeper.restore(other) == 0
        assert torch.equal(other["model"][0].weight, saved["model"][0].weight)
        words = "optimizer", "0.0", "model/0.weight", "together"
        refused(lambda: keeper.restore({"optimizer": other["optimizer"]}), checkpoint.CheckpointError, *words)


def test_ranks_with_other_parameters_have_lists_of_their_own():
    first, second = [["a/0"], ["a/1"]], [["b/0"], ["b/1"]]
    check_groups("optimizer", first, [first, second])
    check_groups("optimizer", second, [first, second])
    check_groups("optimizer", [["a/0", "b/0"], ["b/1", "a/1"]], [first, second])  # one rank instead of two
    refused(lambda: check_groups("optimizer", [["a/0"], ["b/1"]], [first, second]), ValueError, "lacks", "a/1")
    refused(lambda: check_groups("optimizer", [["a/0", "b/1"], ["a/1"]], [first, second]), ValueError, "b/1")


@in_folder
def test_a_failure_names_rank_step_and_path(at):

    def full(folder, index, pieces):
        raise OSError("no space is left, said for this test")

    original, saving.write_part = saving.write_part, full
    try:
        keeper = checkpoint.Keeper(at)
        keeper.save(4, {"one": 1})
        refused(keeper.wait, checkpoint.CheckpointError, "step 4", str(at), "rank 0", "no space is left")
    finally:
        saving.write_part = original
    keeper.close()
    assert os.listdir(at) == []


@in_folder
def test_the_wait_for_a_hanging_disk_ends_at_its_limit(at):
    may_write = threading.Event()
    original = saving.write_part

    def hanging(*given):
        may_write.wait(30)
        original(*given)

    saving.write_part = hanging
    try:
        keeper = checkpoint.Keeper(at, limit_s=0.2)
        keeper.save(4, {"one": 1})
        refused(keeper.wait, checkpoint.CheckpointError, "step 4", str(at), "has not ended in 0.2 s")
    finally:
        may_write.set()
        saving.write_part = original
    keeper._limit_s = 30
    keeper.close()
    assert os.listdir(at) == ["step-000000000004"]


@in_folder
def test_a_program_that_ends_without_close_has_written_its_checkpoint(at):
    code = (
        "import sys, torch; from clary.train import checkpoint\n"
        "checkpoint.Keeper(sys.argv[1]).save(8, {'big': torch.ones(4_000_000)})"
    )
    subprocess.run([sys.executable, "-c", code, str(at)], check=True, timeout=40)
    assert os.listdir(at) == ["step-000000000008"]


@in_folder
def test_invalid_arguments_are_refused(at):
    refused(lambda: checkpoint.Keeper(at, keep=0), ValueError, "keep is 0; expected 1 or more")
    refused(lambda: checkpoint.Keeper(at, limit_s=0), ValueError, "limit_s is 0")
    at = at / "file"
    at.touch()
    refused(lambda: checkpoint.Keeper(at), checkpoint.CheckpointError, str(at), "rank 0")


def test_flattened_values_are_restored_unchanged():
    one, two = torch.ones(1), torch.zeros(2)
    ordered = collections.OrderedDict([("b", two), ("a", {})])
    value = {1: Pair(one, [()]), "x": ordered, "y": (two, None), (2, 3): []}
    tensors = []
    skeleton = take_apart(value, tensors)
    assert [tuple(tensor.shape) for tensor in tensors] == [(1,), (2,), (2,)]
    assert dict(holes(skeleton, value)) == {0: one, 1: two, 2: two}
    assert dict(holes(skeleton, None)) == {0: None, 1: None, 2: None}
    back = put_together(skeleton, tensors)
    assert type(back[1]) is Pair
    assert type(back["x"]) is collections.OrderedDict
    assert list(back) == list(value)
    assert back["x"]["a"] == {}
    assert back["y"][1] is None
    assert back[1].right == [()]


def test_a_part_in_memory_is_read_across_the_boundary_of_its_pieces():
    memory = Memory()
    memory.tensors = torch.arange(5, dtype=torch.uint8)
    memory.values = torch.arange(5, 9, dtype=torch.uint8)
    for start, length in ((0, 9), (3, 4), (5, 4), (0, 5), (8, 1), (2, 0)):
        buffer = bytearray(length)
        memory.read_into(start, memoryview(buffer))
        assert list(buffer) == list(range(start, start + length))
