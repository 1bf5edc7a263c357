"""Functions of Clary inside programs, run as in a job on two ranks with Python 3.10; see `test_older_pythons`."""

import importlib
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

LIMIT_S = 60.0
STEPS = Path(os.environ["CLARY_STEPS_FOLDER"])
PROFILES = Path(os.environ["CLARY_PROFILES_FOLDER"])
TENSORS = Path(json.loads(Path(os.environ["SMDEBUG_CONFIG_FILE_PATH"]).read_text())["LocalPath"])


def training():
    """Return a function that trains for one step, the same on all ranks."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(torch.ones(4, 8)), torch.zeros(4, dtype=torch.long)).backward()
        optimizer.step()

    return step


def test_the_interpreter_has_only_the_features_of_python_3_10(rank, size):
    assert sys.version_info[:2] == (3, 10)
    assert not hasattr(importlib.import_module("enum"), "StrEnum")
    assert not hasattr(importlib.import_module("builtins"), "ExceptionGroup")
    assert not importable("tomllib")
    assert not importable("clary.agent"), "the folder of a job has it not"
    from clary.base.errors import Fault

    assert (str(Fault.USER), f"{Fault.USER:>5}", json.dumps(Fault.USER)) == ("user", " user", '"user"')


def importable(name):
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def test_steps_are_recorded_and_tensors_saved(rank, size):
    from clary.contract.step_records import ENDING, HEADER_BYTES, read_header, read_rows
    from clary.train import debugger

    step = training()
    for _ in range(6):
        step()
    found = (STEPS / f"{rank}-{os.getpid()}{ENDING}").read_bytes()
    assert read_header(found) == rank
    rows = read_rows(found[HEADER_BYTES:])
    assert len(rows) >= 5
    assert all(row.backward_s > 0 and row.optimizer_s > 0 for row in rows)

    trial = debugger.create_trial(TENSORS)
    end_s = time.monotonic() + LIMIT_S
    while 4 not in trial.steps():
        assert time.monotonic() < end_s, trial.steps()
        time.sleep(0.05)
    assert trial.steps()[:3] == [0, 2, 4]
    (name,) = (name for name in trial.tensor_names(collection="gradients") if name.endswith("0.weight"))
    assert trial.tensor(name).value(4).shape == (8, 8)


def test_a_window_of_the_profiler_is_recorded(rank, size):
    from clary.base.plain import to_plain
    from clary.contract.deep_profiles import ProfileRequest

    step, state = training(), PROFILES / f"out/1/rank-{rank}.json"
    draft = PROFILES / ".draft"
    draft.write_text(json.dumps(to_plain(ProfileRequest(number=1, num_steps=3))))
    draft.replace(PROFILES / "request-1.json")
    end_s = time.monotonic() + LIMIT_S
    while not state.exists() or json.loads(state.read_text())["state"] != "done":
        assert time.monotonic() < end_s, state.exists() and state.read_text()
        step()
        time.sleep(0.01)
    assert len(json.loads(state.read_text())["bounds_ns"]) == 4


def test_smddp_reduces_with_the_compiled_core(rank, size):
    from clary.train._native import core

    assert dist.get_backend() == "smddp"
    assert core.is_available(), core.unavailable_reason()
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        values = torch.full((1000,), rank + 1, dtype=dtype)
        dist.all_reduce(values)
        assert values.eq(3).all()
    parallel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    parallel(torch.full((1, 2), float(rank))).sum().backward()
    assert parallel.module.weight.grad.eq(0.5).all()


def test_the_interface_of_smddp_1_can_be_imported(rank, size):
    import smdistributed.dataparallel.torch.distributed as smddp

    assert (smddp.get_rank(), smddp.get_world_size()) == (rank, size)


def test_model_parallelism_trains_a_step(rank, size):
    import smdistributed.modelparallel.torch as smp

    def make():
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))

    inputs, alone = torch.ones(4, 4), make()
    alone(inputs).square().mean().backward()
    expected = {name: parameter.grad for name, parameter in alone.named_parameters()}

    smp.init({"partitions": 2, "microbatches": 2})
    model = smp.DistributedModel(make())
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    @smp.step
    def train(model, batch):
        loss = model(batch).square().mean()
        model.backward(loss)
        return loss

    train(model, inputs)
    own = {name.removeprefix("module."): parameter for name, parameter in model.local_named_parameters()}
    assert 0 < len(own) < len(expected)
    for name, parameter in own.items():
        torch.testing.assert_close(parameter.grad, expected[name])
    optimizer.step()
    smp.shutdown()


def test_torch_sagemaker_can_be_imported(rank, size):
    import torch.sagemaker as tsm

    assert not tsm.is_initialized()
