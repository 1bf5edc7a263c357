"""More mistakes that once passed in silence: ranks that differ, changes to a wrapped model, parts taken for the whole.

Run by test_smp_as_called on two ranks.
"""

import logging
import sys
import tempfile
import types
import unittest
from functools import partial
from pathlib import Path

import smdistributed.modelparallel.torch as smp
import torch
import torch.distributed as dist
from smp_core_program import failure_of, start, train_step
from smp_mistakes_program import wrapped
from smp_models import SharedPerceptron, batch_of, loss_of, make
from torch import nn

EARLY = types.ModuleType("imports_before_any_model_is_wrapped")
EARLY.clip = nn.utils.clip_grad_norm_
sys.modules[EARLY.__name__] = EARLY
PIPELINE = {"partitions": 2}
SHARDS = {"sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 10}


class Plain(nn.Module):
    """Three layers that share no weights."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


def shared_folder(rank):
    found = [tempfile.mkdtemp(prefix="clary-silent-") if rank == 0 else None]
    dist.broadcast_object_list(found)
    return Path(found[0])


def own_batch(rank, number=0):
    """Return this rank's half of a batch."""
    inputs, targets = batch_of(SharedPerceptron, number)
    half = len(inputs) // 2
    return inputs[rank * half :][:half], targets[rank * half :][:half]


def assert_alike(model, message=""):
    for name, one in model.named_parameters():
        both = [torch.empty_like(one) for _ in range(2)]
        dist.all_gather(both, one.detach().contiguous())
        assert torch.equal(*both), (name, message)


def optimizer_over(model, **options):
    return smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)


def test_ranks_with_different_configurations_are_refused(rank, size):
    smp.shutdown()
    for keys, words in (
        ({"microbatches": 2 + rank}, "microbatches is 3 on rank 1 and 2 on rank 0"),
        ({"partitions": 1 + rank, "microbatches": 2}, "partitions is 2 on rank 1 and 1 on rank 0"),
        ({"_undocumented": rank}, "undocumented is"),
    ):
        failure = failure_of(partial(smp.init, {"ddp": True, **keys}))
        assert words in str(failure), failure
    smp.init({"ddp": True})


def test_ranks_with_different_models_are_refused(rank, size):
    for keys in (PIPELINE, {}, SHARDS):
        start(ddp=True, **keys)
        module = Plain()
        if rank == 1:
            module.head = nn.Linear(8, 5)
        failure = failure_of(partial(smp.DistributedModel, module))
        assert "head.weight is (5, 8) float32, trained on the former and (4, 8) float32, trained" in str(failure), (
            failure
        )
    start(ddp=True)
    module = Plain()
    module.first.weight.requires_grad_(rank == 0)
    assert "first.weight is (8, 8) float32 on the former" in str(failure_of(partial(smp.DistributedModel, module)))


def test_tensor_ranks_with_different_batches_are_refused(rank, size):
    found = []
    for batch in (own_batch(rank), own_batch(0)):
        start(ddp=True, tensor_parallel_degree=2, prescaled_batch=True)
        with smp.tensor_parallelism():
            module = Plain()
        found.append(failure_of(partial(train_step, smp.DistributedModel(module), *batch)))
    assert "inputs of tensor rank 1 differs from that of tensor rank 0" in str(found[0])
    assert "load data by smp.rdp_rank()" in str(found[0])
    assert found[1] is None, found[1]


def test_pipeline_ranks_with_different_batches_are_logged(rank, size):
    model, _ = wrapped(**PIPELINE)
    if rank == 0:
        with unittest.TestCase().assertLogs("clary.smp", "WARNING") as told:
            train_step(model, *own_batch(rank))
        assert "inputs of pipeline rank 1 is another than that of pipeline rank 0" in told.output[0]
    else:
        train_step(model, *own_batch(rank))
    train_step(model, *own_batch(rank))  # logged once


