"""One training process of `bench_tensors`: the same model with a hook and without one, in blocks that take turns.

Where: `bench_tensors` starts `python -m benchmarks.sight.tensors_rank JSON_OF_ORDERS`; one line of JSON comes back.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.training.training_models import Workload
from clary.train import debugger

SEED = 11
WARM_UP = 3  # blocks of each way that do not count
# Of one way at a time: few, since the machine's pace drifts by percents; enough for what a hook writes behind the first
# of them, so that its writer burdens nobody else.
TURN_STEPS = 10


@dataclass(frozen=True, kw_only=True)
class Orders:
    folder: str
    model: str
    interval: int  # steps of a block, which saves once
    pairs: int


class Plain:
    """Saves all weights on the training thread, every so many steps, like a hook without a writer of its own."""

    def __init__(self, folder: Path, interval: int) -> None:
        self._folder, self._interval, self._step = folder, interval, -1
        folder.mkdir()

    def begin_step(self, model: nn.Module, _inputs: Any) -> None:
        self._step += 1
        if self._step % self._interval == 0:
            torch.save({name: one.detach() for name, one in model.named_parameters()}, self._folder / str(self._step))


def main() -> None:
    """Train in blocks; print seconds of each block and the losses by way."""
    orders = Orders(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    folder = Path(orders.folder)
    ways = {name: Workload(orders.model, seed=SEED, images=folder) for name in ("none", "ours", "plain")}
    hook = debugger.Hook(
        folder / "ours",
        include_collections=["weights", "biases"],
        save_config=debugger.SaveConfig(save_interval=orders.interval),
        strict=True,
    )
    hook.register_module(ways["ours"].model)
    ways["plain"].model.register_forward_pre_hook(Plain(folder / "plain", orders.interval).begin_step)
    optimizers = {name: way.optimizer(way.model) for name, way in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    thread_seconds: dict[str, list[float]] = {name: [] for name in ways}
    step_seconds: dict[str, list[float]] = {name: [] for name in ways}  # of the thread; each block's first one saves
    losses: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for block in range(orders.pairs + WARM_UP):
        spent = dict.fromkeys(names, 0.0)
        thread_spent = dict.fromkeys(names, 0.0)
        for first in range(block * orders.interval, (block + 1) * orders.interval, TURN_STEPS):
            turn = first // TURN_STEPS % len(names)
            for name in (*names[turn:], *names[:turn]):
                began = time.perf_counter()
                for step in range(first, first + TURN_STEPS):
                    thread_began = time.thread_time()
                    optimizers[name].zero_grad()
                    loss = ways[name].loss(ways[name].model, step, 0)
                    loss.backward()
                    optimizers[name].step()
                    thread_step = time.thread_time() - thread_began
                    thread_spent[name] += thread_step
                    if block >= WARM_UP:
                        step_seconds[name].append(thread_step)
                spent[name] += time.perf_counter() - began
                if first + TURN_STEPS == (block + 1) * orders.interval:
                    losses[name].append(loss.item())
        for name in names:
            seconds[name].append(spent[name])
            thread_seconds[name].append(thread_spent[name])
    began = time.perf_counter()
    hook.close()
    answer = {
        "seconds": {name: found[WARM_UP:] for name, found in seconds.items()},
        "thread_seconds": {name: found[WARM_UP:] for name, found in thread_seconds.items()},
        "thread_step_seconds": {name: _means(found, orders.interval) for name, found in step_seconds.items()},
        "close_s": time.perf_counter() - began,
        "verified": losses["ours"] == losses["none"] and _is_whole(folder / "ours", orders, ways["ours"]),
        "num_bytes": 4 * ways["ours"].num_parameters,
        "num_dropped": hook.num_dropped,
    }
    print(json.dumps(answer), flush=True)
    os._exit(0)


def _means(step_seconds: list[float], interval: int) -> float:
    """Return the mean seconds of a step over an interval, from the medians of saving steps and of other steps."""
    saving = step_seconds[::interval]
    others = [seconds for step, seconds in enumerate(step_seconds) if step % interval]
    return (statistics.median(saving) + (interval - 1) * statistics.median(others)) / interval


def _is_whole(folder: Path, orders: Orders, way: Workload) -> bool:
    """Whether every block has saved every parameter once."""
    trial = debugger.create_trial(folder)
    expected = [block * orders.interval for block in range(orders.pairs + WARM_UP)]
    num_tensors = len(list(way.model.parameters()))
    saved = [name for name in trial.tensor_names() if name.endswith(("weight", "bias"))]
    return (
        trial.steps() == expected
        and len(saved) == num_tensors
        and all(trial.tensor(name).steps() == expected for name in saved)
    )


if __name__ == "__main__":
    main()
