"""Paths of the files that run inside the program's environment."""

from __future__ import annotations

from pathlib import Path

SHIMS_FOLDER = str(Path(__file__).parent / "shims")
SHIMS_BIN_FOLDER = f"{SHIMS_FOLDER}/bin"  # first in PATH of the program
RANK_SHIM = f"{SHIMS_FOLDER}/clary_rank.py"
MPI_SHIM = f"{SHIMS_FOLDER}/clary_mpi.py"
MPI_RSH_SHIM = f"{SHIMS_BIN_FOLDER}/clary-mpi-rsh"
PARAMETER_SERVER_SHIM = f"{SHIMS_FOLDER}/clary_parameter_server.py"
