"""Overlap of computing and communicating, on every rank. Functions `test_...(rank, size)`; see `torch_ranks`."""

import copy
import importlib
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from clary.train.collective.adapters.torch.compression import compress
from clary.train.collective.adapters.torch.local_update import LocalUpdates
from clary.train.collective.adapters.torch.overlap import MEASURED_STEPS, SETTLING_STEPS, tune_buckets
from clary.train.collective.adapters.torch.prefetch import gather_ahead

COMPAT = Path(__file__).resolve().parents[3] / "src/clary/compat"
_WIDTH, _BATCH = 48, 4
_PEER_LIMIT_S = 10
_STEPS = SETTLING_STEPS + MEASURED_STEPS + 4


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(8))

    def forward(self, features):
        for layer in self.layers:
            features = torch.tanh(layer(features))
        return features


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(context, features, seconds):
        context.seconds = seconds
        return features.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(context.seconds)
        return gradient, None


def model():
    torch.manual_seed(4)
    return Deep()


def train(wrapped, rank, steps=_STEPS):
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        optimizer.zero_grad()
        wrapped(torch.randn(_BATCH, _WIDTH, generator=generator)).pow(2).mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in wrapped.parameters()]


def bucket_sizes(wrapped):
    text = wrapped._get_ddp_logging_data().get("rebuilt_bucket_sizes", "")
    return [int(size) for size in text.split(",") if size.strip()]


def test_tuned_buckets_have_the_planned_sizes_and_train_the_same(rank, size):
    results = []
    for tuned in (False, True):
        wrapped = DistributedDataParallel(model())
        tuning = tune_buckets(wrapped) if tuned else None
        results.append(train(wrapped, rank))
        if tuning is not None and size > 1:
            assert tuning.caps is not None, tuning.outcome
            assert "buckets" in tuning.outcome
            assert bucket_sizes(wrapped) == tuning.caps or len(tuning.caps) == 2, (bucket_sizes(wrapped), tuning.caps)
            everybody = [None] * size
            dist.all_gather_object(everybody, tuning.caps)
            assert everybody == [tuning.caps] * size, everybody
    for plain, tuned in zip(*results, strict=True):
        if size <= 2:
            assert torch.equal(plain, tuned)
        else:
            torch.testing.assert_close(plain, tuned)


def test_tuning_works_with_bucket_views_static_graphs_and_accumulation(rank, size):
    for options in ({"gradient_as_bucket_view": True}, {"static_graph": True}):
        reference = train(DistributedDataParallel(model(), **options), rank)
        wrapped = DistributedDataParallel(model(), **options)
        tuning = tune_buckets(wrapped)
        for ours, theirs in zip(train(wrapped, rank), reference, strict=True):
            torch.testing.assert_close(ours, theirs)
        assert size == 1 or tuning.caps is not None, tuning.outcome
    wrapped = DistributedDataParallel(model())
    tuning = tune_buckets(wrapped)
    for step in range(2 * _STEPS):
        wrapped.require_backward_grad_sync = step % 2 == 1
        wrapped(torch.ones(_BATCH, _WIDTH)).sum().backward()
        assert tuning.caps is None or step // 2 >= SETTLING_STEPS + MEASURED_STEPS
    assert size == 1 or tuning.caps is not None, tuning.outcome