def test_parameters_unfrozen_later_are_averaged_too(rank, size):
    for keys in ({}, {"fp16": True}, {"shard_optimizer_state": True}, {"microbatches": 2}):
        start(ddp=True, **keys)
        module = make(Plain)
        module.first.requires_grad_(False)
        model = smp.DistributedModel(module)
        optimizer = optimizer_over(model)
        before = module.first.weight.detach().clone()
        for number in range(4):
            if number == 1:
                module.first.requires_grad_(True)
            if number == 3:
                module.second.requires_grad_(False)
            optimizer.zero_grad()
            train_step(model, *own_batch(rank, number))
            optimizer.step()
            assert torch.equal(before, module.first.weight) == (number == 0), keys
        assert_alike(model, keys)


def test_unfreezing_a_sharded_parameter_is_refused(rank, size):
    start(ddp=True, **SHARDS)
    module = make(Plain)
    module.first.requires_grad_(False)
    model = smp.DistributedModel(module)
    train_step(model, *own_batch(rank))
    module.first.requires_grad_(True)
    failure = failure_of(partial(train_step, model, *own_batch(rank)))
    assert "first.weight and 1 more began to need gradients" in str(failure)


def test_a_module_added_to_a_wrapped_model_is_refused(rank, size):
    for keys in ({}, PIPELINE, SHARDS):
        start(ddp=True, **keys)
        module = make(Plain)
        model = smp.DistributedModel(module)
        optimizer_over(model)
        train_step(model, *own_batch(0))
        module.head = nn.Linear(8, 4)
        failure = failure_of(partial(train_step, model, *own_batch(0)))
        assert "head.weight and 1 more came into the model after smp.DistributedModel" in str(failure), (keys, failure)


def test_ddp_around_or_inside_the_model_is_refused(rank, size):
    for keys in ({}, PIPELINE):
        start(ddp=True, microbatches=2, **keys)
        around = nn.parallel.DistributedDataParallel(make(Plain))
        assert "in a DistributedDataParallel: that wrapper" in str(failure_of(partial(smp.DistributedModel, around)))
        inside = nn.Sequential(nn.parallel.DistributedDataParallel(make(Plain)))
        assert "with a DistributedDataParallel at 0: that wrapper" in str(
            failure_of(partial(smp.DistributedModel, inside))
        )
        model = smp.DistributedModel(make(Plain))
        around = nn.parallel.DistributedDataParallel(model)
        failure = failure_of(partial(train_step, around, *own_batch(0)))
        assert "a DistributedDataParallel around the DistributedModel" in str(failure)


def test_another_model_is_not_trained_in_a_step(rank, size):
    for keys in ({}, PIPELINE):
        start(ddp=True, microbatches=2, **keys)
        model = smp.DistributedModel(make(Plain))

        @smp.step
        def other_step(other, inputs, targets, model=model):
            loss = loss_of(other(inputs), targets)
            model.backward(loss)
            return loss

        if keys:
            train_step(model, *own_batch(0))
        failure = failure_of(partial(other_step, make(Plain), *own_batch(0)))
        assert "in which the DistributedModel was not called" in str(failure), (keys, failure)


def norm_alone(batches):
    """Return the norm of gradients in one process, over the batches of all replicas."""
    module = make(Plain)
    for batch in batches:
        (loss_of(module(batch[0]), batch[1]) / len(batches)).backward()
    return torch.cat([one.grad.flatten() for one in module.parameters()]).norm().item()


def test_torchs_own_clipping_uses_the_norm_of_the_whole_model(rank, size):
    same, apart = [own_batch(0)] * 2, [own_batch(0), own_batch(1)]
    for keys, batches in (
        (PIPELINE, same),
        ({"tensor_parallel_degree": 2, "prescaled_batch": True}, same),
        ({"fp16": True}, apart),
        ({"shard_optimizer_state": True}, apart),
        ({"fp16": True, "shard_optimizer_state": True}, apart),
        ({**SHARDS, "sdp_gradient_clipping": 1e9}, apart),
        ({}, apart),
    ):
        expected = norm_alone(batches)
        updates = []
        for by_early_name in (True, False):
            start(ddp=True, microbatches=2, **keys)
            with smp.tensor_parallelism(enabled="tensor_parallel_degree" in keys):
                module = make(Plain)
            model = smp.DistributedModel(module)
            model.load_state_dict(make(Plain).state_dict())
            optimizer = optimizer_over(model, static_loss_scale=128.0)
            optimizer.zero_grad()
            train_step(model, *batches[rank])
            before = model.state_dict()
            before = {name: value.float().clone() for name, value in before.items()}
            clip = EARLY.clip if by_early_name else nn.utils.clip_grad_norm_
            norm = clip(model.parameters(), expected / 4)
            optimizer.step()
            assert abs(norm.item() - expected) < 2e-3 * expected, (keys, norm, expected)
            state = model.state_dict()
            moved = torch.cat([(state[name].float() - before[name]).flatten() for name in before])
            assert abs(moved.norm().item() - 0.1 * expected / 4) < 0.05 * expected / 4, (keys, moved.norm(), expected)
            updates.append(moved)
        assert torch.equal(*updates), keys


