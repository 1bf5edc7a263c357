"""Checkpoints that hardly delay training.

They are copied to host memory, written in the background, and restored by any number of ranks.

    from clary.train import checkpoint

    keeper = checkpoint.Keeper("/opt/ml/checkpoints", keep=2)
    step = keeper.restore({"model": model, "optimizer": optimizer})
    keeper.save(step, {"model": model, "optimizer": optimizer})

Where: docs/training-checkpoints.md has a whole program. torch is imported only when a Keeper is first used.

errors, parts, folders, places, stop_notice    standard library only: files, folders and the places of ranks
ranks, plans, states, filling                  torch: the ranks' shares, models by names
snapshot, staging                              torch: the copy in host memory, and copies made after `save` returns
joining, peers, reading, restoring, saving     steps that all ranks take together
keeper                                         the interface for programs
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clary.train.checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from clary.train.checkpoint.keeper import Keeper

__all__ = ["CheckpointError", "Keeper"]


def __getattr__(name: str) -> Any:
    if name == "Keeper":
        # imported late: saves 1073 ms, mostly of torch, in programs that only read checkpoint sets
        from clary.train.checkpoint.keeper import Keeper

        return Keeper
    raise AttributeError(f"module {__name__} has no attribute {name!r}")
