"""Which worker this process is among those that train together."""

from __future__ import annotations

import os
import sys

CHIEF = "worker_0"
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_SIZE_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def worker_name() -> str:
    """Return `worker_RANK`: of the process group, or before there is one, of the launcher; 0 of one alone."""
    return f"worker_{_from_group('get_rank', _from_variables(_RANK_VARIABLES, 0))}"


def num_workers() -> int:
    """Return how many train together, from the same places."""
    return max(1, _from_group("get_world_size", _from_variables(_SIZE_VARIABLES, 1)))


def _from_group(question: str, otherwise: int) -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return otherwise
    return int(getattr(distributed, question)())


def _from_variables(names: tuple[str, ...], otherwise: int) -> int:
    for name in names:
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return otherwise