def test_clipping_of_some_parameters(rank, size):
    model, _ = wrapped(**PIPELINE)
    train_step(model, *batch_of(SharedPerceptron, 0))
    some = list(model.parameters())[:2]
    norm = nn.utils.clip_grad_norm_(some, 1e9)
    both = smp.allgather(norm, smp.WORLD)
    squares = [sum(one.grad.pow(2).sum() for one in some if one.grad is not None)]
    expected = sum(torch.as_tensor(one) for one in smp.allgather(squares[0], smp.WORLD)).sqrt()
    assert both[0] == both[1]
    torch.testing.assert_close(both[0], expected)
    assert "norm_type is inf" in str(failure_of(lambda: nn.utils.clip_grad_norm_(some, 1.0, norm_type=float("inf"))))
    nn.utils.clip_grad_value_(model.parameters(), 1e-4)
    assert all(one.grad.abs().max() <= 1e-4 for one in model.local_parameters() if one.grad is not None)
    alone = nn.Linear(2, 2)
    alone(torch.ones(1, 2)).sum().backward()
    # a model that SMP does not know
    assert nn.utils.clip_grad_norm_(alone.parameters(), 1.0, norm_type=float("inf")) == 1.0
    for keys in (SHARDS, {"shard_optimizer_state": True}):
        model, _ = wrapped(**keys)
        train_step(model, *own_batch(rank))
        failure = failure_of(lambda model=model: nn.utils.clip_grad_norm_(list(model.parameters())[:1], 1.0))
        assert "must be clipped together; pass model.parameters()" in str(failure), failure
        failure = failure_of(lambda model=model: nn.utils.clip_grad_value_(model.parameters(), 1.0))
        assert "optimizer.clip_master_grads(max_norm)" in str(failure)


def test_torchs_own_scaler_is_refused_where_ranks_would_not_agree(rank, size):
    for keys, words in (
        (PIPELINE, "smp.amp.GradScaler()"),
        ({"fp16": True}, "leave it out"),
        ({"shard_optimizer_state": True}, "smp.amp.GradScaler()"),
    ):
        model, optimizer = wrapped(**keys)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        train_step(model, *own_batch(0))
        for call in (scaler.step, scaler.unscale_):
            assert words in str(failure_of(partial(call, optimizer))), keys
        torch.amp.GradScaler("cpu", enabled=False).step(optimizer)
    alone = nn.Linear(2, 2)
    other = torch.optim.SGD(alone.parameters(), lr=0.1)
    scaler.scale(alone(torch.ones(1, 2)).sum()).backward()
    scaler.step(other)  # an optimizer that SMP does not know


def test_two_optimizers_are_refused_where_losses_are_scaled_for_one(rank, size):
    start(ddp=True, fp16=True)
    model = smp.DistributedModel(make(Plain))
    head = set(model.get_module().head.parameters())
    first = smp.DistributedOptimizer(torch.optim.SGD([one for one in model.parameters() if one not in head], lr=0.1))
    second = smp.DistributedOptimizer(torch.optim.SGD(head, lr=0.1))
    train_step(model, *own_batch(rank))
    assert "one optimizer of all parameters, in groups" in str(failure_of(first.step))
    second.step()
    failure = failure_of(lambda: smp.save_checkpoint("nowhere", "one", model=model, optimizer=first))
    assert "and not the DistributedOptimizer that was made last" in str(failure)


