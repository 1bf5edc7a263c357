"""Edge cases of sharded training: failures, limits, borrowed parameters, unusual orders."""

import contextlib
import copy
from datetime import timedelta

import torch
import torch.distributed as dist
from sharded_data_parallel_program import (
    WIDTH,
    Borrower,
    Stack,
    assert_alike,
    assert_same_weights,
    batch,
    compare,
    degrees,
    groups_of,
    loss_of,
    model,
    optimizer_of,
    settings,
    shard,
    train_alone,
    train_sharded,
)
from torch import nn

from clary.train.parallel.sharded import state
from clary.train.parallel.sharded.build import shard_model
from clary.train.parallel.sharded.groups import make_sharding_groups
from clary.train.parallel.sharded.optimizer import ShardedOptimizer

_SHORT_S = 2.0  # timeout of a collective that is meant to fail


def test_training_with_a_limit_of_zero_live_parameters(rank, size):
    compare(rank, size, torch.optim.SGD, size, made={"recomputes": False}, options={"max_live_parameters": 0})


def test_training_with_small_buckets_and_without_prefetch(rank, size):
    few = {"reduce_bucket_size": 100, "num_prefetched": 0, "max_live_parameters": 1}
    sharded, _ = compare(rank, size, torch.optim.AdamW, size, options=few)
    assert all(sum(flat.layout.numels) <= 100 or len(flat.parameters) == 1 for flat in sharded.flats)


def test_training_with_a_far_prefetch(rank, size):
    compare(rank, size, torch.optim.SGD, size, options={"num_prefetched": 3})


def test_prefetch_keeps_to_the_limit_of_live_parameters(rank, size):
    peaks = {}
    for most in (2500, 10**9):  # a block has 1968 weights, the root 96
        options = {"max_live_parameters": most, "num_prefetched": 2}
        sharded, optimizer = shard(model(), groups_of(rank, size), torch.optim.SGD, **options)
        live = []
        for block in sharded.module.blocks:
            block.register_forward_pre_hook(
                lambda *_, live=live, sharded=sharded: live.append(sharded.num_live_parameters)
            )
        train_sharded(rank, size, sharded, optimizer, steps=range(2))
        peaks[most] = max(live)
    assert peaks[2500] <= 2500 < 2 * 1968 < peaks[10**9], peaks


def test_a_parent_may_use_a_parameter_of_a_child_that_it_does_not_call(rank, size):
    torch.manual_seed(1)
    alone = Borrower()
    module = copy.deepcopy(alone)
    sharded, optimizer = shard(module, groups_of(rank, size), torch.optim.SGD, gradient_clipping=0.0)
    features = torch.randn(3, WIDTH)
    module(features).square().sum().backward()
    optimizer.step()
    other = optimizer_of(alone, torch.optim.SGD)
    alone(features).square().sum().backward()
    other.step()
    assert_same_weights(sharded, alone, rtol=1e-4, atol=1e-4)


def test_replicas_start_with_the_values_of_the_first(rank, size):
    torch.manual_seed(100 + rank)
    module = Stack()
    wanted = [copy.deepcopy(module.state_dict()) if rank == 0 else None]
    dist.broadcast_object_list(wanted, src=0)
    sharded = shard_model(module, groups_of(rank, size), settings())
    found = state.full_model_state(sharded)
    assert all(torch.equal(found[name], value) for name, value in wanted[0].items())


def test_overflow_skips_the_step(rank, size):
    sharded, optimizer = shard(model(), groups_of(rank, size), torch.optim.SGD)
    before = state.full_model_state(sharded)
    loss = loss_of(sharded.module, batch(rank, 0, 0), 0)
    (loss * (float("inf") if rank == 0 else 1.0)).backward()
    assert not optimizer.step(loss_scale=8.0)
    assert optimizer.has_overflowed
    after = state.full_model_state(sharded)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    optimizer.zero_grad()
    train_sharded(rank, size, sharded, optimizer, steps=range(1))
    assert not optimizer.has_overflowed