def test_the_deprecated_ddp_is_tuned_unless_a_bucket_size_is_given(rank, size):
    if str(COMPAT) not in sys.path:
        sys.path.append(str(COMPAT))  # like the agent, which sets PYTHONPATH in a job
    deprecated = importlib.import_module("smdistributed.dataparallel.torch.parallel.distributed")
    wrapped = deprecated.DistributedDataParallel(model())
    given = deprecated.DistributedDataParallel(model(), bucket_cap_mb=1)
    before = wrapped.bucket_bytes_cap
    for one in (wrapped, given):
        train(one, rank)
    assert given.bucket_bytes_cap == 1 << 20
    assert size == 1 or wrapped.bucket_bytes_cap < before == 25 << 20
    for ours, theirs in zip(wrapped.parameters(), given.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


class Unused(torch.nn.Module):
    """Has a parameter that takes no part."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.used(x)


def test_the_deprecated_ddp_takes_the_arguments_of_torchs(rank, size):
    if str(COMPAT) not in sys.path:
        sys.path.append(str(COMPAT))
    deprecated = importlib.import_module("smdistributed.dataparallel.torch.parallel.distributed")
    wrapped = deprecated.DistributedDataParallel(Unused(), find_unused_parameters=True, gradient_as_bucket_view=True)
    assert wrapped.find_unused_parameters
    assert wrapped.gradient_as_bucket_view
    for _ in range(3):
        wrapped(torch.full((1, 2), float(rank))).sum().backward()
    assert wrapped.module.used.weight.grad.eq(3 * (size - 1) / 2).all()
    deprecated.DistributedDataParallel(Unused(), gradient_accumulation_steps=1)
    for options, words in (
        ({"gradient_accumulation_steps": 4}, "no_sync"),
        ({"find_unused": True}, "find_unused"),
    ):
        failure = None
        try:
            deprecated.DistributedDataParallel(Unused(), **options)
        except (TypeError, ValueError) as error:
            failure = error
        assert words in str(failure), failure


def test_the_outcome_gives_the_reason_why_a_model_is_not_tuned(rank, size):
    if size == 1:
        assert "one rank" in tune_buckets(DistributedDataParallel(model())).outcome
        return
    hooked = DistributedDataParallel(model())
    hooked.register_comm_hook(None, default_hooks.allreduce_hook)
    assert "hook" in tune_buckets(hooked).outcome
    unused = DistributedDataParallel(model(), find_unused_parameters=True)
    assert "find_unused_parameters" in tune_buckets(unused).outcome
    later = DistributedDataParallel(model())
    tuning = tune_buckets(later)
    later.register_comm_hook(None, default_hooks.allreduce_hook)
    train(later, rank)
    assert tuning.caps is None
    assert "hook" in tuning.outcome


def test_gradients_are_reduced_during_the_backward_pass(rank, size):
    """The first bucket is reduced before the last gradient is computed, without a wait for it."""
    if size == 1:
        return
    first, last = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = first, last

        def forward(self, features):
            return self.last(Slow.apply(self.first(features), 0.3))

    wrapped = DistributedDataParallel(Model(), bucket_cap_mb=0.001)
    ended = []

    def hook(state, bucket):
        asked_s = time.perf_counter()
        future = dist.all_reduce(bucket.buffer().div_(size), async_op=True).get_future()

        def note(value):
            ended.append((asked_s, time.perf_counter()))
            return value.value()[0]

        return future.then(note)

    wrapped.register_comm_hook(None, hook)
    for _ in range(2):  # torch rebuilds buckets after the first step
        ended.clear()
        wrapped(torch.ones(_BATCH, _WIDTH)).sum().backward()
    # The last layer's buckets ended during the pause before the reduction of the first layer's was requested.
    assert len(ended) >= 2, ended
    assert ended[0][1] < ended[-1][0] - 0.1, ended


def test_sharded_layers_are_prefetched(rank, size):
    """The next layer's AllGather is in flight while a layer computes."""
    if size == 1:
        return
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    num_layers = 6
    asked, seen = [], []
    store = dist.distributed_c10d._get_default_store()

    class Sleep(nn.Module):
        """Computes on rank 0, while the gather of the next layer waits for the other ranks.

        They stay in the layer before until rank 0 has looked at the gather, so that it cannot end too early. The first
        layer has none before it, and the last has no gather after it.
        """

        def __init__(self, number):
            super().__init__()
            self.number = number

        def forward(self, features):
            if rank == 0 and 0 < self.number < num_layers - 1:
                time.sleep(0.05)  # traces show this time in both lanes
                seen.append((self.number, len(asked), asked[-1].is_completed()))
                store.set(f"seen in {self.number}", "")
            elif rank != 0 and self.number + 1 < num_layers - 1:
                store.wait([f"seen in {self.number + 1}"], timedelta(seconds=_PEER_LIMIT_S))
            return features

    sharded = nn.Sequential(*(nn.Sequential(Sleep(number), nn.Linear(256, 256)) for number in range(num_layers)))
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    for layer in sharded:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    gather_ahead(sharded, list(sharded))
    group = dist.group.WORLD
    plain = group.all_gather_single

    def noting(output, source, opts=None):
        asked.append(plain(output, source, opts))
        return asked[-1]

    group.all_gather_single = group._allgather_base = noting
    with torch.no_grad():
        sharded(torch.ones(2, 256))
    assert len(asked) == num_layers
    assert rank != 0 or seen == [(number, number + 2, False) for number in range(1, num_layers - 1)], seen


def test_prefetched_layers_train_the_same(rank, size):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    results = []
    for ahead in (False, True):
        sharded = model()
        mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
        for layer in sharded.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        if ahead:
            gather_ahead(sharded, list(sharded.layers))
        train(sharded, rank, 4)
        results.append([parameter.full_tensor().detach() for parameter in sharded.parameters()])
    for plain, early in zip(*results, strict=True):
        assert torch.equal(plain, early)


def test_compressed_gradients_are_close_and_equal_on_all_ranks(rank, size):
    reference = train(DistributedDataParallel(model()), rank, 6)
    for how, tolerance in (("fp16", 1e-3), ("bf16", 1e-2), ("powersgd", 0.1)):
        wrapped = DistributedDataParallel(model(), bucket_cap_mb=0.01)
        compress(wrapped, how)
        for ours, theirs in zip(train(wrapped, rank, 6), reference, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
            assert is_shared(ours, size), how
    hooked = DistributedDataParallel(model())
    compress(hooked, "fp16")
    assert "hook is registered" in refusal(hooked, "powersgd")
    assert "expected one of fp16, bf16, powersgd" in refusal(DistributedDataParallel(model()), "zip")


def refusal(wrapped, how):
    try:
        compress(wrapped, how)
    except ValueError as error:
        return str(error)
    raise AssertionError(f"{how} was taken")


def is_shared(tensor, size):
    everybody = [torch.empty_like(tensor) for _ in range(size)]
    dist.all_gather(everybody, tensor)
    return all(torch.equal(tensor, other) for other in everybody)


def test_local_updates_synchronise_only_once_per_period(rank, size):
    torch.manual_seed(rank)
    local = Deep()
    updates = LocalUpdates(local, period=3)
    optimizer = torch.optim.SGD(local.parameters(), lr=0.05)
    weight = local.layers[0].weight
    assert is_shared(weight.detach(), size)
    for step in range(7):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        optimizer.zero_grad()
        local(torch.randn(_BATCH, _WIDTH, generator=generator)).pow(2).mean().backward()
        optimizer.step()
        assert updates.step() == (step % 3 == 2)
        assert is_shared(weight.detach(), size) == (size == 1 or step % 3 == 2), step
    updates.agree()
    assert is_shared(weight.detach(), size)


def test_local_updates_without_momentum_are_local_sgd(rank, size):
    layer = nn.Linear(2, 2)
    updates = LocalUpdates(layer, period=1, outer_lr=1.0, outer_momentum=0.0)
    with torch.no_grad():
        layer.weight.fill_(float(rank))
    assert updates.step()
    torch.testing.assert_close(layer.weight.detach(), torch.full((2, 2), (size - 1) / 2))


def test_local_updates_resume_from_a_checkpoint(rank, size):
    def run(updates, layer, steps):
        for step in steps:
            with torch.no_grad():
                layer.weight.add_(float(rank + step))
            updates.step()

    whole, resumed = nn.Linear(2, 2), nn.Linear(2, 2)
    updates = LocalUpdates(whole, period=2)
    run(updates, whole, range(4))
    state, weights = copy.deepcopy((updates.state_dict(), whole.state_dict()))
    run(updates, whole, range(4, 8))
    resumed.load_state_dict(weights)
    updates = LocalUpdates(resumed, period=2)
    updates.load_state_dict(state)
    run(updates, resumed, range(4, 8))
    assert torch.equal(whole.weight, resumed.weight)
