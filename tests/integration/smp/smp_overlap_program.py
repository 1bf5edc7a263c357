"""Averaging of gradients during backward passes, hooks, replicas without a backward pass, and buffers of replicas.

Run by test_smp_overlap.

On 2 ranks each replica is one rank, on 4 ranks each replica is a pipeline of two.
"""

import logging

import smdistributed.modelparallel.torch as smp
import torch
from smdistributed.modelparallel.torch.exceptions import ParallelError
from smp_core_program import start, train_step
from smp_models import Convolutions, SharedPerceptron, Winding, batch_of, loss_of, make
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

SMALL = 0.0004  # MiB: a model of a few hundred parameters has several buckets
NUM_STEPS = 4


class Looping(nn.Module):
    """Calls one layer a varying number of times, from 0 to 3: the count of an earlier step never predicts the next."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.block = nn.Linear(16, 16)
        self.last = nn.Linear(16, 4)
        self.num_loops = 1

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(int(x[0, 0].abs() * 4) % 4):
            hidden = hidden + torch.tanh(self.block(hidden))
        return self.last(hidden)


def failure_of(call):
    """Return the exception of a call, or None if it raises nothing."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return error
    return None


def config(size, **more):
    """Return a configuration: 1 rank a replica on 2 ranks, pipelines of 2 on 4; sums in one order, to compare bits."""
    return {"ddp": True, "partitions": size // 2, "microbatches": 4, "active_microbatches": 1, **more}


def own_batch(kind, number, length=16):
    inputs, targets = batch_of(kind, number, length)
    share = len(inputs) // smp.dp_size()
    own = slice(smp.dp_rank() * share, (smp.dp_rank() + 1) * share)
    return inputs[own], targets[own]


def wrapped(kind, **options):
    model = smp.DistributedModel(make(kind), bucket_cap_mb=SMALL, **options)
    return model, smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.05))


def watch(model):
    """Return a list that receives, at every reduction, the number of buckets already sent and of all buckets."""
    seen = []
    reducer = model._reducer
    original = reducer.reduce

    def reduce():
        seen.append((len(reducer._sent), len(reducer._buckets)))
        original()

    reducer.reduce = reduce
    return seen


def train(kind, keys, *, passes=1, prepare=lambda model: None, **options):
    """Return the state after some steps, and the findings of `watch` after the first."""
    start(**keys)
    model, optimizer = wrapped(kind, backward_passes_per_step=passes, **options)
    prepare(model)
    seen = None
    for number in range(NUM_STEPS):
        optimizer.zero_grad()
        for part in range(passes):
            train_step(model, *own_batch(kind, number * passes + part))
        optimizer.step()
        seen = watch(model) if seen is None else seen
    return {name: one.detach().clone() for name, one in model.local_named_parameters()}, seen


def assert_same(one, two):
    assert set(one) == set(two)
    for name, value in one.items():
        assert torch.equal(value, two[name]), name


def assert_alike_everywhere(model):
    for name, value in model.local_named_parameters():
        first, *others = smp.allgather(value.detach(), smp.DP_GROUP)
        assert all(torch.equal(first, other) for other in others), name


def test_gradients_sent_early_equal_gradients_sent_late_bit_for_bit(rank, size):
    for kind in (SharedPerceptron, Winding):
        for passes in (1, 2):
            early, seen = train(kind, config(size), passes=passes, overlapping_allreduce=True)
            late, none = train(kind, config(size), passes=passes, overlapping_allreduce=False)
            assert_same(early, late)
            assert all(sent == 0 for sent, _ in none), none
            assert all(buckets > 1 for _, buckets in seen), seen
            if kind is SharedPerceptron:  # which takes the same path every time
                assert all(sent == buckets for sent, buckets in seen), seen


