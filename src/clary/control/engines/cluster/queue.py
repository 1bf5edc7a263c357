"""The interface of engines that may take hours to grant hosts.

Where: `reconcile.granting` asks it for hosts of jobs that wait; `cluster_engine` fills it in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from clary.control.engines.cluster.scheduler import AllocationOrder


@dataclass(frozen=True, kw_only=True)
class Grant:
    """Answer of an engine with a queue."""

    is_granted: bool
    words: str  # why the job waits, or which hosts were granted
    notice_grace_s: float = 0.0  # from the engine's SIGTERM to an agent to its end; 0: not known


class Queue(Protocol):
    """An engine that may take hours to grant hosts.

    A job asks for hosts under the name of a pool while it waits, and gets its attempt when they are granted. Raises:
    EngineError from every method.
    """

    async def ask(self, order: AllocationOrder) -> None:
        """Ask for the hosts of a pool that have no living member; returns at once, and may be called again."""

    async def grant(self, tag: str, num_hosts: int) -> Grant:
        """Return whether the hosts of a pool were granted, or why they wait."""

    async def wanted(self, tags: Sequence[str]) -> Mapping[str, str]:
        """Return tag -> the job that waits for its nodes, in words; for the first pool that should give way.

        Args:
            tags: pools whose hosts no job uses, the longest unused first.
        """
