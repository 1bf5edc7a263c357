"""One rank of the part of `bench_partition` that compares predicted with measured steps, on two pipeline ranks.

A model is cut by smp itself, by times that it traces. The plan's shares of the parts, and how long the whole model
takes for one microbatch, give the time of each stage; `bench_partition` puts stages together. Both ranks time the whole
model at once, in turns with the step, so that what else the machine does hits both.

Run: `python -m benchmarks.training.step_prediction RANK SIZE FOLDER PLAN`, PLAN being JSON; rank 0 prints one JSON
object.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import clary.compat.smdistributed.modelparallel.torch as smp
from benchmarks.training.partition_models import ResNet
from benchmarks.training.step_models import Sizes, batch_of, loss_of, make_gpt
from clary.train.parallel.partition import decision
from clary.train.parallel.partition.plan import Plan, plan_partition
from clary.train.parallel.pipeline.links import Links
from clary.train.parallel.pipeline.messages import Message

LIMIT_S = 60.0
NUM_WARM = 2
NUM_ECHOES = 20
ECHO_FLOATS = (256, 1 << 18)  # of what goes to the other rank and back
NUM_CLASSES = 10
Batch = tuple[torch.Tensor, torch.Tensor]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@smp.step
def train_step(model: Any, inputs: torch.Tensor, targets: torch.Tensor, loss_fn: Loss) -> torch.Tensor:
    loss = loss_fn(model(inputs), targets)
    model.backward(loss)
    return loss


def main(rank: int, size: int, folder: Path, plan: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=LIMIT_S))
    count = _count_sends()
    found: dict[str, Any] = {"echoes": [[_echo(num_floats), num_floats] for num_floats in ECHO_FLOATS]}
    make, batch, loss_fn = _gpt(plan) if plan["model"] == "gpt" else _resnet(plan)
    found |= _compare(make, batch, loss_fn, plan, count)
    if rank == 0:
        print(json.dumps(found | {"torch": str(torch.__version__)}), flush=True)
    dist.barrier()
    os._exit(0)  # torch's own threads may end a process that leaves otherwise with a signal


def _gpt(plan: dict[str, Any]) -> tuple[Callable[[], nn.Module], Batch, Loss]:
    sizes = Sizes(**plan["sizes"])
    return lambda: make_gpt(sizes), batch_of(sizes, 0), loss_of


def _resnet(plan: dict[str, Any]) -> tuple[Callable[[], nn.Module], Batch, Loss]:
    def make() -> nn.Module:
        torch.manual_seed(1)
        return ResNet()

    torch.manual_seed(2)
    images, edge = plan["images"], plan["edge"]
    return (
        make,
        (torch.randn(images, 3, edge, edge), torch.randint(0, NUM_CLASSES, (images,))),
        functional.cross_entropy,
    )


class _Count:
    """Number of messages and bytes that this rank has sent over the streams of a pipeline."""

    num_messages = 0
    num_bytes = 0


def _count_sends() -> _Count:
    count, send = _Count(), Links.send

    def counted(self: Links, peer: int, message: Message) -> None:
        count.num_messages += 1
        count.num_bytes += sum(one.numel() * one.element_size() for one in message.tensors)
        send(self, peer, message)

    Links.send = counted  # type: ignore[method-assign]
    return count


class _Echo(nn.Module):
    """Something small on the other rank."""

    def __init__(self) -> None:
        super().__init__()
        self.there = nn.PReLU()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.there(values)
        return result


def _echo(num_floats: int) -> float:
    """Return by how much longer a microbatch takes which is sent there and back, and its gradients as well."""
    here, there = _Echo(), _Echo()
    smp.set_partition(there.there, 1)
    smp.init({"partitions": 2, "auto_partition": False, "default_partition": 0})
    model = smp.DistributedModel(there)
    values = torch.randn(1, num_floats, requires_grad=True)
    extra_s = []
    for _ in range(NUM_WARM + NUM_ECHOES):
        local_s = _pass(here, (values, values.detach()), _product)
        dist.barrier()
        began_s = time.perf_counter()
        train_step(model, values, values.detach(), _product)
        extra_s.append(time.perf_counter() - began_s - local_s)
    smp.shutdown()
    return statistics.median(extra_s[NUM_WARM:])


def _product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one * other).sum()


def _compare(make: Callable[[], nn.Module], batch: Batch, loss_fn: Loss, plan: dict[str, Any], count: _Count) -> Any:
    num_microbatches = plan["microbatches"]
    piece = tuple(one.chunk(num_microbatches)[0] for one in batch)
    whole, module = make(), make()
    plans: list[Plan] = []

    def recorded(*args: Any, **kwargs: Any) -> Plan:
        plans.append(plan_partition(*args, **kwargs))
        return plans[-1]

    mock.patch.object(decision, "plan_partition", recorded).start()  # what smp itself decides by
    _pass(module, piece, loss_fn)  # kernels are found and compiled; what is traced is how long they run
    module.zero_grad()
    smp.init({"partitions": 2, "microbatches": num_microbatches, "memory_weight": 0.0})
    model = smp.DistributedModel(module, trace_execution_times=True)
    step_s, whole_s = [], []
    for number in range(NUM_WARM + plan["steps"]):
        model.zero_grad()
        whole_s.append(_most(_pass(whole, piece, loss_fn)))
        if number == NUM_WARM:
            count.num_messages = count.num_bytes = 0
        dist.barrier()
        began_s = time.perf_counter()
        train_step(model, *batch, loss_fn)
        step_s.append(_most(time.perf_counter() - began_s))
    sent = torch.tensor([count.num_messages, count.num_bytes], dtype=torch.float64)
    dist.all_reduce(sent)
    sent /= plan["steps"] * num_microbatches
    smp.shutdown()
    shares = [list(one.costs) for one in plans]
    return {
        "shares": shares[0] if shares else [],
        "whole_s": whole_s[NUM_WARM:],
        "step_s": step_s[NUM_WARM:],
        "messages": sent[0].item(),
        "bytes": sent[1].item(),
    }


def _pass(module: nn.Module, piece: Sequence[torch.Tensor], loss_fn: Loss) -> float:
    """Return the seconds of a forward and a backward pass; all ranks begin together."""
    dist.barrier()
    began_s = time.perf_counter()
    loss_fn(module(piece[0]), piece[1]).backward()
    return time.perf_counter() - began_s


def _most(seconds: float) -> float:
    taken = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return float(taken)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