def test_gradients_computed_after_their_bucket_was_sent_are_not_lost(rank, size):
    resent = []

    def count(model):
        if model._reducer is None:
            return model.register_post_partition_hook(lambda model, _: count(model))
        original = model._reducer._close
        model._reducer._close = lambda late, **more: resent.append(len(late)) or original(late, **more)
        return None

    early, _ = train(Looping, config(size), prepare=count)
    late, _ = train(Looping, config(size), overlapping_allreduce=False)
    assert_same(early, late)
    found = smp.allgather(sum(resent), smp.WORLD)
    assert sum(found) > 0, "the model was to call its layer more often than before, while buckets were on their way"


def averaging(hook):
    """Return a hook that averages over microbatches, as SMP's documentation asks of hooks, and then calls another."""

    def averaged(state, bucket):
        bucket.buffer().div_(smp.state.cfg.microbatches)
        return hook(state, bucket)

    return averaged


def test_ddp_comm_hooks_replace_the_sum(rank, size):
    calls = []

    @averaging
    def counted(state, bucket):
        calls.append((bucket.index(), bucket.is_last(), [one.shape for one in bucket.gradients()]))
        assert sum(one.numel() for one in bucket.parameters()) == bucket.buffer().numel()
        return default_hooks.allreduce_hook(state, bucket)

    plain, _ = train(SharedPerceptron, config(size))
    for overlaps in (True, False):
        hooked, _ = train(
            SharedPerceptron,
            config(size),
            overlapping_allreduce=overlaps,
            prepare=lambda model: model.register_comm_hook(smp.get_dp_process_group(), counted),
        )
        assert_same(plain, hooked)
    indices = [index for index, _, _ in calls]
    num_buckets = max(indices) + 1
    assert indices == list(range(num_buckets)) * (2 * NUM_STEPS), indices
    assert all(is_last == (index == num_buckets - 1) for index, is_last, _ in calls)
    rough, _ = train(
        SharedPerceptron,
        config(size),
        prepare=lambda model: model._register_comm_hook(
            smp.get_dp_process_group(), averaging(default_hooks.fp16_compress_hook)
        ),
    )
    assert any(not torch.equal(value, plain[name]) for name, value in rough.items())
    for name, value in rough.items():
        torch.testing.assert_close(value, plain[name], atol=0.02, rtol=0.1)


def test_hooks_get_sums_over_microbatches_with_one_replica_too(rank, size):
    """A pipeline over all ranks has one replica: torch's DDP calls the hook of one process, too."""
    keys = config(size, partitions=size)
    plain, _ = train(SharedPerceptron, keys)
    calls = []

    @averaging
    def counted(state, bucket):
        calls.append(bucket.index())
        return default_hooks.allreduce_hook(state, bucket)

    hooked, _ = train(
        SharedPerceptron, keys, prepare=lambda model: model.register_comm_hook(smp.get_dp_process_group(), counted)
    )
    assert_same(plain, hooked)
    assert len(calls) >= NUM_STEPS or not plain, calls


@smp.step
def torchs_step(model, inputs, targets):
    loss = loss_of(model(inputs), targets)
    loss.backward()
    return loss


def test_hooks_get_sums_of_gradients_that_torch_computes(rank, size):
    if size > 2:  # a pipeline refuses loss.backward()
        return
    given = {}

    def note(state, bucket):
        given[bucket.index()] = bucket.buffer().clone()
        return default_hooks.allreduce_hook(state, bucket)

    found = []
    for step in (train_step, torchs_step):
        start(**config(size))
        model, _ = wrapped(SharedPerceptron)
        model.register_comm_hook(smp.get_dp_process_group(), note)
        step(model, *own_batch(SharedPerceptron, 0))
        found.append(dict(given))
    assert found[0].keys() == found[1].keys()
    for index, one in found[0].items():
        torch.testing.assert_close(one, found[1][index])
    alone = make(SharedPerceptron)
    inputs, targets = own_batch(SharedPerceptron, 0)
    for part in range(4):
        loss_of(alone(inputs[part * 2 : part * 2 + 2]), targets[part * 2 : part * 2 + 2]).backward()
    total = sum(float(one.grad.sum()) for one in alone.parameters())
    assert abs(sum(float(one.sum()) for one in found[0].values()) - total) < 1e-4, (found, total)


