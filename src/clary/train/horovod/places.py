"""A process's rank and the number of ranks, from the environment variables of its launcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Horovod's launchers; Open MPI; torchrun and Clary; MPICH and Intel MPI. The first complete pair counts.
_RANKS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
_STORE_ADDRESSES = ("CLARY_HOROVOD_ADDR", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "MASTER_ADDR")
_STORE_PORT = "CLARY_HOROVOD_PORT"
_MASTER_PORT = "MASTER_PORT"
_PORTS_AFTER_MASTER = 2  # torchrun's store may use MASTER_PORT itself, and the NumPy adapter's store MASTER_PORT + 1


@dataclass(frozen=True)
class Place:
    """A process's place among all ranks.

    Args:
        address, port: address of the store on rank 0's host; "" and 0 with a single rank.
    """

    rank: int = 0
    size: int = 1
    address: str = ""
    port: int = 0


@dataclass(frozen=True)
class Layout:
    """A rank's place among hosts.

    Args:
        cross_rank, cross_size: index of its host among the hosts that have a rank with the same local rank, and number
            of those hosts.
        is_homogeneous: whether all hosts have the same number of ranks.
    """

    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    is_homogeneous: bool


def place_from(environ: Mapping[str, str]) -> Place:
    """Read the place from variables; a process without a launcher is rank 0 of 1.

    Raises: ValueError naming the variable that is missing or wrong.
    """
    rank, size = _pair(environ, _RANKS) or (0, 1)
    if size == 1:
        return Place(rank, size)
    address = next((environ[name] for name in _STORE_ADDRESSES if environ.get(name)), "")
    if not address:
        raise ValueError(
            f"rank {rank} of {size} does not know where rank 0 is: set MASTER_ADDR and MASTER_PORT, or start the "
            "program by a job, clary run, torchrun or horovodrun"
        )
    return Place(rank, size, address, _port(environ))


def layout_of(hosts: Sequence[object], rank: int) -> Layout:
    """Return a rank's place among hosts.

    Args:
        hosts: identity of each rank's host, by rank.
        rank: the rank to lay out.
    """
    locals_of: dict[object, list[int]] = {}
    for one, host in enumerate(hosts):
        locals_of.setdefault(host, []).append(one)
    mine = locals_of[hosts[rank]]
    local_rank = mine.index(rank)
    peers = [host for host, members in locals_of.items() if len(members) > local_rank]
    return Layout(
        local_rank=local_rank,
        local_size=len(mine),
        cross_rank=peers.index(hosts[rank]),
        cross_size=len(peers),
        is_homogeneous=len({len(members) for members in locals_of.values()}) == 1,
    )


def _pair(environ: Mapping[str, str], names: Sequence[tuple[str, str]]) -> tuple[int, int] | None:
    for index_name, size_name in names:
        if environ.get(index_name, "").strip() and environ.get(size_name, "").strip():
            index, size = _number(environ, index_name), _number(environ, size_name)
            if not index < size:
                raise ValueError(f"{index_name} is {index}; expected less than {size_name}, {size}")
            return index, size
    return None


def _port(environ: Mapping[str, str]) -> int:
    if environ.get(_STORE_PORT, "").strip():
        return _number(environ, _STORE_PORT)
    if not environ.get(_MASTER_PORT, "").strip():
        raise ValueError(f"{_MASTER_PORT} is not set: set it to a free port of rank 0's host, or {_STORE_PORT}")
    return _number(environ, _MASTER_PORT) + _PORTS_AFTER_MASTER


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name].strip()
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{name} is {text!r}; expected a whole number, 0 or more")
    return int(text)
