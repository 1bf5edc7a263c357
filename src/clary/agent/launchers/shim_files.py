"""Paths of the files that run inside the program's environment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

SHIMS_FOLDER = str(Path(__file__).parent / "shims")
SHIMS_BIN_FOLDER = f"{SHIMS_FOLDER}/bin"  # first in PATH of the program
GPU_SHIMS_FOLDER = f"{SHIMS_FOLDER}/gpu_bin"  # before it, in hosts with a part of the machine's GPUs
RANK_SHIM = f"{SHIMS_FOLDER}/clary_rank.py"
MPI_SHIM = f"{SHIMS_FOLDER}/clary_mpi.py"
MPI_RSH_SHIM = f"{SHIMS_BIN_FOLDER}/clary-mpi-rsh"
PARAMETER_SERVER_SHIM = f"{SHIMS_FOLDER}/clary_parameter_server.py"
_GPU_DEVICE = re.compile(r"nvidia[0-9]+")


def shims_path(gpu_indices: Sequence[int], *, devices: Path = Path("/dev")) -> str:
    """Return the folders that come first in PATH of the program, separated by colons.

    Args:
        gpu_indices: the host's GPUs; if the machine has more, the first folder's `nvidia-smi -L` lists these alone.
        devices: folder with the machine's devices.
    """
    try:
        num_gpus = sum(_GPU_DEVICE.fullmatch(path.name) is not None for path in devices.iterdir())
    except OSError:
        num_gpus = 0
    if num_gpus > len(gpu_indices):
        return f"{GPU_SHIMS_FOLDER}:{SHIMS_BIN_FOLDER}"
    return SHIMS_BIN_FOLDER
