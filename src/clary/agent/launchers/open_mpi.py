"""A real mpirun of Open MPI, where the environment or the machine has one.

Where: `make_context` looks once a job; the mpi launchers choose by what it found. MPICH and Intel MPI are passed over:
their mpirun has other options, and ranks are then started by Clary itself.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

_VERSION = re.compile(r"\((?:Open MPI|OpenRTE)\)\s+(\d+)\.")  # OpenRTE: called by another name than mpirun
_TIMEOUT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class OpenMpi:
    """One mpirun."""

    mpirun: str  # its path
    major: int


def find_open_mpi(environment: Mapping[str, str]) -> OpenMpi | None:
    """Return the mpirun that the program would find in PATH, if it is Open MPI's."""
    mpirun = shutil.which("mpirun", path=environment.get("PATH"))
    if mpirun is None:
        return None
    try:
        done = subprocess.run(
            [mpirun, "--version"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stdout)
    return OpenMpi(mpirun=mpirun, major=int(match[1])) if match else None
