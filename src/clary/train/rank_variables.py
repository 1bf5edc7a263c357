"""Environment variables of ranks that mpirun starts under `clary run`, as a job's launcher would set them.

Where: Horovod, SMP for TensorFlow, and our collectives for NumPy and TensorFlow, which form groups without torch, read
the environment through it. With torch, `compat.clary_autoload` sets the same variables when torch is imported.
"""

from __future__ import annotations

from collections.abc import Mapping

_MASTER_PORT = "CLARY_RUN_MASTER_PORT"  # a port on loopback, which `clary run` sets for all its processes
_OF_MPIRUN = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}


def with_ranks_of_mpirun(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Add torchrun's variables to the environment of a rank of mpirun under `clary run`.

    Returns: a new environment that keeps existing variables; `environ` itself in other processes, or if a launcher has
        set the rank.
    """
    port = environ.get(_MASTER_PORT)
    if not port or "RANK" in environ or not all(name in environ for name in _OF_MPIRUN.values()):
        return environ
    told = {name: environ[source] for name, source in _OF_MPIRUN.items()}
    return {**told, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **environ}
