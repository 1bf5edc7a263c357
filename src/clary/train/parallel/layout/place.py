"""A process's rank, and its timeout for other ranks, from environment variables; imports no framework.

Where: `runtime` of torch and `tf_parallel.session` read them when a program is initialised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TIMEOUT_VARIABLE = "CLARY_PARALLEL_TIMEOUT_S"
_TIMEOUT_S = 1800.0  # the default of torch.distributed with gloo
_PLACES = (  # variables of launchers: rank, size, local rank, local size
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
)


@dataclass(frozen=True)
class Place:
    """The ranks and sizes of this process, as its launcher set them."""

    rank: int
    size: int
    local_rank: int
    local_size: int


def find_place(environ: Mapping[str, str]) -> Place:
    """Read a process's place from its launcher's variables; without such variables it is the only rank.

    Raises: ValueError naming a variable that is not a number.
    """
    for names in _PLACES:
        if names[0] in environ and names[1] in environ:
            rank, size = (_whole(environ, name) for name in names[:2])
            local_rank = _whole(environ, names[2]) if names[2] in environ else rank
            local_size = _whole(environ, names[3]) if names[3] in environ else size
            return Place(rank, size, local_rank, local_size)
    return Place(0, 1, 0, 1)


def find_timeout_s(environ: Mapping[str, str]) -> float:
    """Return the timeout of a rank's wait for another rank, in seconds.

    Raises: ValueError if CLARY_PARALLEL_TIMEOUT_S is not a positive number.
    """
    text = environ.get(TIMEOUT_VARIABLE, "")
    try:
        timeout_s = float(text or _TIMEOUT_S)
    except ValueError:
        timeout_s = 0.0
    if not timeout_s > 0:
        raise ValueError(f"{TIMEOUT_VARIABLE} is {text!r}; expected seconds, above 0")
    return timeout_s


def _whole(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ValueError(f"{name} is {environ[name]!r}; expected a whole number, as launchers set it") from None
