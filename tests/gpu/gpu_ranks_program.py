"""Backend smddp with GPU tensors: collectives, and training compared with one process. See `torch_ranks`."""

import copy

import torch
import torch.distributed as dist
from gpu_world import gpu, real_gpu
from torch import nn

from clary.train.collective.adapters.torch.devices import Path, choose_path, own_placement

NUM_ELEMENTS = 5_000_003  # several segments on the path through host memory, the last one small
WIDTH, BATCH, STEPS = 64, 8, 3
CLOSE = {"rtol": 1e-3, "atol": 1e-4}


def make_model():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.LayerNorm(WIDTH))


def batch(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(BATCH, WIDTH, generator=generator)


def train(model, ranks, device):
    """Return the model's state after `STEPS` steps on the mean loss over these ranks' batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = [model(batch(rank, step).to(device)).square().mean() for rank in ranks]
        torch.stack(losses).mean().backward()
        optimizer.step()


def assert_same(found, alone):
    assert len(found) > 0
    for ours, theirs in zip(found, alone, strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach().cpu(), **CLOSE)


def trained_alone(size, device):
    model = make_model().to(device)
    train(model, range(size), device)
    return list(model.parameters())


def test_collectives_of_tensors_of_a_gpu(rank, size):
    device = gpu()
    total = size * (size + 1) // 2
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
        ours = torch.full((NUM_ELEMENTS,), rank + 1, dtype=dtype, device=device)
        dist.all_reduce(ours)
        assert bool((ours == total).all()), (dtype, ours[:4])
    # Work before and after the collective is on the program's stream; the host does not wait.
    ours = torch.zeros(NUM_ELEMENTS, device=device)
    for _ in range(50):
        ours += (rank + 1) / 50
    work = dist.all_reduce(ours, async_op=True)
    work.wait()
    doubled = ours * 2
    torch.testing.assert_close(doubled.cpu(), torch.full((NUM_ELEMENTS,), 2.0 * total), rtol=1e-4, atol=1e-4)
    told = torch.full((3,), float(rank), device=device)
    dist.broadcast(told, src=size - 1)
    assert told.tolist() == [size - 1] * 3
    gathered = torch.empty(size * 3, device=device)
    dist.all_gather_into_tensor(gathered, torch.full((3,), float(rank), device=device))
    assert gathered.tolist() == [float(one) for one in range(size) for _ in range(3)]
    part = torch.empty(3, device=device)
    dist.reduce_scatter_tensor(part, torch.arange(3.0 * size, device=device))
    assert part.tolist() == [size * (3.0 * rank + place) for place in range(3)]
    swapped = torch.empty(size, device=device)
    dist.all_to_all_single(swapped, torch.full((size,), float(rank), device=device))
    assert swapped.tolist() == [float(one) for one in range(size)]
    dist.barrier()
    if size == 2:
        peer = 1 - rank
        mine, theirs = torch.full((1 << 20,), float(rank), device=device), torch.empty(1 << 20, device=device)
        sending = dist.isend(mine, peer)
        dist.recv(theirs, peer)
        sending.wait()
        assert bool((theirs == peer).all())


def test_the_path_of_tensors_is_chosen_by_placement(rank, size):
    placement = own_placement(real_gpu("a GPU that is made up has no name that ranks could compare"))
    gathered = [None] * size
    dist.all_gather_object(gathered, placement)
    path, reason = choose_path(gathered)
    if size > 1 and gathered[0].device == gathered[1].device:
        assert path is Path.STAGED, reason
        assert "share GPU" in reason
    elif gathered[0].has_nccl:
        assert path is Path.NCCL, reason


def test_ddp_trains_as_one_process_does(rank, size):
    device = gpu()
    wrapped = nn.parallel.DistributedDataParallel(make_model().to(device), device_ids=[0], bucket_cap_mb=0.02)
    train(wrapped, [rank], device)
    assert_same(list(wrapped.parameters()), trained_alone(size, device))


def test_fsdp_trains_as_one_process_does(rank, size):
    from torch.distributed.fsdp import FullyShardedDataParallel

    device = gpu()
    wrapped = FullyShardedDataParallel(make_model(), device_id=device, use_orig_params=True)
    train(wrapped, [rank], device)
    with FullyShardedDataParallel.summon_full_params(wrapped):
        assert_same(list(wrapped.parameters()), trained_alone(size, device))


def test_fsdp2_trains_as_one_process_does(rank, size):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    device = gpu()
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cuda")
    sharded = make_model().to(device)
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer, mesh=mesh)
    train(sharded, [rank], device)
    assert_same([one.full_tensor() for one in sharded.parameters()], trained_alone(size, device))


def test_smp_v1_trains_as_one_process_does(rank, size):
    import smdistributed.modelparallel.torch as smp
    from smp_models import SharedPerceptron, Winding, batch_of, loss_of, make, train_alone

    device = gpu()

    @smp.step
    def step(model, inputs, targets):
        loss = loss_of(model(inputs), targets)
        model.backward(loss)
        return loss

    for kind, config in ((Winding, {"partitions": 2, "microbatches": 4}), (SharedPerceptron, {"ddp": True})):
        smp.shutdown()
        smp.init(config)
        model = smp.DistributedModel(make(kind))
        optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.05))
        found = []
        for number in range(STEPS):
            inputs, targets = (one.chunk(smp.dp_size())[smp.dp_rank()].to(device) for one in batch_of(kind, number))
            optimizer.zero_grad()
            loss = step(model, inputs, targets).reduce_mean().detach().cpu()
            dist.all_reduce(loss, op=dist.ReduceOp.SUM)
            optimizer.step()
            found.append(loss / size)
        expected, _, _ = train_alone(kind, config.get("microbatches", 1) * smp.dp_size())
        torch.testing.assert_close(torch.stack(found), torch.tensor(expected), rtol=1e-2, atol=1e-2)
        placed = {one.device.type for one in model.local_parameters()}
        assert placed == {device.type}, placed
    smp.shutdown()


def test_smp_v2_trains_as_one_process_does(rank, size):
    from torch.distributed.fsdp import FullyShardedDataParallel

    from clary.train.parallel.fsdp.session import init
    from clary.train.parallel.fsdp.state import state
    from clary.train.parallel.fsdp.training import transform

    device = gpu()
    state.reset()
    init({"hybrid_shard_degree": size})
    model = transform(copy.deepcopy(make_model()))
    wrapped = FullyShardedDataParallel(model, device_id=device, use_orig_params=True)
    train(wrapped, [rank], device)
    with FullyShardedDataParallel.summon_full_params(wrapped):
        assert_same(list(wrapped.parameters()), trained_alone(size, device))
    state.reset()
