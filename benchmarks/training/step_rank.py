"""One rank of `bench_step`: takes steps of all contenders of one layout in turns, and times them.

Run: `python -m benchmarks.training.step_rank RANK SIZE FOLDER PLAN`, PLAN being JSON; rank 0 prints one JSON object. A
step is timed on the rank that takes longest, all having begun together.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.training import step_pipeline, step_sharded, step_tensor
from benchmarks.training.step_models import Sizes
from benchmarks.training.step_pipeline import Step

LIMIT_S = 60.0
NUM_WARM = 2  # steps that find shapes and allocate


def main(rank: int, size: int, folder: Path, plan: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    if plan["backend"] == "smddp":
        from clary.train.collective.adapters.torch.registration import register

        register()
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group(
        plan["backend"], store=store, rank=rank, world_size=size, timeout=timedelta(seconds=LIMIT_S)
    )
    sizes = Sizes(**plan["sizes"])
    layout = plan["layout"]
    if layout == "pp":
        steps = step_pipeline.contenders(rank, sizes, plan["microbatches"])
    elif layout == "tp":
        steps = step_tensor.contenders(rank, size, sizes)
    else:
        steps = step_sharded.contenders(rank, size, sizes)
    found = _measure(steps, plan["steps"])
    if rank == 0:
        print(json.dumps(found | {"torch": str(torch.__version__)}), flush=True)
    dist.barrier()
    os._exit(0)  # torch's own threads may end a process that leaves otherwise with a signal


def _measure(steps: dict[str, Step], num_steps: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {who: [] for who in steps}
    cpu_s: dict[str, list[float]] = {who: [] for who in steps}
    losses: dict[str, list[float]] = {who: [] for who in steps}
    for number in range(NUM_WARM + num_steps):
        for who, step in steps.items() if number % 2 == 0 else reversed(steps.items()):
            dist.barrier()
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            loss = step(number)
            taken = torch.tensor([time.perf_counter() - began_s], dtype=torch.float64)
            sums = [time.process_time() - began_cpu_s, 0.0, 0.0]
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            if loss is not None:
                sums[1:] = [float(loss), 1.0]
            total = torch.tensor(sums, dtype=torch.float64)
            dist.all_reduce(total)
            if number >= NUM_WARM:
                seconds[who].append(taken.item())
                cpu_s[who].append(total[0].item())
            if total[2]:
                losses[who].append((total[1] / total[2]).item())
    return {"seconds": seconds, "cpu_s": cpu_s, "losses": {who: values for who, values in losses.items() if values}}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
