"""Script that trains a perceptron on drawn numbers: --way ddp, smp or tsm; --own 1 adds its own autocast and scaler."""

import argparse
import contextlib
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

torch.set_num_threads(1)
parser = argparse.ArgumentParser()
parser.add_argument("--way", default="ddp")
parser.add_argument("--own", type=int, default=0)
parser.add_argument("--amp", default="absent")
options, _ = parser.parse_known_args()
STEPS, ROWS, WIDTH = 30, 32, 32
seen = {}  # dtype -> number of calls


class Perceptron(nn.Module):
    """Two layers that record the dtype in which they compute."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 64), nn.Linear(64, 10)

    def forward(self, x):
        hidden = functional.gelu(self.first(x))
        seen[str(hidden.dtype)] = seen.get(str(hidden.dtype), 0) + 1
        return self.second(hidden)


def autocast():
    """Return the script's own autocast if `--own` is set."""
    return torch.autocast("cpu", dtype=torch.bfloat16) if options.own else contextlib.nullcontext()


def batch(step, rank):
    """Return rows [ROWS, WIDTH], and per row the index of the greatest of its first ten numbers."""
    rows = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1000 * step + rank))
    return rows, rows[:, :10].argmax(1)


def write(rank, losses, scale):
    """Write the facts of a rank to the model folder."""
    facts = {"losses": losses, "seen": seen, "scale": scale, "amp": options.amp}
    with open(os.path.join(os.environ["SM_MODEL_DIR"], f"rank-{rank}.json"), "w") as file:
        json.dump(facts, file)


def with_smp():
    """Train in a pipeline of SMP v1."""
    import smdistributed.modelparallel.torch as smp

    smp.init()
    scaler = smp.amp.GradScaler(init_scale=8.0, enabled=bool(options.own))
    torch.manual_seed(1)
    model = smp.DistributedModel(Perceptron())
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01))

    @smp.step
    def train_step(model, rows, targets):
        with autocast():
            loss = functional.cross_entropy(model(rows).float(), targets)
        model.backward(scaler.scale(loss) if options.own else loss)
        return loss

    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = train_step(model, *batch(step, 0))
        if options.own:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        losses.append(loss.reduce_mean().item())
    write(smp.rank(), losses, scaler.get_scale())
    smp.barrier()


def with_torch():
    """Train with DDP, or with FSDP of SMP v2."""
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    if options.way == "tsm":
        import torch.sagemaker as tsm
        from torch.distributed.fsdp import FullyShardedDataParallel

        tsm.init()
        model = FullyShardedDataParallel(
            tsm.transform(Perceptron()), device_id=torch.device("cpu"), use_orig_params=True
        )
    else:
        model = nn.parallel.DistributedDataParallel(Perceptron())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=bool(options.own))
    losses = []
    for step in range(STEPS):
        rows, targets = batch(step, dist.get_rank())
        optimizer.zero_grad()
        with autocast():
            loss = functional.cross_entropy(model(rows), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    write(dist.get_rank(), losses, scaler.get_scale())
    dist.barrier()
    dist.destroy_process_group()


if options.way == "smp":
    with_smp()
else:
    with_torch()
