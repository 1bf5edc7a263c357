"""A real mpirun of Open MPI, where the environment or the machine has one.

Where: `make_context` searches once per job; the mpi launchers choose by the result. MPICH and Intel MPI are ignored:
their mpirun has other options, and ranks are then started by Clary itself. The job chooses PATH, may have installed an
mpirun of its own and may have variables that load code into any program, so the question runs in the host of the job's
program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clary.agent.host.sandbox import ProcessSpec

Ask = Callable[[ProcessSpec], str]  # runs a process in the program's host, and returns its output
_VERSION = re.compile(r"\((?:Open MPI|OpenRTE)\)\s+(\d+)\.")  # OpenRTE: if called by another name than mpirun
_QUESTION = 'found=$(command -v mpirun) && echo "$found" && exec "$found" --version </dev/null'


@dataclass(frozen=True, kw_only=True)
class OpenMpi:
    """One mpirun."""

    mpirun: str  # its path
    major: int


def find_open_mpi(environment: Mapping[str, str], *, working_folder: str, ask: Ask) -> OpenMpi | None:
    """Return the mpirun that the program would find in PATH, or None if it is not Open MPI's.

    Args:
        environment: of the program.
        working_folder: as the program sees it.
        ask: runs the question in the program's host.
    """
    question = ProcessSpec(
        argv=("/bin/sh", "-c", _QUESTION),
        environment=dict(environment),
        working_folder=working_folder,
        rank=None,
        local_rank=0,
    )
    mpirun, _, words = ask(question).partition("\n")
    match = _VERSION.search(words)
    return OpenMpi(mpirun=mpirun, major=int(match[1])) if match and mpirun.startswith("/") else None
