"""Process sets: ranks that run operations among themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clary.train.horovod import world


class ProcessSet:
    """Ranks that run operations among themselves.

    Args:
        ranks_or_comm: global ranks, in any order, or a communicator of mpi4py with those ranks.

    `process_set_id` is None until `init` or `add_process_set` has registered the set.
    Raises: ValueError for other values of `ranks_or_comm`.
    """

    def __init__(self, ranks_or_comm: Any) -> None:
        self.process_set_id: int | None = None
        self.mpi_comm: Any = None
        self.ranks: list[int] | None = None
        if hasattr(ranks_or_comm, "Get_rank"):
            self.mpi_comm = ranks_or_comm
            return
        try:
            ranks = sorted(ranks_or_comm)
        except TypeError:
            ranks = [None]
        if any(not isinstance(rank, int) for rank in ranks):
            raise ValueError(f"a process set is a list of ranks or a communicator of mpi4py; got {ranks_or_comm!r}")
        self.ranks = ranks

    def size(self) -> int | None:
        """Return the number of ranks in the set; None before the set was added."""
        return None if self.process_set_id is None else len(world.ranks_of(self.process_set_id))

    def rank(self) -> int | None:
        """Return this process's index in the set; None before it was added. Raises: ValueError for a non-member."""
        if self.process_set_id is None:
            return None
        ranks = world.ranks_of(self.process_set_id)
        if world.rank() not in ranks:
            raise ValueError(f"rank {world.rank()} is not in {self}")
        return ranks.index(world.rank())

    def included(self) -> bool | None:
        """Return whether this process is in the set; None if its ranks are not known yet."""
        return None if self.ranks is None else world.rank() in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


global_process_set = ProcessSet([])
global_process_set.process_set_id = world.GLOBAL_SET


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Form the group of all ranks; a second call while it exists only forms `process_sets`.

    Args:
        comm: list or mpi4py communicator of the ranks that form the world; None for all ranks.
        process_sets: sets to form at once; "dynamic" allows `add_process_set` later.

    Raises: ValueError for wrong arguments or variables, or a set given twice; HorovodInternalError naming the ranks
        that did not connect.
    """
    is_dynamic = isinstance(process_sets, str)
    if isinstance(process_sets, str) and process_sets.lower() != "dynamic":
        raise ValueError(f"process_sets is {process_sets!r}; expected a list of ProcessSet, or 'dynamic'")
    asked: list[ProcessSet] = [] if process_sets is None or isinstance(process_sets, str) else list(process_sets)
    world.start(None if comm is None else _ranks_of(comm), allows_new_sets=is_dynamic)
    global_process_set.process_set_id = world.GLOBAL_SET
    global_process_set.ranks = list(world.ranks_of(world.GLOBAL_SET))
    for process_set in asked:
        if process_set.ranks is None:
            process_set.ranks = _ranks_of(process_set.mpi_comm)
        _add(process_set, is_at_start=True)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Form a set. All ranks call this with the same ranks.

    Returns: the set, with its number.
    Raises: ValueError for an existing set, or if `init` has not allowed new ones; NotImplementedError for a
        communicator.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.ranks is None:
        raise NotImplementedError("a set that is added later is a list of ranks, not a communicator")
    _add(process_set, is_at_start=False)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Dissolve a set; return whether it existed. All ranks call this. The global set stays."""
    number = process_set.process_set_id
    if number is None or number == world.GLOBAL_SET:
        return False
    process_set.process_set_id = None
    return world.remove_set(number)


def _add(process_set: ProcessSet, *, is_at_start: bool) -> None:
    number = world.add_set(process_set.ranks or [], is_at_start=is_at_start)
    if number is None:
        raise ValueError(f"a process set of these ranks is there already: {process_set}")
    process_set.process_set_id = number


def _ranks_of(comm: Any) -> list[int]:
    """Return the launcher's ranks: those in a list, or those of the members of a communicator.

    The own numbering of an mpi4py communicator follows from MPI's world instead.
    """
    if hasattr(comm, "Get_rank"):
        return [int(rank) for rank in comm.allgather(world.own_place().rank)]
    ranks = list(comm)
    if any(not isinstance(rank, int) for rank in ranks):
        raise ValueError(f"comm is {comm!r}; expected a list of ranks or a communicator of mpi4py")
    return ranks
