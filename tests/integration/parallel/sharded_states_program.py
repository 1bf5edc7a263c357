"""States of sharded models and optimizers: saved, and loaded at the same degree, at others, and without shards."""

import copy
import tempfile
from pathlib import Path

import torch
from sharded_data_parallel_program import (
    CLIPPING,
    Stack,
    assert_alike,
    batch,
    degrees,
    groups_of,
    loss_of,
    model,
    optimizer_of,
    shard,
    train_alone,
    train_sharded,
)
from torch import nn

from clary.train.parallel.sharded import state


def test_local_states_resume(rank, size):
    for degree in degrees(size):
        groups = groups_of(rank, degree)
        sharded, optimizer = shard(model(), groups, torch.optim.AdamW)
        train_sharded(rank, size, sharded, optimizer, steps=range(2))
        folder = Path(tempfile.mkdtemp())
        torch.save(
            {"model": state.local_model_state(sharded), "optimizer": state.local_optimizer_state(optimizer)},
            folder / "state",
        )
        saved = torch.load(folder / "state", weights_only=False)
        other, other_optimizer = shard(Stack(), groups, torch.optim.AdamW)
        state.load_local_model_state(other, saved["model"])
        state.load_local_optimizer_state(other_optimizer, saved["optimizer"])
        ours = train_sharded(rank, size, sharded, optimizer, steps=range(2, 4))
        assert train_sharded(rank, size, other, other_optimizer, steps=range(2, 4)) == ours
        for one, another in zip(sharded.flats, other.flats, strict=True):
            assert torch.equal(one.master_S, another.master_S)


def test_local_states_of_another_degree_are_refused(rank, size):
    sharded, optimizer = shard(model(), groups_of(rank, size), torch.optim.AdamW)
    other, other_optimizer = shard(model(), groups_of(rank, 1), torch.optim.AdamW)
    for load, saved in (
        (lambda: state.load_local_model_state(other, state.local_model_state(sharded)), "model"),
        (
            lambda: state.load_local_optimizer_state(other_optimizer, state.local_optimizer_state(optimizer)),
            "optimizer",
        ),
    ):
        failure = ""
        try:
            load()
        except ValueError as error:
            failure = str(error)
        assert f"local {saved} state has degree {size}; expected 1" in failure, failure


def test_full_states_load_at_any_degree_and_without_shards(rank, size):
    for degree in degrees(size):
        sharded, optimizer = shard(model(), groups_of(rank, degree), torch.optim.AdamW)
        train_sharded(rank, size, sharded, optimizer, steps=range(2))
        weights, states = state.full_model_state(sharded), state.full_optimizer_state(optimizer)
        only_first = state.full_optimizer_state(optimizer, to_rank0=True)
        assert bool(only_first) == (rank == 0)
        assert bool(state.full_model_state(sharded, to_rank0=True)) == (rank == 0)
        ours = train_sharded(rank, size, sharded, optimizer, steps=range(2, 4))
        for other_degree in degrees(size):
            other, other_optimizer = shard(Stack(), groups_of(rank, other_degree), torch.optim.AdamW)
            state.load_full_model_state(other, copy.deepcopy(weights))
            state.load_full_optimizer_state(other_optimizer, copy.deepcopy(states))
            theirs = train_sharded(rank, size, other, other_optimizer, steps=range(2, 4))
            assert_alike(theirs[0], ours[0])
            assert_alike(theirs[1], ours[1])
        alone = Stack()
        alone.load_state_dict(weights)
        plain = optimizer_of(alone, torch.optim.AdamW)
        plain.load_state_dict(states)
        _, _, trained = train_alone(size, torch.optim.AdamW, steps=2)
        for name, value in trained.state_dict().items():
            torch.testing.assert_close(alone.state_dict()[name], value, rtol=1e-4, atol=2e-5)
        wanted = trained_state(size)["state"]
        assert set(states["state"]) == set(wanted)
        for number, by_key in wanted.items():
            for key, value in by_key.items():
                torch.testing.assert_close(states["state"][number][key], value, rtol=1e-3, atol=1e-6)


def test_a_full_state_with_scales_of_blocks_is_refused_on_all_ranks(rank, size):
    sharded, optimizer = shard(model(), groups_of(rank, size), torch.optim.AdamW)
    train_sharded(rank, size, sharded, optimizer, steps=range(1))
    for scale in (torch.tensor(2.0), 2.0):  # the same on all ranks
        for one in optimizer.state.values():
            one["scale"] = scale
        assert state.full_optimizer_state(optimizer)["state"][0]["scale"] == 2.0
    if rank == size - 1:  # an optimizer of 8 bits has scales where the slice is long enough
        slice_ = max(optimizer.state, key=torch.Tensor.numel)
        optimizer.state[slice_]["absmax1"] = torch.ones(-(-slice_.numel() // 256) + 1)
    for is_first_alone in (False, True):
        failure = ""
        try:
            state.full_optimizer_state(optimizer, to_rank0=is_first_alone)
        except ValueError as error:
            failure = str(error)
        for word in ("absmax1 of ", "has shape (", "save a local state"):
            assert word in failure, failure
    state.local_optimizer_state(optimizer)


def trained_state(size):
    module = model()
    optimizer = optimizer_of(module, torch.optim.AdamW)
    for step in range(2):
        optimizer.zero_grad()
        for rank in range(size):
            (loss_of(module, batch(rank, step, 0), step) / size).backward()
        nn.utils.clip_grad_norm_(module.parameters(), CLIPPING)
        optimizer.step()
    return optimizer.state_dict()


def test_full_states_that_do_not_fit_change_nothing(rank, size):
    sharded, _ = shard(model(), groups_of(rank, size), torch.optim.SGD)
    before = state.full_model_state(sharded)
    wrong = {**before, "surplus": torch.zeros(1), "head.weight": torch.zeros(3, 3)}
    del wrong["scale"]
    failure = ""
    try:
        state.load_full_model_state(sharded, wrong)
    except RuntimeError as error:
        failure = str(error)
    for word in ("missing ['scale']", "unexpected ['surplus']", "head.weight is (3, 3), expected (50, 24)"):
        assert word in failure, failure
    after = state.full_model_state(sharded)
    assert all(torch.equal(after[name], value) for name, value in before.items())
