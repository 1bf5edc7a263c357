"""A real mpirun of Open MPI, if the environment or the machine has one.

Where: `make_context` searches on each host of a job with MPI; the mpi launcher depends on the result. MPICH and Intel
MPI are ignored: their mpirun has other options, and then Clary itself starts the ranks. The job sets PATH, may have
installed an mpirun of its own and may set variables that load code into any program, so the query of the version runs
in the host of the job's program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clary.agent.host.sandbox import ProcessSpec

Ask = Callable[[ProcessSpec], str]  # runs a process in the program's host and returns the process's output
_VERSION = re.compile(r"\((?:Open MPI|OpenRTE)\)\s+(\d+)\.")  # OpenRTE: if the command's name is not mpirun
_QUESTION = 'found=$(command -v mpirun) && echo "$found" && exec "$found" --version </dev/null'


@dataclass(frozen=True, kw_only=True)
class OpenMpi:
    """An mpirun of Open MPI."""

    mpirun: str  # path of mpirun
    major: int


def find_open_mpi(environment: Mapping[str, str], *, working_folder: str, ask: Ask) -> OpenMpi | None:
    """Return the mpirun in the program's PATH, or None if it is missing or not Open MPI's.

    Args:
        environment: of the program.
        working_folder: path in the program's view.
        ask: runs the query in the program's host.
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