def test_hooks_are_refused_where_they_would_never_be_called(rank, size):
    start(**config(size))
    model, _ = wrapped(SharedPerceptron)
    hook = default_hooks.allreduce_hook
    model.register_comm_hook(smp.get_dp_process_group(), hook)
    assert "hook already" in str(failure_of(lambda: model.register_comm_hook(None, hook)))
    for key in ({"shard_optimizer_state": True}, {"sharded_data_parallel_degree": 2, "partitions": 1}):
        start(**config(size, **key))
        model, _ = wrapped(SharedPerceptron)
        for call in (lambda model=model: model.register_comm_hook(None, hook), lambda model=model: model.join()):
            error = failure_of(call)
            assert isinstance(error, ValueError), repr(error)
            assert "leave it out" in str(error)
        smp.barrier()


def test_a_hook_that_returns_too_few_elements_is_an_error(rank, size):
    def short(state, bucket):
        future = torch.futures.Future()
        future.set_result(bucket.buffer()[:1])
        return future

    start(**config(size))
    model, _ = wrapped(SharedPerceptron)
    model.register_comm_hook(None, short)
    error = failure_of(lambda: train_step(model, *own_batch(SharedPerceptron, 0)))
    assert isinstance(error, ValueError), repr(error)
    assert "gave 1 elements for a bucket of" in str(error)
    start(**config(size))
    model, _ = wrapped(SharedPerceptron)
    model.register_comm_hook(None, lambda state, bucket: None)
    error = failure_of(lambda: train_step(model, *own_batch(SharedPerceptron, 0)))
    assert isinstance(error, TypeError), repr(error)


@smp.step
def evaluate(model, inputs):
    with torch.no_grad():
        return model(inputs)


def test_a_replica_without_a_backward_pass_counts_as_zero(rank, size):
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("clary.train.parallel.reduce.reducer")
    logger.addHandler(handler)
    for overlaps, is_spread in ((True, False), (False, False), (True, True)):
        start(**config(size, shard_optimizer_state=is_spread))
        model, optimizer = wrapped(SharedPerceptron, overlapping_allreduce=overlaps)
        leaves_out = smp.dp_rank() == 1
        alone = make(SharedPerceptron)
        stepping = torch.optim.AdamW(alone.parameters(), lr=0.05)
        for number in range(NUM_STEPS):
            inputs, targets = own_batch(SharedPerceptron, number)
            optimizer.zero_grad()
            if leaves_out and number in (1, 2):
                evaluate(model, inputs)
            else:
                train_step(model, inputs, targets)
            optimizer.step()
            stepping.zero_grad()
            shares = [part.chunk(smp.dp_size()) for part in batch_of(SharedPerceptron, number, 16)]
            trained = [0] if number in (1, 2) else range(smp.dp_size())
            sum(loss_of(alone(shares[0][one]), shares[1][one]) / smp.dp_size() for one in trained).backward()
            stepping.step()
        assert_alike_everywhere(model)
        for name, value in model.local_named_parameters():
            torch.testing.assert_close(value, dict(alone.named_parameters())[name], atol=2e-5, rtol=1e-4, msg=name)
    logger.removeHandler(handler)
    assert any("had no backward pass" in line for line in lines), lines


def test_a_step_without_a_backward_pass_on_any_replica_changes_nothing(rank, size):
    start(**config(size))
    model, optimizer = wrapped(SharedPerceptron)
    train_step(model, *own_batch(SharedPerceptron, 0))
    optimizer.step()
    optimizer.zero_grad()
    before = [one.detach().clone() for one in model.local_parameters()]
    evaluate(model, own_batch(SharedPerceptron, 0)[0])
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.local_parameters(), strict=True))
    train_step(model, *own_batch(SharedPerceptron, 1))
    optimizer.step()
    assert_alike_everywhere(model)


