"""Places of ranks: the folder that each rank sees, and its host. Pure.

Ranks may have one folder per host, one folder that all hosts share, or one folder per rank; `joining` tests this with
files, since names of hosts and paths do not show which is the case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of one rank."""

    host: str  # the host's own name
    leader: int  # the lowest rank that sees the same folder; only it renames and removes files there


def partners(places: Sequence[Place]) -> list[int | None]:
    """Return for each rank the rank that holds its part's copy, on the next host; None with a single host.

    Ranks with the same host name and different folders count as separate hosts: two machines may share a name.
    """
    hosts: dict[Place, list[int]] = {}
    for rank, place in enumerate(places):
        hosts.setdefault(place, []).append(rank)
    groups = list(hosts.values())
    found: list[int | None] = [None] * len(places)
    if len(groups) > 1:
        for at, ranks in enumerate(groups):
            holders = groups[(at + 1) % len(groups)]
            for number, rank in enumerate(ranks):
                found[rank] = holders[number % len(holders)]
    return found