def test_freed_parameters_are_nan_and_gathered_ones_have_values(rank, size):
    alone = model()
    sharded, _ = shard(model(), groups_of(rank, size), torch.optim.SGD)
    weight = sharded.module.blocks[0].up.weight
    assert weight.shape == (41, WIDTH)
    assert torch.isnan(weight).all()
    with sharded.gathered():
        assert torch.equal(weight, alone.blocks[0].up.weight)
    assert torch.isnan(weight).all()
    with torch.no_grad():
        tokens = batch(0, 0, 0)
        torch.testing.assert_close(sharded.module(tokens)["logits"], alone(tokens)["logits"])
    assert sharded.num_live_parameters == 0


def test_a_failed_forward_pass_frees_parameters(rank, size):
    sharded, optimizer = shard(model(), groups_of(rank, size), torch.optim.SGD)
    with contextlib.suppress(IndexError):
        sharded.module(torch.full((1, 4), 99))
        raise AssertionError("tokens beyond the vocabulary were embedded")
    assert sharded.num_live_parameters == 0
    losses, _ = train_sharded(rank, size, sharded, optimizer)
    assert_alike(losses, train_alone(size, torch.optim.SGD)[0])


def test_the_backward_pass_after_a_failed_one_is_correct(rank, size):
    sharded, optimizer = shard(model(), groups_of(rank, size), torch.optim.SGD)

    def fail(_):
        raise ArithmeticError

    hidden = []
    handle = sharded.module.blocks[1].register_forward_hook(lambda _, __, output: hidden.append(output))
    loss = loss_of(sharded.module, batch(rank, 0, 0), 0)
    handle.remove()
    hidden[0].register_hook(fail)
    with contextlib.suppress(ArithmeticError):
        loss.backward()
        raise AssertionError("the hook was not called")
    optimizer.zero_grad()
    losses, _ = train_sharded(rank, size, sharded, optimizer)
    assert_alike(losses, train_alone(size, torch.optim.SGD)[0])


def test_a_backward_pass_after_the_last_announced_one_counts(rank, size):
    for degree in degrees(size):
        sharded, optimizer = shard(model(), groups_of(rank, degree), torch.optim.SGD)
        losses, norms = train_sharded(rank, size, sharded, optimizer, parts=2, steps=range(1), announces=[True, True])
        wanted_losses, wanted_norms, module = train_alone(size, torch.optim.SGD, parts=2, steps=1)
        assert_alike(losses, wanted_losses)
        assert_alike(norms, wanted_norms)
        assert_same_weights(sharded, module, rtol=1e-4, atol=2e-5)


def test_recomputation_in_an_announced_backward_pass(rank, size):
    for is_reentrant in (False, True):
        made = {"recomputes": is_reentrant}
        compare(rank, size, torch.optim.SGD, max(1, size // 2), parts=2, announces=(False, True), made=made)


def test_the_error_of_a_missing_replica_names_the_buffer(rank, size):
    groups = groups_of(rank, size, timeout=timedelta(seconds=_SHORT_S))
    sharded, _ = shard(model(), groups, torch.optim.SGD)
    failure = ""
    if rank > 0:
        try:
            sharded.module(batch(rank, 0, 0))
        except RuntimeError as error:
            failure = str(error)
        assert "all-gather of parameters of half_used" in failure, failure
        assert "all replicas must call the same modules" in failure, failure
    dist.barrier()


def test_unsupported_calls_of_optimizers_are_refused(rank, size):
    sharded = shard_model(model(), groups_of(rank, size), settings())
    parameters = list(sharded.module.parameters())
    stepped = torch.optim.AdamW([nn.Parameter(torch.ones(1))])
    stepped.param_groups[0]["params"][0].grad = torch.ones(1)
    stepped.step()
    for optimizer, words in (
        (torch.optim.Adafactor(parameters), "does not update each element independently"),
        (torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1), "that is not in the sharded model"),
        (stepped, "has state already"),
    ):
        failure = ""
        try:
            ShardedOptimizer(optimizer, sharded)
        except ValueError as error:
            failure = str(error)
        assert words in failure, failure


def test_schedulers_reach_the_groups(rank, size):
    sharded, optimizer = shard(model(), groups_of(rank, size), torch.optim.SGD)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 1, gamma=0.5)
    train_sharded(rank, size, sharded, optimizer, steps=range(1))
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]


def test_degrees_that_do_not_divide_are_refused(rank, size):
    failure = ""
    try:
        make_sharding_groups(dist.group.WORLD, size + 1)
    except ValueError as error:
        failure = str(error)
    assert f"is {size + 1}; it must divide the {size} ranks" in failure, failure
