"""The functions without tensor arguments that Horovod has for every framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clary.train.horovod import process_sets as sets
from clary.train.horovod import world
from clary.train.horovod.process_sets import ProcessSet, init


def shutdown() -> None:
    """Leave the group; operations in progress fail on all ranks. A second call does nothing."""
    world.stop()


def is_initialized() -> bool:
    """Whether `init` has formed the group and `shutdown` has not left it."""
    return world.is_started()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begin to write a timeline on rank 0; see `clary.train.horovod.timeline`.

    Args:
        file_path: path on rank 0's host.
        mark_cycles: whether each round of agreement gets a mark.
    """
    world.start_timeline(file_path, marks_cycles=mark_cycles)


def stop_timeline() -> None:
    """End the timeline, if one is written."""
    world.stop_timeline()


def size() -> int:
    """Return the number of ranks."""
    return world.size()


def rank() -> int:
    """Return this process's rank."""
    return world.rank()


def local_size() -> int:
    """Return the number of ranks of this host."""
    return world.layout().local_size


def local_rank() -> int:
    """Return this process's index among the ranks of its host."""
    return world.layout().local_rank


def cross_size() -> int:
    """Return the number of hosts that have a process with this process's local rank."""
    return world.layout().cross_size


def cross_rank() -> int:
    """Return the index of this host among the hosts that have a process with this process's local rank."""
    return world.layout().cross_rank


def is_homogeneous() -> bool:
    """Whether all hosts have the same number of ranks."""
    return world.layout().is_homogeneous


def mpi_threads_supported() -> bool:
    """Whether MPI may be called from several threads: False, as no MPI is used. Raises: ValueError before `init`."""
    world.rank()
    return False


def mpi_enabled() -> bool:
    """Whether operations run over MPI: False."""
    return False


def mpi_built() -> bool:
    """Whether MPI is built in: False."""
    return False


def gloo_enabled() -> bool:
    """Whether operations run without MPI: True. Clary's collectives replace Gloo."""
    return True


def gloo_built() -> bool:
    """Whether operations can run without MPI: True."""
    return True


def nccl_built() -> int:
    """Return the version of NCCL that is built in: always 0, as NCCL is not used."""
    return 0


def ddl_built() -> bool:
    """Whether IBM's DDL is built in: False."""
    return False


def ccl_built() -> bool:
    """Whether Intel's oneCCL is built in: False."""
    return False


def cuda_built() -> bool:
    """Whether operations run on a GPU: False. Tensors on a GPU are sent through memory of the host."""
    return False


def rocm_built() -> bool:
    """Whether operations run on an AMD GPU: False."""
    return False


class HorovodBasics:
    """The functions above as methods, which programs use through `mpi_ops._basics`."""

    init = staticmethod(init)
    shutdown = staticmethod(shutdown)
    is_initialized = staticmethod(is_initialized)
    start_timeline = staticmethod(start_timeline)
    stop_timeline = staticmethod(stop_timeline)
    size = staticmethod(size)
    rank = staticmethod(rank)
    local_size = staticmethod(local_size)
    local_rank = staticmethod(local_rank)
    cross_size = staticmethod(cross_size)
    cross_rank = staticmethod(cross_rank)
    is_homogeneous = staticmethod(is_homogeneous)
    mpi_threads_supported = staticmethod(mpi_threads_supported)
    mpi_enabled = staticmethod(mpi_enabled)
    mpi_built = staticmethod(mpi_built)
    gloo_enabled = staticmethod(gloo_enabled)
    gloo_built = staticmethod(gloo_built)
    nccl_built = staticmethod(nccl_built)
    ddl_built = staticmethod(ddl_built)
    ccl_built = staticmethod(ccl_built)
    cuda_built = staticmethod(cuda_built)
    rocm_built = staticmethod(rocm_built)

    @staticmethod
    def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
        return world.set_ranks()


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Form a process set on all ranks.

    Args: as `clary.train.horovod.process_sets.add_process_set`.
    """
    return sets.add_process_set(process_set)


def check_extension(*_arguments: Any) -> None:
    """Do nothing: this Horovod has no extension that is compiled against a framework."""
