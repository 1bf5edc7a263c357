"""Contenders of `bench_step` for two pipeline ranks; imported by ranks only.

ours    a script of smp, the upper half marked for the second rank
hand    1F1B written out, over isend and irecv
torch   Schedule1F1B of torch.distributed.pipelining
bound   as many passes of the own half as 1F1B has places, one after another, and nothing sent
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

import clary.compat.smdistributed.modelparallel.torch as smp
from benchmarks.training.step_models import Gpt, Sizes, batch_of, loss_of, make_gpt, optimizer_of

FORWARD_TAG, BACKWARD_TAG = 1, 2
Step = Callable[[int], torch.Tensor | None]


@smp.step
def train_step(model: Any, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Run the forward and backward pass as a script of smp writes them."""
    loss = loss_of(model(tokens), targets)
    model.backward(loss)
    return loss


def contenders(rank: int, sizes: Sizes, num_microbatches: int) -> dict[str, Step]:
    """Return for each contender a function that takes one step and returns its loss, on ranks that know it."""
    make = functools.partial(make_gpt, sizes)
    return {
        "ours": _ours(make(), sizes, num_microbatches),
        "hand": _hand(_half(make(), rank), rank, sizes, num_microbatches),
        "torch": _torch(_half(make(), rank), rank, sizes, num_microbatches),
        "bound": _bound(_half(make(), rank), rank, sizes, num_microbatches),
    }


def _ours(module: Gpt, sizes: Sizes, num_microbatches: int) -> Step:
    middle = len(module.layers) // 2
    for place, layer in enumerate(module.layers):
        smp.set_partition(layer, int(place >= middle))
    smp.init({"partitions": 2, "microbatches": num_microbatches, "auto_partition": False, "default_partition": 0})
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(optimizer_of(model.parameters()))

    def step(number: int) -> torch.Tensor:
        optimizer.zero_grad()
        losses = train_step(model, *batch_of(sizes, number))
        optimizer.step()
        mean: torch.Tensor = losses.reduce_mean()
        return mean

    return step


def _half(module: Gpt, rank: int) -> nn.Sequential:
    middle = len(module.layers) // 2
    return module.layers[middle:] if rank else module.layers[:middle]


def _hand(stage: nn.Sequential, rank: int, sizes: Sizes, num_microbatches: int) -> Step:
    optimizer = optimizer_of(stage.parameters())
    shape = (sizes.batch // num_microbatches, sizes.length, sizes.width)

    def first(tokens: list[torch.Tensor]) -> None:
        gradients = [torch.empty(shape) for _ in tokens]
        receives = [dist.irecv(gradient, 1, tag=BACKWARD_TAG) for gradient in gradients]
        outputs, sends = [], []
        for place in range(num_microbatches + 1):  # one forward pass ahead of the backward passes
            if place < num_microbatches:
                outputs.append(stage(tokens[place]))
                sends.append(dist.isend(outputs[-1].detach(), 1, tag=FORWARD_TAG))
            if place:
                receives[place - 1].wait()
                outputs[place - 1].backward(gradients[place - 1])
        for send in sends:
            send.wait()

    def last(targets: list[torch.Tensor]) -> torch.Tensor:
        inputs = [torch.empty(shape) for _ in targets]
        receives = [dist.irecv(one, 0, tag=FORWARD_TAG) for one in inputs]
        losses, sends = [], []
        for value, target, receive in zip(inputs, targets, receives, strict=True):
            receive.wait()
            value.requires_grad_()
            loss = loss_of(stage(value), target) / num_microbatches
            loss.backward()
            sends.append(dist.isend(value.grad, 0, tag=BACKWARD_TAG))
            losses.append(loss.detach())
        for send in sends:
            send.wait()
        return torch.stack(losses).sum()

    def step(number: int) -> torch.Tensor | None:
        tokens, targets = batch_of(sizes, number)
        optimizer.zero_grad()
        loss = None
        if rank == 0:
            first(list(tokens.chunk(num_microbatches)))
        else:
            loss = last(list(targets.chunk(num_microbatches)))
        optimizer.step()
        return loss

    return step


def _torch(stage: nn.Sequential, rank: int, sizes: Sizes, num_microbatches: int) -> Step:
    optimizer = optimizer_of(stage.parameters())
    whole = pipelining.PipelineStage(stage, rank, 2, torch.device("cpu"))
    schedule = pipelining.Schedule1F1B(whole, num_microbatches, loss_fn=loss_of)

    def step(number: int) -> torch.Tensor | None:
        tokens, targets = batch_of(sizes, number)
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(tokens, return_outputs=False)
        else:
            schedule.step(target=targets, losses=losses, return_outputs=False)
        optimizer.step()
        return torch.stack(losses).mean().detach() if losses else None

    return step


def _bound(stage: nn.Sequential, rank: int, sizes: Sizes, num_microbatches: int) -> Step:
    optimizer = optimizer_of(stage.parameters())
    hidden = torch.randn(sizes.batch // num_microbatches, sizes.length, sizes.width)

    def step(number: int) -> None:
        tokens, targets = (one.chunk(num_microbatches)[0] for one in batch_of(sizes, number))
        optimizer.zero_grad()
        for _ in range(num_microbatches + 1):  # two stages: the second waits for one place
            if rank == 0:
                stage(tokens).backward(hidden)
            else:
                loss_of(stage(hidden.clone().requires_grad_()), targets).backward()
        optimizer.step()

    return step
