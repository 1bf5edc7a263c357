"""Training over backend smddp, each kind compared with the same training over gloo or in one process."""

import contextlib
import copy
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_STEPS = 3
_BATCH = 4
_WIDTH = 32


class Unequal(nn.Module):
    """Layers of different sizes; with `skip` one of them gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(_WIDTH, 64)
        self.second = nn.Linear(64, 64)
        self.norm = nn.BatchNorm1d(64)
        self.unused = nn.Linear(64, 64)
        self.last = nn.Linear(64, 3)

    def forward(self, features, skip=True):
        hidden = torch.relu(self.norm(self.second(torch.relu(self.first(features)))))
        return self.last(hidden if skip else self.unused(hidden))


def model():
    torch.manual_seed(5)
    return Unequal()


def batch(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(_BATCH, _WIDTH, generator=generator), torch.randn(_BATCH, 3, generator=generator)


def train(wrapped, rank, *, skip=False, steps=_STEPS, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        features, wanted = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.mse_loss(wrapped(features, skip), wanted).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in wrapped.parameters()]


def assert_same(ours, theirs, *, exactly=True):
    assert len(ours) == len(theirs) > 0
    for our, their in zip(ours, theirs, strict=True):
        if exactly:
            assert torch.equal(our, their), (our - their).abs().max()
        else:
            torch.testing.assert_close(our, their, rtol=1e-2, atol=2e-3)  # 16-bit hooks round the sums


def gloo():
    return dist.new_group(backend="gloo")


def exactly(size):
    """Return whether results must be bit-identical: sums of more than two numbers have another order in gloo."""
    return size <= 2


def compare_ddp(rank, size, *, skip=False, hook=None, **options):
    results = []
    for group in (dist.group.WORLD, gloo()):
        wrapped = DistributedDataParallel(model(), process_group=group, **options)
        if hook is not None:
            hook(wrapped, group)
        results.append(train(wrapped, rank, skip=skip))
    assert_same(*results, exactly=exactly(size))


def test_ddp_trains_the_same_as_over_gloo(rank, size):
    compare_ddp(rank, size)


def test_ddp_with_many_small_buckets(rank, size):
    compare_ddp(rank, size, bucket_cap_mb=0.001)


def test_ddp_with_gradients_as_views_of_buckets(rank, size):
    compare_ddp(rank, size, gradient_as_bucket_view=True)


def test_ddp_with_unused_parameters(rank, size):
    compare_ddp(rank, size, skip=True, find_unused_parameters=True)


def test_ddp_with_a_static_graph(rank, size):
    compare_ddp(rank, size, static_graph=True)


def test_ddp_without_broadcast_buffers(rank, size):
    compare_ddp(rank, size, broadcast_buffers=False)


def test_ddp_accumulates_with_no_sync(rank, size):
    results = []
    for group in (dist.group.WORLD, gloo()):
        wrapped = DistributedDataParallel(model(), process_group=group)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        for step in range(6):
            features, wanted = batch(rank, step)
            with wrapped.no_sync() if step % 3 != 2 else contextlib.nullcontext():
                nn.functional.mse_loss(wrapped(features, False), wanted).backward()
            if step % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
        results.append([parameter.detach().clone() for parameter in wrapped.parameters()])
    assert_same(*results, exactly=exactly(size))


def test_ddp_joins_ranks_with_uneven_inputs(rank, size):
    results = []
    for group in (dist.group.WORLD, gloo()):
        wrapped = DistributedDataParallel(nn.Linear(_WIDTH, 3), process_group=group)
        nn.init.constant_(wrapped.module.weight, 0.1)
        nn.init.constant_(wrapped.module.bias, 0.0)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        with wrapped.join():
            for step in range(2 + 2 * rank):
                features, wanted = batch(rank, step)
                optimizer.zero_grad()
                nn.functional.mse_loss(wrapped(features), wanted).backward()
                optimizer.step()
        results.append([parameter.detach().clone() for parameter in wrapped.parameters()])
    assert_same(*results, exactly=exactly(size))


def test_ddp_communication_hooks(rank, size):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    hooks = {
        "allreduce": lambda wrapped, group: wrapped.register_comm_hook(group, default_hooks.allreduce_hook),
        "fp16": lambda wrapped, group: wrapped.register_comm_hook(group, default_hooks.fp16_compress_hook),
        "powerSGD": lambda wrapped, group: wrapped.register_comm_hook(
            powerSGD_hook.PowerSGDState(
                group, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1
            ),
            powerSGD_hook.powerSGD_hook,
        ),
        "builtin": lambda wrapped, group: wrapped._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE),
    }
    for name, hook in hooks.items():
        torch.manual_seed(3)
        try:
            compare_ddp(rank, size, hook=hook)
        except AssertionError as error:
            raise AssertionError(f"hook {name}: {error}") from error


def test_a_failing_peer_ends_the_backward_pass_of_ddp(rank, size):
    if size == 1:
        return
    others = gloo()
    wrapped = DistributedDataParallel(model())
    features, wanted = batch(rank, 0)
    loss = nn.functional.mse_loss(wrapped(features, False), wanted)
    dist.barrier(group=others)  # a forward pass broadcasts buffers, and its root does not wait for other ranks
    if rank == 0:
        dist.group.WORLD.abort()
        return
    failure = None
    try:
        loss.backward()
    except RuntimeError as error:
        failure = error
    assert failure is not None, "backward() came back although a peer was gone"
    assert "aborted" in str(failure)


def test_ddp_synchronises_models_that_differ_at_first(rank, size):
    torch.manual_seed(rank)
    wrapped = DistributedDataParallel(Unequal())
    sums = [None] * size
    dist.all_gather_object(sums, sum(parameter.sum().item() for parameter in wrapped.parameters()))
    assert len(set(sums)) == 1


def test_zero_redundancy_optimizer(rank, size):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    results = []
    for group in (dist.group.WORLD, gloo()):
        wrapped = DistributedDataParallel(model(), process_group=group)
        optimizer = ZeroRedundancyOptimizer(
            wrapped.parameters(), torch.optim.SGD, process_group=group, lr=0.1, momentum=0.9
        )
        results.append(train(wrapped, rank, optimizer=optimizer))
        optimizer.consolidate_state_dict()
    assert_same(*results, exactly=exactly(size))


def test_post_local_sgd(rank, size):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    averager = PeriodicModelAverager(period=1, warmup_steps=0)
    layer = nn.Linear(2, 2)
    nn.init.constant_(layer.weight, float(rank))
    layer(torch.ones(1, 2)).sum().backward()  # the averager skips parameters without a gradient
    averager.average_parameters(list(layer.parameters()))
    assert torch.allclose(layer.weight, torch.full((2, 2), (size - 1) / 2))


def test_fsdp1_trains_the_same_as_over_gloo(rank, size):
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        results = []
        for group in (dist.group.WORLD, gloo()):
            wrapped = FullyShardedDataParallel(
                model(),
                process_group=group,
                sharding_strategy=strategy,
                device_id=torch.device("cpu"),
                use_orig_params=True,
            )
            train(wrapped, rank)
            with FullyShardedDataParallel.summon_full_params(wrapped):
                results.append([parameter.detach().clone() for parameter in wrapped.parameters()])
        assert_same(*results, exactly=exactly(size))


def test_fsdp1_saves_sharded_states(rank, size):
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

    wrapped = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), use_orig_params=True)
    with FullyShardedDataParallel.state_dict_type(wrapped, StateDictType.SHARDED_STATE_DICT):
        state = wrapped.state_dict()
        before = {name: own_shards(value) for name, value in state.items()}
        train(wrapped, rank)
        wrapped.load_state_dict(state)
        after = wrapped.state_dict()
    for name, shards in before.items():
        assert all(map(torch.equal, own_shards(after[name]), shards)), name


def own_shards(value):
    """Return copies of this rank's shards of a sharded tensor; the list may be empty."""
    return [shard.tensor.clone() for shard in value.local_shards()] if hasattr(value, "local_shards") else []


