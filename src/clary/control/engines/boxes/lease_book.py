"""Assigns boxes to hosts and releases them: all changes of leases are made here, one at a time.

Where: `scheduler` changes leases for the engine, `desk` for the boxes and their owner.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from clary.base.clock import Clock
from clary.contract.box_protocol import BoxReport, LeaseOrder, LeasePhase, LeaseReport, Wish
from clary.control.engines.boxes.ledger import BoxLedger
from clary.control.engines.boxes.placement import BoxState, BoxView, Placement, place
from clary.control.engines.boxes.presence import Presence
from clary.control.engines.boxes.records import AllocationRecord, BoxRecord, LeaseRecord, RequestRecord, kind_of

T = TypeVar("T")

GPUS_LIMIT_S = 120.0  # from a box's addition; a driver without an open client initializes 16 GPUs in 48 s at most
FORGET_AFTER_S = 600.0  # from the end of an allocation until its record is removed
_ID_BYTES = 8


class LeaseBook:
    """Leases of all boxes.

    Args:
        ledger: stores the leases.
        presence: times of the boxes' reports.
        clock: clock for the removal of ended allocations.
    """

    def __init__(self, ledger: BoxLedger, presence: Presence, clock: Clock) -> None:
        self.ledger = ledger
        self.presence = presence
        self._clock = clock
        self._lock = asyncio.Lock()
        self._over_since: dict[str, float] = {}

    async def change(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a change of records exclusively and to its end, even if the caller is cancelled meanwhile."""

        async def alone() -> T:
            async with self._lock:
                return await work()

        return await asyncio.shield(asyncio.ensure_future(alone()))

    # Questions

    def leases_of(self, box: str) -> list[tuple[AllocationRecord, LeaseRecord]]:
        """Return a box's leases that may have processes."""
        found = self.ledger.allocations.values()
        return [(one, lease) for one in found for lease in one.living if lease.box == box]

    def view(self, box: BoxRecord) -> BoxView:
        """Return a box's state for placement."""
        leases = self.leases_of(box.name)
        awaits_gpus = self._awaits_gpus(box)
        return BoxView(
            name=box.name,
            kind=kind_of(box.facts, awaits_gpus=awaits_gpus),
            num_cpus=box.facts.num_cpus,
            memory_bytes=box.facts.memory_bytes,
            num_gpus=len(box.facts.gpus or ()),
            awaits_gpus=awaits_gpus,
            state=self._state(box, is_busy=bool(leases), awaits_gpus=awaits_gpus),
            runs=", ".join(dict.fromkeys(allocation.job_name for allocation, _ in leases)),
        )

    def views(self) -> list[BoxView]:
        """Return the states of all boxes for placement."""
        return [self.view(box) for box in self.ledger.boxes.values()]

    def _awaits_gpus(self, box: BoxRecord) -> bool:
        """Whether a new box has not reported its GPUs yet; after too long a time it counts as a box without GPUs."""
        return box.facts.gpus is None and (self._clock.now() - box.added_at).total_seconds() <= GPUS_LIMIT_S

    def _state(self, box: BoxRecord, *, is_busy: bool, awaits_gpus: bool) -> BoxState:
        if box.is_removed:
            return BoxState.GONE
        if self.presence.is_silent(box.name) or (not is_busy and not self.presence.was_heard(box.name)):
            return BoxState.SILENT
        if box.is_drained:
            return BoxState.DRAINED
        if is_busy:
            return BoxState.BUSY
        return BoxState.UNKNOWN if awaits_gpus else BoxState.READY

    def waiting(self) -> list[RequestRecord]:
        """Return the requests without boxes."""
        return [request for allocation in self.ledger.allocations.values() for request in allocation.requests]

    def placement(self) -> Placement:
        """Decide on all waiting requests by the present state of the boxes."""
        return place(self.waiting(), self.views())

    def waits(self) -> list[str]:
        """Return the reason of each request's wait, with its job; the oldest request first."""
        jobs = {
            request.number: allocation.job_name
            for allocation in self.ledger.allocations.values()
            for request in allocation.requests
        }
        return [f"{jobs[number]} {words}" for number, words in sorted(self.placement().waits.items())]

    def orders_of(self, box: str, boot: str) -> tuple[LeaseOrder, ...]:
        """Return the orders on a box's leases.

        Args:
            box: name of the box.
            boot: digest of the boot that starts hosts.
        """
        return tuple(
            LeaseOrder(
                lease=lease.lease,
                tag=allocation.tag,
                index=lease.index,
                job_name=allocation.job_name,
                boot=boot,
                wish=Wish.END if lease.is_ending else Wish.NOTICE if lease.has_notice else Wish.RUN,
                may_start=bool(lease.proof_digest),
            )
            for allocation, lease in self.leases_of(box)
        )

    def is_lost(self, lease: LeaseRecord) -> bool:
        """Whether the box of a lease no longer reports, or its record was deleted."""
        return lease.box not in self.ledger.boxes or self.presence.is_silent(lease.box)

    # Changes; call them only within `change`

    async def place_waiting(self) -> None:
        """Assign boxes to the requests that fit, and store each allocation in one step."""
        await self._forget_old()
        placed = self.placement().placed
        for allocation in list(self.ledger.allocations.values()):
            chosen = [request for request in allocation.requests if request.number in placed]
            if not chosen:
                continue
            leases = tuple(
                LeaseRecord(lease=f"lease_{secrets.token_hex(_ID_BYTES)}", box=box, index=index)
                for request in chosen
                for index, box in sorted(placed[request.number].items())
            )
            left = tuple(request for request in allocation.requests if request not in chosen)
            await self.ledger.put_allocation(replace(allocation, requests=left, leases=(*allocation.leases, *leases)))
            self._wake(lease.box for lease in leases)

    async def ask(self, allocation: AllocationRecord, hosts: tuple[Any, ...]) -> None:
        """Store another request for hosts; mark the hosts' previous leases to be ended.

        Args:
            allocation: as stored, or new.
            hosts: hosts that neither wait for a box nor hold a usable one.
        """
        indices = {host.index for host in hosts}
        old = [lease for lease in allocation.living if lease.index in indices]
        for lease in old:
            allocation = allocation.with_lease(replace(lease, is_ending=True))
        number = 1 + max((request.number for request in self.waiting()), default=0)
        request = RequestRecord(number=number, hosts=hosts)
        await self.ledger.put_allocation(replace(allocation, requests=(*allocation.requests, request)))
        self._wake(lease.box for lease in old)
        await self.place_waiting()

    async def end(self, tag: str, index: int | None = None) -> None:
        """End one host of an allocation, or the whole allocation, and remove its waiting requests.

        Args:
            tag: tag of the allocation; an unknown tag is ignored.
            index: index of the host; None for the whole allocation.
        """
        allocation = self.ledger.allocations.get(tag)
        if allocation is None:
            return
        ended = replace(allocation, is_ended=allocation.is_ended or index is None)
        requests = []
        for request in allocation.requests:
            hosts = tuple(host for host in request.hosts if index is not None and host.index != index)
            if hosts:
                requests.append(replace(request, hosts=hosts))
        ended = replace(ended, requests=tuple(requests))
        told = [lease for lease in ended.living if index in (None, lease.index)]
        for lease in told:
            ended = ended.with_lease(replace(lease, is_ending=True))
        if ended == allocation:
            return
        await self.ledger.put_allocation(ended)
        self._note_over(ended)
        self._wake(lease.box for lease in told)
        if requests != list(allocation.requests):
            await self.place_waiting()  # later requests may get the boxes that were kept for it

    async def notice(self, box: str) -> None:
        """Send the agents of a drained box a notice."""
        for allocation, lease in self.leases_of(box):
            if not lease.has_notice:
                await self.ledger.put_allocation(allocation.with_lease(replace(lease, has_notice=True)))
        self.presence.change(box)

    async def end_leases_of(self, box: str, why: str) -> None:
        """End all leases on a box that is being removed.

        Args:
            box: name of the box.
            why: the reason as a text.
        """
        for allocation, lease in self.leases_of(box):
            await self.ledger.put_allocation(allocation.with_lease(replace(lease, is_ending=True, why=why)))
        self.presence.change(box)

    async def give_up_leases_of(self, box: str, why: str) -> None:
        """Record all leases on a box as ended, without the box's confirmation.

        Args:
            box: name of the box, which its owner declares permanently lost.
            why: the reason as a text.
        """
        for allocation, lease in self.leases_of(box):
            gone = allocation.with_lease(replace(lease, phase=LeasePhase.GONE, why=why))
            await self.ledger.put_allocation(gone)
            self._note_over(gone)
        self.presence.change(box)

    async def take_report(self, box: str, report: BoxReport) -> None:
        """Store a box's report on its leases."""
        told = {lease.lease: lease for lease in report.leases}
        is_changed = has_room = False
        for allocation, lease in self.leases_of(box):
            now = _after(lease, told.get(lease.lease), box)
            if now == lease:
                continue
            is_changed, has_room = True, has_room or now.is_gone
            changed = allocation.with_lease(now)
            await self.ledger.put_allocation(changed)
            self._note_over(changed)
        if is_changed:
            self.presence.change(box)
        if has_room:
            await self.place_waiting()

    def _wake(self, boxes: Iterable[str]) -> None:
        for box in set(boxes):
            self.presence.change(box)

    def _note_over(self, allocation: AllocationRecord) -> None:
        if allocation.is_over:
            self._over_since.setdefault(allocation.tag, self._clock.monotonic())

    async def _forget_old(self) -> None:
        now_s = self._clock.monotonic()
        for allocation in list(self.ledger.allocations.values()):
            self._note_over(allocation)
            if now_s - self._over_since.get(allocation.tag, now_s) > FORGET_AFTER_S:
                await self.ledger.remove_allocation(allocation.tag)
                self._over_since.pop(allocation.tag, None)


