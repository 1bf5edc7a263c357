"""Runner of functions `check_...(rank, size)` on several ranks of TensorFlow, with the variables that torchrun sets.

`functions_on_ranks` starts the ranks, once per session. Run as a script, this file is one rank.
"""

from __future__ import annotations

import faulthandler
import socket
import sys
from functools import cache
from pathlib import Path

import functions_on_ranks
from functions_on_ranks import ROOT, Outcomes, failure_of, load, outcomes_of, require_passed, run_functions

PYTHON = ROOT / ".venvs/tensorflow/bin/python"
_PREFIX = "check_"
_LIMIT_S = 170.0
_OPERATION_LIMIT_S = 20


def names(program: Path) -> list[str]:
    """Return the names of a program's functions, in the order of the file."""
    return functions_on_ranks.names(program, _PREFIX)


@cache
def outcomes(program: Path, size: int, *, is_legacy: bool = False) -> Outcomes:
    """Run a program on `size` ranks; return by function the error of each rank, None if it passed.

    Args:
        is_legacy: whether `tf.keras` is legacy Keras.
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    def environment(rank: int) -> dict[str, str]:
        return {
            "PYTHONPATH": f"{ROOT / 'src/clary/compat'}:{ROOT / 'src'}",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_USE_LEGACY_KERAS": str(int(is_legacy)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(size),
            "CLARY_COLLECTIVE_TIMEOUT_S": str(_OPERATION_LIMIT_S),
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(_OPERATION_LIMIT_S),
        }

    return outcomes_of([str(PYTHON), __file__], program, size, environment, limit_s=_LIMIT_S, prefix=_PREFIX)


def assert_passed(program: Path, name: str, size: int, *, is_legacy: bool = False) -> None:
    """Fail with the error of each rank on which the function failed.

    Args: as for `outcomes`; `name` is the name of the function.
    """
    require_passed(program, name, outcomes(program, size, is_legacy=is_legacy)[name])


def _be_rank(program: Path, rank: int, size: int, folder: Path) -> None:
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(1)  # the smallest pool: one thread must suffice
    tf.config.threading.set_intra_op_parallelism_threads(1)
    faulthandler.dump_traceback_later(_LIMIT_S - 10)
    module = load(program)
    run_functions(
        program, rank, folder, lambda name: failure_of(lambda: getattr(module, name)(rank, size)), prefix=_PREFIX
    )


if __name__ == "__main__":
    _be_rank(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
