"""An engine with a queue and without hosts: a test decides which jobs get hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clary.control.engines.cluster.queue import Grant
from clary.control.engines.cluster.scheduler import AllocationEnded, AllocationOrder, NodeKind
from clary.control.engines.interface import HeldAttempt, Released
from clary.testing.fake_engine import GIB, FakeEngine

NODES = NodeKind(
    name="cpu", num_cpus=8, memory_bytes=64 * GIB, num_gpus=0, num_nodes=4, num_free=4, maps_to="partition cpu"
)


class FakeQueueEngine(FakeEngine):
    """Lets every job wait until a test puts its pool into `granted`.

    A test puts exceptions into `ask_errors`; each is raised once, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kinds = [NODES]
        self.words = "Slurm job 4711 waits: Resources (3 of 4 nodes are free)"
        self.granted: set[str] = set()  # tags
        self.asked: dict[str, AllocationOrder] = {}  # tag -> the last allocation order
        self.num_asked = 0
        self.ask_errors: list[Exception] = []
        self.wanted_by: dict[str, str] = {}  # tag -> the job that waits for its nodes
        self.ended: set[str] = set()  # tags; as on boxes, no hosts are requested under them again

    async def ask(self, order: AllocationOrder) -> None:
        """Record an allocation order. Raises: the next of `ask_errors`; AllocationEnded for an ended tag."""
        self.num_asked += 1
        if self.ask_errors:
            raise self.ask_errors.pop(0)
        if order.tag in self.ended:
            raise AllocationEnded(f"the hosts of {order.tag} were given back")
        self.asked[order.tag] = order

    async def grant(self, tag: str, num_hosts: int) -> Grant:
        """Return whether the test has granted the pool."""
        if tag not in self.granted:
            return Grant(is_granted=False, words=self.words)
        return Grant(is_granted=True, words=f"{num_hosts} hosts were granted: n1 n2", notice_grace_s=30.0)

    async def wanted(self, tags: Sequence[str]) -> Mapping[str, str]:
        """Return the first of these pools with an entry in `wanted_by`, and that entry."""
        return {tag: self.wanted_by[tag] for tag in [one for one in tags if one in self.wanted_by][:1]}

    async def end(self, pool: str) -> Released:
        """Forget the pool's order."""
        self.ended.add(pool)
        self.asked.pop(pool, None)
        self.granted.discard(pool)
        return await super().end(pool)

    async def unreleased(self) -> list[HeldAttempt]:
        """Return the pools whose nodes were requested."""
        return [HeldAttempt(name=tag, attempt=1) for tag in self.asked]
