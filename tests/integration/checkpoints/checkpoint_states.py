"""States that tests of checkpoints save and restore, their unsharded values, and separate folders for hosts."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

WIDTH = 7  # odd, so that shards have different sizes on 2, 3 and 4 ranks


def base():
    return Path(os.environ["CLARY_TEST_FOLDER"])


def host_folder(name, rank, size):
    """Return the folder of this rank's host, which half of the ranks share."""
    return base() / name / ("host-a" if rank < (size + 1) // 2 else "host-b")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(WIDTH, 2 * WIDTH), nn.BatchNorm1d(2 * WIDTH)
        self.second = nn.Linear(2 * WIDTH, 3, bias=False)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, batch):
        return self.second(torch.relu(self.norm(self.first(batch)))) * self.scale


class Counter:
    """Has `state_dict` and `load_state_dict`, like a scheduler."""

    def __init__(self):
        self.count, self.mean = 0, torch.zeros(2)

    def state_dict(self):
        return {"count": self.count, "mean": self.mean}

    def load_state_dict(self, state):
        self.count, self.mean = state["count"], state["mean"]


def make(kind, seed):
    """Return a state of this kind, as a program has it before its first step."""
    torch.manual_seed(seed)
    model = Net()
    if kind == "sharded":
        fully_shard(model.first)
        # A scalar has no dimension to shard: FSDP2 accepts it only as an ignored parameter.
        fully_shard(model, ignored_params={model.scale})
    elif kind == "replicated":
        model = DistributedDataParallel(model)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": parameters[:2], "lr": 0.01 * seed}, {"params": parameters[2:], "weight_decay": 0.0}]
    )
    counter = Counter()
    loader = {"epoch": 0, "order": torch.zeros(5, dtype=torch.int32), 7: ("kept", [torch.zeros(1)])}
    return {"model": model, "optimizer": optimizer, "counter": counter, "loader": loader, "note": "new"}


def train(state, num_steps):
    """Change every value of a state."""
    for step in range(num_steps):
        torch.manual_seed(100 + step)
        state["optimizer"].zero_grad()
        state["model"](torch.randn(8, WIDTH)).square().mean().backward()
        state["optimizer"].step()
        state["counter"].count += 1
        state["counter"].mean += step
        state["loader"]["epoch"] += 3
        state["loader"]["order"] = torch.randperm(5, dtype=torch.int32)
        state["loader"][7] = ("kept", [torch.full((1,), float(step))], {})
    state["optimizer"].param_groups[0]["lr"] = 0.125
    state["note"] = f"after {num_steps}"


def whole(state):
    """Return all values of a state, unsharded, by names that do not depend on the kind."""
    found = {}
    model = state["model"].module if isinstance(state["model"], DistributedDataParallel) else state["model"]
    names = {}
    for name, value in model.state_dict().items():
        found[f"model {name}"] = _full(value)
    for name, parameter in model.named_parameters():
        names[parameter] = name
        for key, value in state["optimizer"].state.get(parameter, {}).items():
            found[f"optimizer {name} {key}"] = _full(value)
    for number, group in enumerate(state["optimizer"].param_groups):
        for key, value in group.items():
            found[f"group {number} {key}"] = [names[one] for one in value] if key == "params" else value
    found["counter"], found["mean"] = state["counter"].count, state["counter"].mean.clone()
    found["loader"], found["note"] = state["loader"], state["note"]
    return found


def assert_same(found, expected):
    """Compare bit by bit, types and keys included."""
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for key, value in expected.items():
        _assert_same(found[key], value, key)


def _assert_same(found, expected, where):
    assert type(found) is type(expected), (where, found, expected)
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype, where
        assert torch.equal(found, expected), (where, found, expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), (where, found, expected)
        for key in expected:
            _assert_same(found[key], expected[key], f"{where} {key}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), (where, found, expected)
        for at, one in enumerate(expected):
            _assert_same(found[at], one, f"{where} {at}")
    else:
        assert found == expected, (where, found, expected)


def _full(value):
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()


def keep_expected(name, state):
    """Store a state's values in a file for the next ranks."""
    values = whole(state)
    if dist.get_rank() == 0:
        torch.save(values, base() / f"{name}.pt")
    dist.barrier()


def expected(name):
    return torch.load(base() / f"{name}.pt", weights_only=False)


def refused(call, kind, *words):
    """Return the message of a call's error; fail unless the call raises this error with these words."""
    try:
        call()
    except kind as error:
        told = str(error)
    else:
        raise AssertionError(f"nothing was raised; expected {words}")
    assert all(word in told for word in words), told
    return told
