"""Variables of ranks that `clary run` has mpirun start, as a job's launcher would set them.

Where: whatever forms a group without torch reads the environment through this: Horovod, and our collectives for NumPy
and TensorFlow. With torch, `compat.clary_autoload` has set the same variables when torch was imported.
"""

from __future__ import annotations

from collections.abc import Mapping

_MASTER_PORT = "CLARY_RUN_MASTER_PORT"  # of loopback, set by `clary run` for everything that it starts
_OF_MPIRUN = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}


def with_ranks_of_mpirun(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment with torchrun's variables, if it is that of a rank of mpirun under `clary run`.

    Returns: `environ` itself anywhere else, and where a launcher has said the rank; a variable that is set stays so.
    """
    port = environ.get(_MASTER_PORT)
    if not port or "RANK" in environ or not all(name in environ for name in _OF_MPIRUN.values()):
        return environ
    told = {name: environ[source] for name, source in _OF_MPIRUN.items()}
    return {**told, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **environ}
