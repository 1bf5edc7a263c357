"""Which rank this process is, as far as its profile is concerned."""

from __future__ import annotations

import multiprocessing
import os
import sys

_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def own_rank() -> int:
    """Return the rank: of the process group, or before there is one, of the launcher; 0 of one alone."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return next((int(text) for name in _RANK_VARIABLES if (text := os.environ.get(name, "")).isdigit()), 0)


def may_be_rank() -> bool:
    """Whether a process that no step was seen of can be a rank: no worker of a data loader, no launcher of ranks."""
    is_launcher = "torch.distributed.launcher.api" in sys.modules and "RANK" not in os.environ
    return multiprocessing.parent_process() is None and not is_launcher