def test_a_single_replica_may_evaluate(rank, size):
    start(**config(size))
    model, optimizer = wrapped(SharedPerceptron)
    for number in range(3):
        train_step(model, *own_batch(SharedPerceptron, number))
        if smp.dp_rank() == 0:
            evaluate(model, own_batch(SharedPerceptron, 0)[0])
        optimizer.step()
    assert_alike_everywhere(model)


def test_replicas_at_different_steps_fail_at_once(rank, size):
    start(**config(size))
    model, optimizer = wrapped(SharedPerceptron)
    train_step(model, *own_batch(SharedPerceptron, 0))
    if smp.dp_rank() == 1:
        optimizer.step()  # the other replica does not step
    error = failure_of(lambda: train_step(model, *own_batch(SharedPerceptron, 1)))
    assert isinstance(error, ParallelError), repr(error)
    for words in (f"rank {smp.get_dp_group()[0]} has taken 0", f"rank {smp.get_dp_group()[1]} has taken 1"):
        assert words in str(error), str(error)


def running(model):
    """Return running statistics of every rank that has some, by rank."""
    own = {name: one.clone() for name, one in model.local_named_buffers() if "running" in name or "batches" in name}
    return [one for one in smp.allgather(own, smp.WORLD) if one]


def test_replicas_take_the_buffers_of_the_first_one(rank, size):
    """Each replica sees batches of its own, so running statistics differ unless they are shared."""
    half = {"fp16": True} if size == 2 else {"bf16": True}
    for keys in ({}, {"shard_optimizer_state": True}, half, {"sharded_data_parallel_degree": 2}):
        if size > 2 and "sharded_data_parallel_degree" in keys:
            continue  # not with pipelines
        found = []
        for shares in (True, False):
            start(**config(size, **keys))
            model, optimizer = wrapped(Convolutions, broadcast_buffers=shares)
            for number in range(2):
                optimizer.zero_grad()
                train_step(model, *own_batch(Convolutions, number))
                optimizer.step()
            first, second = running(model)
            assert len(first) == 3, first
            is_alike = [torch.equal(first[name], second[name]) for name in first if "running" in name]
            assert is_alike == [shares, shares], (keys, shares, is_alike)
            found.append(first)
        assert all(int(one["features.1.num_batches_tracked"]) == 8 for one in found), found


def test_a_replica_without_a_backward_pass_takes_the_buffers_too(rank, size):
    start(**config(size))
    model, optimizer = wrapped(Convolutions)
    for number in range(2):
        optimizer.zero_grad()
        inputs, targets = own_batch(Convolutions, number)
        if smp.dp_rank() == 0:
            evaluate(model, inputs)
        else:
            train_step(model, inputs, targets)
        optimizer.step()
        first, second = running(model)
        assert all(torch.equal(first[name], second[name]) for name in first), number


def test_replicas_with_buffers_at_different_steps_fail_at_once(rank, size):
    start(**config(size))
    model, optimizer = wrapped(Convolutions)
    train_step(model, *own_batch(Convolutions, 0))
    if smp.dp_rank() == 0:
        optimizer.step()
    error = failure_of(lambda: train_step(model, *own_batch(Convolutions, 1)))
    assert isinstance(error, ParallelError), repr(error)


def test_buffers_are_shared_without_smp_step_and_not_in_join(rank, size):
    if size > 2:
        return  # a model in a pipeline is only called in a step
    start(**config(size))
    model, optimizer = wrapped(Convolutions)
    for number in range(2):
        inputs, targets = own_batch(Convolutions, number)
        optimizer.zero_grad()
        loss_of(model(inputs), targets).backward()
        optimizer.step()
        first, second = running(model)
        assert all(torch.equal(first[name], second[name]) for name in first), number
    with model.join():
        for number in range(1 + rank):
            optimizer.zero_grad()
            train_step(model, *own_batch(Convolutions, number))
            optimizer.step()
    first, second = running(model)
    assert all(torch.equal(first[name], second[name]) for name in first)
