"""Places of ranks: which ranks see the same folder, and which are on another host. Pure.

Ranks may have a folder a host, a folder that all hosts share, or a folder each; `joining` tests which, since names of
hosts and paths do not show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of one rank."""

    host: str  # the host's own name
    leader: int  # the lowest rank that sees the same folder; it alone renames and removes there


def partners(places: Sequence[Place]) -> list[int | None]:
    """Return, by rank, the holder of its part's copy: a rank of the next host, or None with a single host.

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
