"""torch.compile over backend smddp, as far as torch allows it for a ProcessGroup written in Python."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_COMPILER = "aot_eager"  # traces and splits graphs like inductor, without the time of a C++ compiler


def layers():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(), nn.Linear(640, 4))


def steps(wrapped, rank):
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for step in range(3):
        features = torch.randn(8, 16, generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        wrapped(features).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in wrapped.parameters()]


def test_a_compiled_ddp_trains_like_an_eager_one(rank, size):
    eager = steps(DistributedDataParallel(layers(), bucket_cap_mb=1.1), rank)
    torch._dynamo.reset()
    compiled = steps(torch.compile(DistributedDataParallel(layers(), bucket_cap_mb=1.1), backend=_COMPILER), rank)
    for ours, theirs in zip(eager, compiled, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_ddp_around_a_compiled_model_trains_like_an_eager_one(rank, size):
    eager = steps(DistributedDataParallel(layers()), rank)
    torch._dynamo.reset()
    compiled = steps(DistributedDataParallel(torch.compile(layers(), backend=_COMPILER)), rank)
    for ours, theirs in zip(eager, compiled, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_functional_collectives_compile_into_one_graph(rank, size):
    name = dist.group.WORLD.group_name

    @torch.compile(backend=_COMPILER, fullgraph=True)
    def mean(tensor):
        return functional.all_reduce(tensor * 2, "sum", name) / size

    assert torch.equal(mean(torch.full((4,), float(rank))), torch.full((4,), float(size - 1)))


def test_a_compiled_function_may_call_collectives_in_place(rank, size):
    @torch.compile(backend=_COMPILER)
    def summed(tensor):
        tensor = tensor + 1
        dist.all_reduce(tensor)
        return tensor * 2

    torch._dynamo.reset()
    assert torch.equal(summed(torch.zeros(3)), torch.full((3,), 2.0 * size))


def test_a_compiled_sharded_model_trains(rank, size):
    from torch.distributed.fsdp import fully_shard

    sharded = layers()
    fully_shard(sharded)
    torch._dynamo.reset()
    compiled = torch.compile(sharded, backend=_COMPILER)
    steps(compiled, rank)
    whole = [parameter.full_tensor().detach() for parameter in sharded.parameters()]
    eager = steps(DistributedDataParallel(layers()), rank)
    for ours, theirs in zip(whole, eager, strict=True):
        torch.testing.assert_close(ours, theirs)
