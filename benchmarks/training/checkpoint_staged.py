"""Saves whose copies are made while the next forward and backward pass run, ours and torch's, of one process.

Where: `checkpoint_rank` takes turns with them among the other ways.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from clary.train import checkpoint


def timed(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def asynchronous_stager() -> DefaultStager:
    """Return torch's own stager that copies on a thread, into memory that it keeps."""
    options = StagingOptions(
        use_pinned_memory=False, use_shared_memory=False, use_async_staging=True, use_non_blocking_copy=False
    )
    return DefaultStager(options)


def forward_backward(model: nn.Module, batch: torch.Tensor) -> None:
    """Run a forward and a backward pass for a batch [samples, features]; only gradients change."""
    model(batch).square().mean().backward()


def batch_as_long_as(model: nn.Module, seconds: float) -> torch.Tensor:
    """Return a batch [samples, features] whose forward and backward pass last at least `seconds`."""
    width, samples = model[0].in_features, 1
    while True:
        batch = torch.randn(samples, width)
        forward_backward(model, batch)
        if min(timed(partial(forward_backward, model, batch)) for _ in range(3)) >= seconds:
            return batch
        samples *= 2


def staged_save(
    keeper: checkpoint.Keeper, model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor
) -> dict[str, float]:
    """Save as a program with async_staging does, and train on: return the waits of the save and of the next step."""
    quiet_s = timed(lambda: forward_backward(model, batch))
    save_s = timed(lambda: keeper.save(1, {"model": model, "optimizer": optimizer}))
    busy_s = timed(lambda: forward_backward(model, batch))
    optimizer.step()
    wait_s = keeper.step_wait_s
    keeper.wait()
    return {
        "staged_stall_s": save_s + wait_s,
        "staged_wait_s": wait_s,
        "pass_s": quiet_s,
        "pass_beside_copy_s": busy_s,
    }


def async_staged_save(
    folder: Path, stager: DefaultStager, model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor
) -> dict[str, float]:
    """Save by torch's async_save with its own asynchronous stager, and train on."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    writer = dcp.FileSystemWriter(folder / "async-staged", overwrite=True)
    began = time.perf_counter()
    response: Any = dcp.async_save(state, storage_writer=writer, async_stager=stager)
    save_s = time.perf_counter() - began
    forward_backward(model, batch)
    wait_s = timed(response.staging_completion.result)
    optimizer.step()
    response.upload_completion.result()
    return {"async_staged_stall_s": save_s + wait_s}


def is_staged_whole(keeper: checkpoint.Keeper, model: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    """Save with late copies, change all weights by a step, and compare the restored weights bit by bit."""
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    keeper.save(9, {"model": model, "optimizer": optimizer})
    optimizer.step()
    changed = any(not torch.equal(*pair) for pair in zip(model.parameters(), expected, strict=True))
    step = keeper.restore({"model": model, "optimizer": optimizer})
    return changed and step == 9 and all(torch.equal(*pair) for pair in zip(model.parameters(), expected, strict=True))
