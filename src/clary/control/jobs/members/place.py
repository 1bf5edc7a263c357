"""Phrases about the place where hosts run, for sentences on members of a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Place:
    """Phrases about the place where hosts run."""

    network: str  # network between hosts of one job
    disk: str  # disk that hosts write to
    trusted: str  # condition under which unencrypted traffic is acceptable
    shared: str  # owner of the network that hosts share if they have no network of their own


HERE = Place(
    network="a network inside of this machine",
    disk="this machine's disk",
    trusted="this machine and its disk are trusted",
    shared="this machine",
)
ON_NODES = Place(
    network="the network between their nodes",
    disk="the disks of their nodes",
    trusted="the nodes, their disks and the network between them are trusted",
    shared="their nodes",
)
