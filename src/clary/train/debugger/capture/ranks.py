"""The number of this process among the workers that save into one folder or prefix.

Workers that train together have ranks. A job of several hosts may also have a separate training on each host, if the
environment names no rank, or only ranks of this host: then the numbers of workers continue from host to host.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_SIZE_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_SIZE_VARIABLES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_CONFIGURATION_VARIABLE = "SMDEBUG_CONFIG_FILE_PATH"  # path of a file; its folder also has the list of hosts
_CONFIGURATION_FOLDER = "/opt/ml/input/config"
_HOSTS_FILE = "resourceconfig.json"


@dataclass(frozen=True, kw_only=True)
class WorkerPlace:
    """The place of a process among the workers."""

    name: str  # worker_0
    is_chief: bool  # whether it saves if only one worker per training saves
    num_workers: int  # workers of all trainings
    num_trainings: int = 1  # number of trainings, each with a chief


def worker_place() -> WorkerPlace:
    """Return this process's place, from the process group or, before its creation, from the launcher's variables."""
    rank = _from_group("get_rank")
    rank = _from_variables(_RANK_VARIABLES) if rank is None else rank
    size = max(1, _from_group("get_world_size") or _from_variables(_SIZE_VARIABLES) or 1) if rank is not None else 1
    host, num_hosts = _place_of_host()
    if num_hosts > 1 and (rank is None or size < num_hosts or _from_variables(_LOCAL_SIZE_VARIABLES) == size):
        name = f"worker_{host * size + (rank or 0)}"
        return WorkerPlace(name=name, is_chief=not rank, num_workers=size * num_hosts, num_trainings=num_hosts)
    return WorkerPlace(name=f"worker_{rank or 0}", is_chief=not rank, num_workers=size)


def _from_group(question: str) -> int | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(getattr(distributed, question)())


def _from_variables(names: tuple[str, ...]) -> int | None:
    for name in names:
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return None


def _place_of_host() -> tuple[int, int]:
    """Return this host's index among the hosts of the job, and their number; 0 and 1 outside jobs."""
    configuration = os.environ.get(_CONFIGURATION_VARIABLE)
    folder = Path(configuration).parent if configuration else Path(_CONFIGURATION_FOLDER)
    try:
        document = json.loads((folder / _HOSTS_FILE).read_bytes())
        hosts = list(document["hosts"])
        return hosts.index(document["current_host"]), len(hosts)
    except (OSError, ValueError, TypeError, KeyError):
        return 0, 1
