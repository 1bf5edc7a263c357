"""One training process of `bench_checkpoint`: it measures the cost of a save, or a restore on other ranks.

Where: `bench_checkpoint` starts `python -m benchmarks.training.checkpoint_rank JSON_OF_ORDERS`; one line of JSON comes
back.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.fsdp import fully_shard

from benchmarks.training.checkpoint_staged import (
    async_staged_save,
    asynchronous_stager,
    batch_as_long_as,
    is_staged_whole,
    staged_save,
    timed,
)
from clary.train import checkpoint

NUM_LAYERS = 24
MIB = 1024**2
BLOCK_BYTES = 16 * MIB  # of a plain write
SEED = 7


@dataclass(frozen=True, kw_only=True)
class Orders:
    what: str  # cost or reshard
    folder: str  # that ranks share only through us
    store: str
    rank: int = 0
    size: int = 1
    state_mib: int
    samples: int = 1
    restore: int | None = None
    save: int | None = None


def layers(state_mib: int) -> nn.Sequential:
    """Return a model whose parameters, with both moments of Adam, have so many MiB; each layer has small ones too."""
    width = int((state_mib * MIB / 4 / 3 / NUM_LAYERS) ** 0.5)
    torch.manual_seed(SEED)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(NUM_LAYERS)))


def with_moments(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer that has its moments."""
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return optimizer


def cost(orders: Orders) -> dict[str, Any]:
    folder = Path(orders.folder)
    model = layers(orders.state_mib)
    optimizer = with_moments(model)
    tensors = [*model.state_dict().values()]
    tensors += [one for state in optimizer.state.values() for one in state.values()]
    num_bytes = sum(one.nbytes for one in tensors)
    source, target = torch.ones(num_bytes, dtype=torch.uint8), torch.zeros(num_bytes, dtype=torch.uint8)
    keeper = checkpoint.Keeper(folder / "ours", keep=1)
    staged = checkpoint.Keeper(folder / "staged", keep=1, async_staging=True)
    stager = asynchronous_stager()
    target.copy_(source)
    batch = batch_as_long_as(model, timed(lambda: target.copy_(source)))
    ways: dict[str, Callable[[], dict[str, float]]] = {
        "copy": lambda: {"copy_s": timed(lambda: target.copy_(source))},
        "torch.save": lambda: _torch_save(folder, model, optimizer),
        "torch async_save": lambda: _async_save(folder, model, optimizer),
        "ours": lambda: _ours(keeper, {"model": model, "optimizer": optimizer}),
        "ours, copied later": lambda: staged_save(staged, model, optimizer, batch),
        "torch async_save, copied later": lambda: async_staged_save(folder, stager, model, optimizer, batch),
        "write": lambda: {"write_s": _plain_write(folder, source)},
    }
    found: dict[str, list[float]] = {}
    for turn in range(orders.samples + 1):
        for way in list(ways) if turn % 2 == 0 else list(reversed(ways)):
            for key, value in ways[way]().items():
                if turn:  # the first allocates and loads
                    found.setdefault(key, []).append(value)
    keeper.save(3, {"model": model, "optimizer": optimizer})  # the other ways have changed the weights since
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    step = keeper.restore({"model": model, "optimizer": optimizer})
    same = all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    same = same and is_staged_whole(staged, model, optimizer)
    for one in (keeper, staged, stager):
        one.close()
    return {**found, "num_bytes": num_bytes, "batch": batch.size(0), "verified": same and step is not None}


def _ours(keeper: checkpoint.Keeper, state: dict[str, Any]) -> dict[str, float]:
    """Save, then save again and watch how the interpreter runs until it is written."""
    began = time.perf_counter()
    keeper.save(1, state)
    stall_s = time.perf_counter() - began
    keeper.wait()
    whole_s = time.perf_counter() - began
    quiet = _longest_pause(0.2, lambda: False)
    keeper.save(2, state)
    background = keeper._background
    assert background is not None
    busy = _longest_pause(60.0, lambda: background.is_over)
    keeper.wait()
    return {"stall_s": stall_s, "whole_s": whole_s, "quiet_pause_s": quiet, "busy_pause_s": busy}


def _longest_pause(limit_s: float, is_over: Callable[[], bool]) -> float:
    """Return the longest time in which this thread did not run."""
    longest, last = 0.0, time.perf_counter()
    until = last + limit_s
    while last < until and not is_over():
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest


def _torch_save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    path = folder / "torch.pt"
    took_s = timed(lambda: torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path))
    synced_s = took_s + timed(lambda: _sync(path))
    path.unlink()
    return {"torch_save_s": took_s, "torch_save_synced_s": synced_s}


def _async_save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return the seconds for which torch's own asynchronous save stalls the program, and those until it is written."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    writer = dcp.FileSystemWriter(folder / "async", overwrite=True)
    began = time.perf_counter()
    future = dcp.async_save(state, storage_writer=writer)
    stall_s = time.perf_counter() - began
    future.result()
    return {"async_stall_s": stall_s, "async_whole_s": time.perf_counter() - began}


def _plain_write(folder: Path, source: torch.Tensor) -> float:
    """Return how long the same bytes take, written in one row and synced."""
    path, data = folder / "plain", memoryview(source.numpy())

    def write() -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            for start in range(0, len(data), BLOCK_BYTES):
                os.write(handle, data[start : start + BLOCK_BYTES])
            os.fsync(handle)
        finally:
            os.close(handle)

    took_s = timed(write)
    path.unlink()
    return took_s


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def reshard(orders: Orders) -> dict[str, Any]:
    """Restore the checkpoint of other ranks, check its bits, and save; each half of the ranks has its own folder."""
    side = "host-a" if orders.rank < (orders.size + 1) // 2 else "host-b"
    keeper = checkpoint.Keeper(Path(orders.folder) / side, keep=1)
    model = layers(orders.state_mib)
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    fully_shard(model)
    optimizer = with_moments(model)
    state = {"model": model, "optimizer": optimizer}
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), expected, strict=True):
            offset = _own_rows(parameter, value)
            parameter.to_local().copy_(offset if orders.restore is None else torch.zeros_like(offset))
    answer: dict[str, Any] = {"verified": True, "num_bytes": sum(3 * one.nbytes for one in expected)}
    if orders.restore is not None:
        dist.barrier()
        began = time.perf_counter()
        step = keeper.restore(state)
        answer["restore_s"] = time.perf_counter() - began
        answer["verified"] = step == orders.restore and all(
            torch.equal(parameter.full_tensor(), value)
            for parameter, value in zip(model.parameters(), expected, strict=True)
        )
    if orders.save is not None:
        dist.barrier()
        began = time.perf_counter()
        keeper.save(orders.save, state)
        answer["stall_s"] = time.perf_counter() - began
        keeper.wait()
        answer["whole_s"] = time.perf_counter() - began
    keeper.close()
    return answer


def _own_rows(parameter: Any, value: torch.Tensor) -> torch.Tensor:
    rows = value.chunk(dist.get_world_size())
    return rows[dist.get_rank()] if dist.get_rank() < len(rows) else value[:0]


@contextlib.contextmanager
def _group(orders: Orders) -> Iterator[None]:
    store = dist.FileStore(orders.store, orders.size)
    dist.init_process_group("gloo", store=store, rank=orders.rank, world_size=orders.size)
    try:
        yield
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert threading.active_count() == 1
    given = Orders(**json.loads(sys.argv[1]))
    with _group(given):
        told = cost(given) if given.what == "cost" else reshard(given)
    print(json.dumps(told), flush=True)
    os._exit(0)  # torch's own threads may end a process that leaves otherwise with a signal
