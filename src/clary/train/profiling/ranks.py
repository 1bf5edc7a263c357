"""The rank of this process, for its profile."""

from __future__ import annotations

import multiprocessing
import os
import sys

_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def own_rank() -> int:
    """Return the rank in the process group or, without a group, the launcher's; 0 without either."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return next((int(text) for name in _RANK_VARIABLES if (text := os.environ.get(name, "")).isdigit()), 0)


def may_be_rank() -> bool:
    """Return whether this process, without a step yet, may be a rank: no data loader's worker, no launcher of ranks."""
    is_launcher = "torch.distributed.launcher.api" in sys.modules and "RANK" not in os.environ
    return multiprocessing.parent_process() is None and not is_launcher