def test_state_dict_of_the_inner_model_is_refused_where_it_is_only_a_part(rank, size):
    for keys in (PIPELINE, SHARDS):
        model, _ = wrapped(**keys)
        inner = model.get_module()
        if keys is PIPELINE:
            inner.state_dict()  # every rank still has the whole model
        train_step(model, *own_batch(0))
        for one in (inner, model.module):
            assert "call state_dict() of the DistributedModel" in str(failure_of(one.state_dict)), keys
        whole = model.state_dict()
        assert set(whole) == set(make(SharedPerceptron).state_dict())
        model.load_state_dict(whole)
        model.local_state_dict()
        if keys is PIPELINE:
            state = model.cpu().get_module().state_dict()
            assert all(torch.equal(state[name], value) for name, value in whole.items())


def test_values_that_a_script_writes_into_half_precision_parameters_are_kept(rank, size):
    for keys in ({"fp16": True}, {"bf16": True}, {"fp16": True, "shard_optimizer_state": True}):
        model, optimizer = wrapped(**keys)
        for _ in range(2):
            optimizer.zero_grad()
            train_step(model, *own_batch(rank))
            optimizer.step()
            with torch.no_grad():
                for one in model.parameters():
                    one.fill_(0.5)
            optimizer.param_groups[0]["lr"] = 0.0
        optimizer.zero_grad()
        train_step(model, *own_batch(rank))
        optimizer.step()
        assert all(torch.equal(one, torch.full_like(one, 0.5)) for one in model.parameters()), keys


def test_errors_of_loading_say_how_the_checkpoint_was_saved(rank, size):
    model, optimizer = wrapped(**PIPELINE)
    train_step(model, *own_batch(0))
    folder = shared_folder(rank)
    smp.save({"rank": rank}, str(folder / "part"), partial=True)
    if rank == 0:
        smp.save({}, str(folder / "whole"), partial=False)
    smp.barrier()
    assert "load it with partial=True" in str(failure_of_file(smp.load, str(folder / "part"), partial=False))
    assert "load it with partial=False" in str(failure_of_file(smp.load, str(folder / "whole"), partial=True))
    smp.barrier()
    at = str(folder / "checkpoints")
    resume = partial(failure_of_file, smp.resume_from_checkpoint, at)
    assert "no checkpoint was finished there" in str(resume())
    smp.save_checkpoint(at, "one", partial=True, model=model, optimizer=optimizer)
    smp.save_checkpoint(at, "two", partial=False, model=model)
    assert "there are tags one with partial=True and two with partial=False" in str(resume("one", partial=False))
    assert "there are tags one with partial=True and two with partial=False" in str(resume("two", partial=True))
    smp.save_checkpoint(at, "three", model=model)
    logged = unittest.TestCase().assertLogs if rank == 0 else unittest.TestCase().assertNoLogs
    for tag, is_partial, words in (
        ("three", True, "saved without optimizer="),
        ("two", False, "holds the model alone"),
    ):
        with logged("clary.smp", "WARNING") as told:
            smp.resume_from_checkpoint(at, tag, partial=is_partial)
        assert rank == 1 or words in told.output[0], told.output
    with logged("clary.smp", "WARNING") as told:
        smp.save_checkpoint(at, "four", partial=False, model=model, optimizer=optimizer)
    assert rank == 1 or "holds the model alone" in told.output[0]


def failure_of_file(call, *arguments, **keywords):
    try:
        call(*arguments, **keywords)
    except FileNotFoundError as error:
        return error
    return None


def test_partition_settings_without_effect_are_logged(rank, size):
    start(microbatches=2, **PIPELINE)
    module = make(Plain)
    smp.set_partition(module.head, 0)
    model = smp.DistributedModel(module)
    logger = logging.getLogger("clary.smp")
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    train_step(model, *own_batch(0))
    logger.removeHandler(handler)
    assert [line for line in lines if "no effect on head" in line] == lines[: rank == 0]


def test_a_collective_call_of_one_rank_alone_is_an_error(rank, size):
    model, _ = wrapped(**PIPELINE)
    train_step(model, *own_batch(0))
    if rank == 0:
        model._runtime.groups._timeout_s = 20
        failure = failure_of(model.state_dict)
        assert "must be called by all of them, not by rank 0 alone" in str(failure), failure
    else:
        assert "heard nothing" in str(failure_of(partial(train_step, model, *own_batch(0))))
