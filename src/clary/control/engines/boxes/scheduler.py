"""The `ClusterScheduler` for boxes: hosts are leases of whole boxes.

Where: `cluster_engine` calls it; the routes of the service pass requests of boxes and their owner to its `desk`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC
from pathlib import Path

from clary.base.clock import Clock
from clary.contract.box_protocol import LeasePhase
from clary.control.attentive_clock import AttentiveClock
from clary.control.engines.boxes.desk import BoxDesk
from clary.control.engines.boxes.lease_book import LeaseBook
from clary.control.engines.boxes.ledger import BoxLedger
from clary.control.engines.boxes.placement import BoxState, gives_way
from clary.control.engines.boxes.presence import SILENCE_S, Presence
from clary.control.engines.boxes.records import AllocationRecord, LeaseRecord
from clary.control.engines.cluster.scheduler import (
    Allocation,
    AllocationEnded,
    AllocationOrder,
    AllocationState,
    Boot,
    Ended,
    Member,
    NodeKind,
    Notice,
    NoticeKind,
)

# longest wait for a box's report that no process is left; a box receives its order and kills its processes within 1 s
END_WAIT_S = 3.0


class BoxesScheduler:
    """Leases of boxes, stored below a folder.

    Args:
        folder: `<state folder>/boxes`.
        clock: clock for the expiry of tokens and of records.
        end_wait_s: longest time that `end_host` waits until the end of the host is certain.
        attentive: measures the silence of boxes, shared with the gateways of agents; None for a clock of its own.
    """

    name = "boxes"

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        *,
        end_wait_s: float = END_WAIT_S,
        attentive: AttentiveClock | None = None,
    ) -> None:
        self._clock = clock
        attentive = attentive or AttentiveClock(clock)
        self._presence = Presence(attentive)
        self._ledger = BoxLedger(folder)
        self._book = LeaseBook(self._ledger, self._presence, clock)
        self._end_wait_s = end_wait_s
        self.desk = BoxDesk(self._book, clock)
        attentive.add_user(counts=self._has_leases, begin=self._presence.begin)

    async def start(self, boot: Boot) -> None:
        """Read all records, then accept reports of boxes. Raises: EngineError naming a file that cannot be read."""
        await self._ledger.load()
        self._presence.begin()
        self.desk.open(boot)
        await self._book.change(self._book.place_waiting)

    def _has_leases(self) -> bool:
        """Whether a host is lost if its box is silent."""
        return any(allocation.living for allocation in self._ledger.allocations.values())

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return nothing: no setting names boxes."""
        return ()

    async def close(self) -> None:
        """Answer boxes that wait for orders; leases keep running."""
        self.desk.close()

    async def capacity(self) -> list[NodeKind]:
        """Return the kinds of boxes, the smallest first."""
        kinds = defaultdict(list)
        for view in self._book.views():
            if view.state is not BoxState.GONE:
                kinds[view.kind].append(view)
        isolation = {box.name: box.facts.isolation for box in self._ledger.boxes.values()}
        return [
            NodeKind(
                name=kind,
                num_cpus=min(view.num_cpus for view in views),
                memory_bytes=min(view.memory_bytes for view in views),
                num_gpus=min(view.num_gpus for view in views),
                num_nodes=len(views),
                num_free=sum(view.state is BoxState.READY for view in views),
                maps_to=f"boxes {', '.join(sorted(view.name for view in views))}",
                isolation="; ".join(sorted({isolation[view.name] for view in views})),
                out_of_use=", ".join(
                    sorted(view.words for view in views if view.state in (BoxState.DRAINED, BoxState.SILENT))
                ),
                why_unsure=", ".join(sorted(view.words for view in views if view.awaits_gpus)),
            )
            for kind, views in sorted(kinds.items(), key=lambda item: min(view.size for view in item[1]))
        ]

    async def ask(self, order: AllocationOrder) -> None:
        """Request the order's hosts that neither await nor hold a usable box; the request is stored on return.

        Raises: AllocationEnded for a tag that was ended; a retryable EngineError if the order could not be stored.
        """
        await self._book.change(lambda: self._ask(order))

    async def _ask(self, order: AllocationOrder) -> None:
        allocation = self._ledger.allocations.get(order.tag)
        if allocation is None:
            now = self._clock.now().astimezone(UTC)
            allocation = AllocationRecord(tag=order.tag, job_name=order.job_name, asked_at=now)
        if allocation.is_ended:
            raise AllocationEnded(f"the hosts of {order.tag} were given back; boxes are asked for under a new tag")
        waiting = {host.index for request in allocation.requests for host in request.hosts}
        missing = tuple(
            host for host in order.hosts if host.index not in waiting and not self._is_held(allocation, host.index)
        )
        if missing:
            await self._book.ask(allocation, missing)

    def _is_held(self, allocation: AllocationRecord, index: int) -> bool:
        lease = allocation.newest(index)
        return lease is not None and not lease.is_gone and not lease.is_ending and not self._book.is_lost(lease)

    async def allocations(self) -> Mapping[str, Allocation]:
        """Return tag -> allocation, also for some minutes after its end."""
        waits = self._book.placement().waits
        return {tag: self._told(record, waits) for tag, record in self._ledger.allocations.items()}

    def _told(self, record: AllocationRecord, waits: Mapping[int, str]) -> Allocation:
        waiting = {host.index for request in record.requests for host in request.hosts}
        newest = {lease.index: lease for lease in record.leases if lease.index not in waiting}
        members = {index: self._member(lease) for index, lease in sorted(newest.items())}
        state, reason = AllocationState.GRANTED, ""
        starting = [lease for lease in newest.values() if lease.phase in (LeasePhase.PLACED, LeasePhase.RECORDED)]
        if record.is_over:
            state, reason = AllocationState.GONE, "nothing is left on its boxes"
        elif record.is_ended:
            left = [lease.box for lease in record.living]
            silent = [box for box in left if self._presence.is_silent(box)]
            why = f"; {', '.join(silent)} not heard of" if silent else ""
            state, reason = AllocationState.ENDING, f"is being ended on {', '.join(left)}{why}"
        elif record.requests:
            words = [waits.get(request.number, "waits for boxes") for request in record.requests]
            state, reason = AllocationState.PENDING, "; ".join(words)
        elif starting:
            late = ", ".join(sorted(lease.box for lease in starting))
            why = next((f": {lease.why}" for lease in starting if lease.why), "")
            state, reason = AllocationState.PENDING, f"{late} did not start its host yet{why}"
        return Allocation(state=state, reason=reason, members=members, asked_at=record.asked_at)

    def _member(self, lease: LeaseRecord) -> Member:
        drained = Notice(kind=NoticeKind.DRAINED, why=f"{lease.box} was drained by its owner")
        why = self._why_dead(lease)
        return Member(
            node=lease.box,
            is_alive=not why,
            why_dead=why,
            notice=drained if lease.has_notice and not lease.is_gone else None,
        )

    def _why_dead(self, lease: LeaseRecord) -> str:
        if lease.is_gone:
            return lease.why or f"its agent on {lease.box} has ended"
        if lease.box not in self._ledger.boxes:
            return f"{lease.box} was removed"
        if self._presence.is_silent(lease.box):
            return f"{lease.box} has not been heard of for {max(SILENCE_S, self._presence.silent_s(lease.box)):.0f} s"
        return ""

    async def wanted(self, tags: Sequence[str]) -> Mapping[str, str]:
        """Return tag -> the job that could use its boxes, for the first such tag."""
        kept = {tag: self._boxes_of(tag) for tag in tags}
        found = gives_way(self._book.waiting(), self._book.views(), kept)
        if found is None:
            return {}
        tag, number = found
        numbers = {one.number: record for record in self._ledger.allocations.values() for one in record.requests}
        return {tag: f"job {numbers[number].job_name} waits for a box"}

    def _boxes_of(self, tag: str) -> list[str]:
        record = self._ledger.allocations.get(tag)
        return [lease.box for lease in record.living if not lease.is_ending] if record is not None else []

    async def end_host(self, tag: str, index: int) -> Ended:
        """End one host; wait a moment for the report that no process of it is left."""
        await self._book.change(lambda: self._book.end(tag, index))
        deadline_s = asyncio.get_running_loop().time() + self._end_wait_s
        while (ended := self._ended(tag, index)) is Ended.ASKED_FOR:
            left_s = deadline_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                break
            await self._presence.wait_for_any(left_s)
        return ended

    async def end(self, tag: str) -> Ended:
        """End an allocation; `allocations` shows when it has ended."""
        await self._book.change(lambda: self._book.end(tag))
        return self._ended(tag, None)

    def _ended(self, tag: str, index: int | None) -> Ended:
        allocation = self._ledger.allocations.get(tag)
        left = [lease for lease in allocation.living if index in (None, lease.index)] if allocation else []
        if not left:
            return Ended.CERTAIN
        return Ended.OUT_OF_REACH if any(map(self._book.is_lost, left)) else Ended.ASKED_FOR

    def why_not_proved(self, tag: str, index: int, proof: str) -> str:
        """Return the reason why a boot's token is not accepted; empty if it is.

        Args:
            tag: tag that the boot names.
            index: index that the boot names.
            proof: token that the box made for the boot.
        """
        allocation = self._ledger.allocations.get(tag)
        lease = allocation.newest(index) if allocation is not None else None
        if lease is None or lease.is_gone or lease.is_ending:
            return f"no box has a lease of host {index} of {tag}"
        digest = hashlib.sha256(proof.encode(errors="replace")).hexdigest()
        if not lease.proof_digest or not hmac.compare_digest(digest, lease.proof_digest):
            return f"the proof is not the one that {lease.box} made for host {index} of {tag}"
        return ""