def _after(lease: LeaseRecord, told: LeaseReport | None, box: str) -> LeaseRecord:
    """Return a lease after a report of its box; `told` is None if the report does not contain the lease."""
    if told is None:
        if lease.phase is LeasePhase.PLACED or lease.is_ending:
            return lease  # the box has not received the lease yet, or has not confirmed its end
        return replace(lease, is_ending=True, why=f"the daemon of {box} has no record of it any more")
    if told.phase is LeasePhase.RECORDED and lease.phase is LeasePhase.RECORDED and not lease.is_ending:
        return replace(lease, why=told.why)  # the reason why its host has not started yet
    match told.phase:
        case LeasePhase.PLACED if lease.phase in (LeasePhase.PLACED, LeasePhase.RECORDED) and not lease.is_ending:
            return replace(lease, why=told.why)  # the box cannot read its files at the moment
        case LeasePhase.GONE:
            why = lease.why if lease.is_ending and lease.why else told.why
            return replace(lease, phase=LeasePhase.GONE, why=why)
        case LeasePhase.RECORDED if lease.phase is LeasePhase.PLACED:
            return replace(lease, phase=LeasePhase.RECORDED, proof_digest=told.proof_digest)
        case LeasePhase.RUNNING if lease.phase is not LeasePhase.RUNNING:
            digest = lease.proof_digest or told.proof_digest
            return replace(lease, phase=LeasePhase.RUNNING, proof_digest=digest, why="")
    return lease