def test_fsdp2_trains_the_same_as_over_gloo(rank, size):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    results = []
    for group in (dist.group.WORLD, gloo()):
        mesh = DeviceMesh.from_group(group, "cpu")
        sharded = model()
        for layer in (sharded.first, sharded.second, sharded.last):
            fully_shard(layer, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        train(sharded, rank)
        results.append([parameter.full_tensor().detach().clone() for parameter in sharded.parameters()])
    assert_same(*results, exactly=exactly(size))


def test_fsdp2_in_mixed_precision_with_clipping_and_checkpoints(rank, size):
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    sharded = nn.Sequential(nn.Linear(_WIDTH, 64), nn.ReLU(), nn.Linear(64, 3))
    fully_shard(sharded, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    optimizer = torch.optim.AdamW(sharded.parameters(), lr=0.01)
    features, wanted = batch(rank, 0)
    before = [parameter.full_tensor().detach().clone() for parameter in sharded.parameters()]
    nn.functional.mse_loss(sharded(features).float(), wanted).backward()
    norm = nn.utils.clip_grad_norm_(sharded.parameters(), 1.0)
    assert norm.full_tensor() > 0
    optimizer.step()
    after = [parameter.full_tensor().detach().clone() for parameter in sharded.parameters()]
    assert any(not torch.equal(*pair) for pair in zip(before, after, strict=True))
    shared = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(shared, src=0)
    checkpoint.save({"model": sharded.state_dict()}, checkpoint_id=shared[0])
    with torch.no_grad():
        for parameter in sharded.parameters():
            parameter.mul_(0)
    state = {"model": sharded.state_dict()}
    checkpoint.load(state, checkpoint_id=shared[0])
    sharded.load_state_dict(state["model"])
    assert_same([parameter.full_tensor().detach() for parameter in sharded.parameters()], after)
    assert get_model_state_dict(sharded)


def test_device_meshes_shard_along_two_axes(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if size % 2:
        return
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("replicate", "shard"))
    assert mesh["shard"].get_group().size() == 2
    total = torch.tensor([float(rank)])
    dist.all_reduce(total, group=mesh["replicate"].get_group())
    assert total.item() == sum(range(rank % 2, size, 2))
    hybrid = model()
    fully_shard(hybrid, mesh=mesh)
    train(hybrid, rank)
    sharded = model()
    fully_shard(sharded)
    train(sharded, rank)
    assert_same(
        [parameter.full_tensor().detach() for parameter in hybrid.parameters()],
        [parameter.full_tensor().detach() for parameter in sharded.parameters()],
        exactly=False,
    )


def test_distributed_tensors_change_their_layout(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(24.0 * size).reshape(4 * size, 6)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(sharded.full_tensor(), whole)
    assert torch.equal(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    assert torch.equal(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    partial = torch.distributed.tensor.DTensor.from_local(torch.ones(size, 3), mesh, [Partial()])
    assert torch.equal(partial.redistribute(mesh, [Shard(0)]).to_local(), torch.full((1, 3), float(size)))
    product = sharded @ distribute_tensor(whole.t().contiguous(), mesh, [Replicate()])
    assert torch.equal(product.full_tensor(), whole @ whole.t())


def test_tensor_parallel_layers(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(1)
    plain = nn.Sequential(nn.Linear(8, 6 * size), nn.ReLU(), nn.Linear(6 * size, 8))
    parallel = parallelize_module(
        copy.deepcopy(plain), init_device_mesh("cpu", (size,)), {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    features = torch.randn(5, 8)
    torch.testing.assert_close(parallel(features), plain(features))
    parallel(features).sum().backward()
    plain(features).sum().backward()
    torch.testing.assert_close(parallel[0].weight.grad.full_tensor(), plain[0].weight.grad)


def test_pipeline_schedules(rank, size):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    if size == 1:
        return
    torch.manual_seed(2)
    layers = [nn.Linear(8, 8) for _ in range(size)]
    stage = PipelineStage(copy.deepcopy(layers[rank]), rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    features, wanted = torch.ones(8, 8), torch.zeros(8, 8)
    losses = []
    if rank == 0:
        schedule.step(features)
    elif rank == size - 1:
        schedule.step(target=wanted, losses=losses)
    else:
        schedule.step()
    for layer in layers:
        features = layer(features)
    if rank == size - 1:
        assert torch.allclose(torch.stack(losses).mean(), nn.functional.mse_loss(features, wanted))


def test_context_of_joined_optimizers(rank, size):
    from torch.distributed.algorithms.join import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer

    wrapped = DistributedDataParallel(nn.Linear(_WIDTH, 3))
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.SGD, lr=0.1)
    with Join([wrapped, optimizer]):
        for step in range(1 + rank):
            features, wanted = batch(rank, step)
            optimizer.zero_grad()
            nn.functional.mse_loss(wrapped(features), wanted).backward()
            optimizer.step()
    sums = [None] * size
    dist.all_gather_object(sums, wrapped.module.weight.sum().item())
    assert len(set(sums)) == 1
