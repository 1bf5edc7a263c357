"""Schedule of looks at the memory of a host without a cgroup limit, and the message about an excess. Pure.

Where: `memory_watch` looks. A look, which is one measurement of that memory, is cheap or exact. A cheap look sums the
resident memory of processes, which counts shared pages once per process and so is never too low. Near the limit, an
exact look separates shared pages, which costs a walk through page tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

GIB = 1024**3

ROUGH_SHARE = 0.8  # share of the limit below which the cheap sum suffices
# Faster than two processors fill new pages, so that no host exceeds the limit by much between two looks.
FASTEST_BYTES_PER_S = 8 * GIB
SHORTEST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.5
LONGEST_COST_PAUSE_S = 0.25
PAUSE_PER_COST = 4  # looks use at most a fifth of a processor, unless one takes longer than 60 ms
MAX_NAMED = 4


class ProcessUse(NamedTuple):
    """Memory of one process, or of the files in a host's /dev/shm."""

    pid: int  # 0 for files
    name: str
    rank: int | None
    memory_bytes: int


def needs_exact(rough_bytes: int, limit_bytes: int) -> bool:
    """Whether the cheap sum is so near the limit that an exact look is needed."""
    return rough_bytes > limit_bytes * ROUGH_SHARE


def pause_s(used_bytes: int, limit_bytes: int, *, cost_s: float) -> float:
    """Return the seconds until the next look.

    Args:
        used_bytes: memory at the last look.
        limit_bytes: memory limit of the host.
        cost_s: duration of the last look.
    """
    by_room = max(limit_bytes - used_bytes, 0) / FASTEST_BYTES_PER_S
    by_cost = min(cost_s * PAUSE_PER_COST, LONGEST_COST_PAUSE_S)
    return min(max(by_room, by_cost, SHORTEST_PAUSE_S), LONGEST_PAUSE_S)


def excess_in_words(host: str, used_bytes: int, limit_bytes: int, uses: Sequence[ProcessUse], *, advice: str) -> str:
    """Return the message that a host was ended for exceeding its limit, with its largest processes and advice.

    Args:
        host: name of the host.
        used_bytes: memory at the last look.
        limit_bytes: memory limit of the host.
        uses: in any order; the `MAX_NAMED` largest are named, the others are summed.
        advice: for the user; empty for general advice.
    """
    largest = sorted(uses, key=lambda use: use.memory_bytes, reverse=True)
    named = [_in_words(use) for use in largest[:MAX_NAMED]]
    if rest := largest[MAX_NAMED:]:
        named.append(f"{len(rest)} more with {_gib(sum(use.memory_bytes for use in rest))}")
    return (
        f"{host} used {_gib(used_bytes)}, its memory limit is {_gib(limit_bytes)}, and all its processes were ended: "
        f"{', '.join(named)}; {advice or 'let the program use less of it'}"
    )


def _in_words(use: ProcessUse) -> str:
    which = f" (rank {use.rank})" if use.rank is not None else f" (process {use.pid})" if use.pid else ""
    return f"{use.name}{which} {_gib(use.memory_bytes)}"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.2f} GiB"
