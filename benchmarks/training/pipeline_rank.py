"""One rank of `bench_pipeline`: runs schedules of ours and of torch over stages that sleep, and times their steps.

Every stage sleeps in its forward pass, in the gradient of its input and in that of its weight, so that four ranks do
not become one processor. Rank 0 prints one JSON object a schedule and number of microbatches.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.pipelining as peers
from torch import nn

from clary.train.parallel.pipeline.executor import Pipeline
from clary.train.parallel.pipeline.picture import svg
from clary.train.parallel.pipeline.schedule import Schedule
from clary.train.parallel.pipeline.schedules import gpipe, interleaved, one_f_one_b, zb1p
from clary.train.parallel.pipeline.zero_bubble import zbv

WIDTH, A_MICROBATCH = 256, 4
LIMIT_S = 120.0
STAGES_A_RANK = {"interleaved": 2, "zbv": 2}
PEERS = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zb1p": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
}


def make_schedule(name: str, num_ranks: int, num_microbatches: int) -> Schedule:
    """Write one of ours by its name."""
    if name == "interleaved":
        return interleaved(num_ranks, num_microbatches, stages_a_rank=STAGES_A_RANK[name])
    makers = {"gpipe": gpipe, "1f1b": one_f_one_b, "zb1p": zb1p, "zbv": zbv}
    return makers[name](num_ranks, num_microbatches)


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: Any, forward_s: float, backward_s: float, _: Any) -> Any:
        time.sleep(forward_s)
        context.backward_s = backward_s
        return value.clone()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> tuple[Any, ...]:
        time.sleep(context.backward_s)
        return gradients[0], None, None, None


class SlowStage(nn.Module):
    """Multiplies by a weight, and takes its time; each of its three passes takes `pass_s`."""

    def __init__(self, index: int, pass_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.01 * torch.arange(WIDTH) / WIDTH + 0.001 * index)
        self.pass_s = pass_s
        # The first stage's input wants no gradient; this makes it sleep as long as the others all the same.
        self.anchor = nn.Parameter(torch.zeros(())) if index == 0 else None

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        hidden = _Slow.apply(value, self.pass_s, self.pass_s, self.anchor)
        return hidden * _Slow.apply(self.weight, 0.0, self.pass_s, None)


def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error of the last stage's output against the target."""
    return nn.functional.mse_loss(output, target)


def main(rank: int, size: int, folder: Path, plan: dict[str, Any]) -> None:
    """Run the plan's cases in their order; where the plan names a folder, draw the last step of each in it."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=LIMIT_S))
    for name in plan["schedules"]:
        for num_microbatches in plan["microbatches"]:
            found = _case(name, num_microbatches, plan["pass_s"], plan["steps"], plan["pictures"])
            if rank == 0:
                print(json.dumps({"schedule": name, "microbatches": num_microbatches, **found}), flush=True)
    dist.barrier()
    os._exit(0)  # torch's own threads may end a process that leaves otherwise with a signal


def _case(name: str, num_microbatches: int, pass_s: float, num_steps: int, pictures: str | None) -> dict[str, Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    schedule = make_schedule(name, size, num_microbatches)
    pass_s /= STAGES_A_RANK.get(name, 1)
    inputs = torch.ones(num_microbatches * A_MICROBATCH, WIDTH)
    targets = inputs * 2
    has_first, has_last = rank == 0, schedule.num_stages - 1 in schedule.stages_of(rank)
    ours = {index: SlowStage(index, pass_s) for index in schedule.stages_of(rank)}
    theirs = {index: SlowStage(index, pass_s) for index in schedule.stages_of(rank)}
    pipeline = Pipeline(ours, schedule, dist.group.WORLD, loss_fn, timeout_s=LIMIT_S)
    peer = _peer(name, theirs, schedule)
    losses: list[torch.Tensor] = []
    steps: dict[str, Callable[[], Any]] = {
        "ours": lambda: pipeline.step(inputs if has_first else None, targets if has_last else None),
        "torch": lambda: peer.step(
            *((inputs,) if has_first else ()),
            **({"target": targets, "losses": losses} if has_last else {}),
            return_outputs=False,
        ),
    }
    seconds: dict[str, list[float]] = {who: [] for who in steps}
    for turn in range(num_steps + 1):  # the first tells shapes
        for who, step in steps.items() if turn % 2 == 0 else reversed(steps.items()):
            for stage in (ours if who == "ours" else theirs).values():
                stage.zero_grad()
            dist.barrier()
            began_s = time.perf_counter()
            step()
            taken = torch.tensor(time.perf_counter() - began_s, dtype=torch.float64)
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            if turn:
                seconds[who].append(taken.item())
    run = pipeline.gather_last_run()
    if rank == 0 and pictures is not None:
        (Path(pictures) / f"{name}-{num_microbatches}.svg").write_text(svg(run), encoding="utf-8")
    return {"seconds": seconds, "same": _is_same(ours, theirs)}


def _peer(name: str, stages: dict[int, SlowStage], schedule: Schedule) -> Any:
    device = torch.device("cpu")
    made = [peers.PipelineStage(stage, index, schedule.num_stages, device) for index, stage in stages.items()]
    kind = getattr(peers, PEERS[name])
    is_single = name in ("gpipe", "1f1b")
    return kind(made[0] if is_single else made, schedule.num_microbatches, loss_fn=loss_fn)


def _is_same(ours: dict[int, SlowStage], theirs: dict[int, SlowStage]) -> bool:
    """Tell whether the last step of both left the same gradients on all ranks."""
    pairs = [(ours[index].weight.grad, theirs[index].weight.grad) for index in ours]
    good = torch.tensor(all(torch.allclose(one, other, rtol=1e-4) and bool(one.any()) for one, other in pairs)).int()
    dist.all_reduce(good, dist.ReduceOp.MIN)
    return bool(good)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
