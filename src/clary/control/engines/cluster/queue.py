"""The interface of engines that may take hours to grant hosts.

Where: `reconcile.granting` requests hosts of waiting jobs through it; `cluster_engine` implements it.
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
    notice_grace_s: float = 0.0  # seconds from the engine's SIGTERM to an agent to its SIGKILL; 0: unknown, or no kill


class Queue(Protocol):
    """An engine that may take hours to grant hosts.

    A waiting job requests hosts under the name of a pool, and gets its attempt when they are granted. Raises:
    EngineError from every method.
    """

    async def ask(self, order: AllocationOrder) -> None:
        """Request the hosts of a pool that have no living member; return at once. May be called again.

        Raises: AllocationEnded if the pool was ended, and its name is not used again.
        """

    async def grant(self, tag: str, num_hosts: int) -> Grant:
        """Return whether the hosts of a pool were granted, or why they wait."""

    async def wanted(self, tags: Sequence[str]) -> Mapping[str, str]:
        """Return tag -> the job that waits for its nodes, as a text, for the first pool that should be ended for it.

        Args:
            tags: pools whose hosts no job uses, the longest unused first.
        """
