"""Runs test functions on several ranks of a TensorFlow program, with the variables that the mpi launcher sets."""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import time
from functools import cache
from pathlib import Path

from functions_on_ranks import ROOT, Outcomes, failure_of, load, names, outcomes_of, require_passed, run_functions

__all__ = ["assert_passed", "names", "outcomes"]
PYTHON = ROOT / ".venvs/tensorflow/bin/python"
_MEETING_LIMIT_S = 60  # for a rank that is delayed by a busy machine or by the cleanup of the previous function
_STUCK_S = 100  # after this time the stacks of all threads are logged repeatedly


@cache
def outcomes(program: Path, size: int, limit_s: float = 400.0, **variables: str) -> Outcomes:
    """Run a program on `size` ranks; return, for each function, the error of each rank, or None where it passed."""

    def environment(rank: int) -> dict[str, str]:
        return {
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'src/clary/compat'}:{program.parent}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "MASTER_ADDR": "127.0.0.1",
            "CLARY_PARALLEL_TIMEOUT_S": "60",
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": str(size),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(size),
            **variables,
        }

    return outcomes_of([str(PYTHON), __file__], program, size, environment, limit_s=limit_s)


def assert_passed(program: Path, name: str, size: int, **variables: str) -> None:
    """Fail with the errors of the ranks on which the function failed."""
    require_passed(program, name, outcomes(program, size, **variables)[name])


def _be_rank(program: Path, rank: int, size: int, folder: Path) -> None:
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(4)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    module = load(program)
    faulthandler.dump_traceback_later(_STUCK_S, repeat=True)

    def run(name: str) -> str | None:
        os.environ["MASTER_PORT"] = _meet(folder, name, rank, size)
        try:
            return failure_of(lambda: getattr(module, name)(rank, size))
        finally:
            module.smp.shutdown()

    run_functions(program, rank, folder, run)
    os._exit(0)


def _meet(folder: Path, name: str, rank: int, size: int) -> str:
    """Wait until all ranks have reached a function; return a free port, which rank 0 chooses."""
    if rank == 0:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            (folder / f"port-{name}.new").write_text(str(listener.getsockname()[1]))
            (folder / f"port-{name}.new").rename(folder / f"port-{name}")
    (folder / f"at-{name}-{rank}").touch()
    deadline = time.monotonic() + _MEETING_LIMIT_S
    while not all((folder / f"at-{name}-{other}").exists() for other in range(size)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank {rank}: not all ranks came to {name} in {_MEETING_LIMIT_S} s")
        time.sleep(0.01)
    return (folder / f"port-{name}").read_text()


if __name__ == "__main__":
    _be_rank(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
