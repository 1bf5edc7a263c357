"""Contenders of `bench_step` for two replicas in shards; imported by ranks only.

ours     a script of smp with sharded_data_parallel_degree=2, every parameter in shards
hand     a flat shard a layer, gathered one layer ahead, gradients reduced one layer behind
fsdp2    fully_shard of torch
bound    the layers of `hand`, whole for ever, and nothing gathered or reduced
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import clary.compat.smdistributed.modelparallel.torch as smp
from benchmarks.training.step_models import Sizes, batch_of, loss_of, make_gpt, optimizer_of, share_of
from benchmarks.training.step_pipeline import Step, train_step

FLOAT_BYTES = 4


def contenders(rank: int, size: int, sizes: Sizes) -> dict[str, Step]:
    """Return for each contender a function that takes one step and returns the loss of this replica."""
    return {
        "ours": _ours(rank, size, sizes),
        "hand": _Hand(rank, size, sizes, communicates=True).step,
        "fsdp2": _fsdp2(rank, size, sizes),
        "bound": _Hand(rank, size, sizes, communicates=False).step,
    }


def _ours(rank: int, size: int, sizes: Sizes) -> Step:
    keys = {"sharded_data_parallel_degree": size, "ddp": True, "sdp_param_persistence_threshold": 0}
    smp.init({**keys, "sdp_gradient_clipping": 0.0})
    model = smp.DistributedModel(make_gpt(sizes))
    optimizer = smp.DistributedOptimizer(optimizer_of(model.parameters()))

    def step(number: int) -> torch.Tensor:
        optimizer.zero_grad()
        losses = train_step(model, *share_of(batch_of(sizes, number), rank, size))
        optimizer.step()
        mean: torch.Tensor = losses.reduce_mean()
        return mean

    return step


def _fsdp2(rank: int, size: int, sizes: Sizes) -> Step:
    module = make_gpt(sizes)
    mesh = init_device_mesh("cpu", (size,))
    for layer in module.layers:
        fully_shard(layer, mesh=mesh)
    model: Any = fully_shard(module, mesh=mesh)
    optimizer = optimizer_of(model.parameters())

    def step(number: int) -> torch.Tensor:
        tokens, targets = share_of(batch_of(sizes, number), rank, size)
        optimizer.zero_grad()
        loss = loss_of(model(tokens), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


class _Hand:
    """A loop over layers that lie in shards; the last layer stays whole between its two passes."""

    def __init__(self, rank: int, size: int, sizes: Sizes, *, communicates: bool) -> None:
        self._rank, self._size, self._sizes = rank, size, sizes
        layers = make_gpt(sizes).layers
        self._units = [_Unit(layer, rank, size, communicates=communicates) for layer in layers]
        self._optimizer = optimizer_of([unit.shard for unit in self._units])

    def step(self, number: int) -> torch.Tensor:
        tokens, targets = share_of(batch_of(self._sizes, number), self._rank, self._size)
        self._optimizer.zero_grad()
        hidden, kept = tokens, []
        units = self._units
        units[0].start_gather()
        for place, unit in enumerate(units):
            unit.finish_gather()
            if place + 1 < len(units):
                units[place + 1].start_gather()
            if place:
                hidden = hidden.detach().requires_grad_()
            output = unit.layer(hidden)
            kept.append((hidden, output))
            hidden = output
            if place + 1 < len(units):
                unit.free()
        loss = loss_of(hidden, targets)
        gradient: torch.Tensor | None = None
        for place in reversed(range(len(units))):
            unit = units[place]
            unit.finish_gather()
            if place:
                units[place - 1].start_gather()
            value, output = kept.pop()
            if place + 1 == len(units):
                loss.backward()
            else:
                output.backward(gradient)
            gradient = value.grad
            unit.start_reduction()
            unit.free()
            if place + 1 < len(units):
                units[place + 1].finish_reduction()
        units[0].finish_reduction()
        self._optimizer.step()
        return loss.detach()


class _Unit:
    """One layer, as views of a flat buffer that comes and goes."""

    def __init__(self, layer: nn.Module, rank: int, size: int, *, communicates: bool) -> None:
        self.layer = layer
        self._size = size
        self._communicates = communicates
        self._parameters = list(layer.parameters())
        flat = torch.cat([one.detach().reshape(-1) for one in self._parameters])
        self._full = nn.functional.pad(flat, (0, -flat.numel() % size))
        self.shard = nn.Parameter(self._full.chunk(size)[rank].clone())
        begin = 0
        for parameter in self._parameters:
            parameter.data = self._full[begin : begin + parameter.numel()].view(parameter.shape)
            begin += parameter.numel()
        self._gather: Any = None
        self._reduction: Any = None
        self._is_whole = True
        self.free()

    def start_gather(self) -> None:
        if self._is_whole:
            return
        self._is_whole = True
        self._full.untyped_storage().resize_(self._full.numel() * FLOAT_BYTES)
        self._gather = dist.all_gather_into_tensor(self._full, self.shard.data, async_op=True)

    def finish_gather(self) -> None:
        if self._gather is not None:
            self._gather.wait()
            self._gather = None

    def free(self) -> None:
        if self._communicates:
            self._full.untyped_storage().resize_(0)
            self._is_whole = False

    def start_reduction(self) -> None:
        grads = [one.grad.reshape(-1) for one in self._parameters if one.grad is not None]
        grads.append(grads[0].new_zeros(self._full.numel() - sum(grad.numel() for grad in grads)))
        flat = torch.cat(grads)
        self.shard.grad = torch.empty_like(self.shard)
        for parameter in self._parameters:
            parameter.grad = None
        if self._communicates:
            self._reduction = dist.reduce_scatter_tensor(self.shard.grad, flat, async_op=True), flat
        else:
            self.shard.grad.copy_(flat[: self.shard.numel()])

    def finish_reduction(self) -> None:
        if self._reduction is not None:
            self._reduction[0].wait()
            self._reduction = None
        assert self.shard.grad is not None
        self.shard.grad.div_(self._size)
