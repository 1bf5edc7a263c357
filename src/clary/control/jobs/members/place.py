"""Whereabouts of hosts, in the words that sentences on members of a request have for them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Place:
    """The hosts' whereabouts in the words of sentences."""

    network: str  # that hosts of one job talk over
    disk: str  # that hosts write to
    trusted: str  # what must be trusted where traffic is not encrypted
    shared: str  # owner of the network that hosts share if they have none of their own


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
