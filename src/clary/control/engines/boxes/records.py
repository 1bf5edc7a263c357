"""Records of boxes, of allocations on boxes and of tokens for joining, with queries on a single record. Pure.

Where: `ledger` stores the records, `lease_book` and `desk` change them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from clary.contract.box_protocol import BoxFacts, LeasePhase
from clary.control.engines.cluster.scheduler import HostWish

GIB = 1024**3


@dataclass(frozen=True, kw_only=True)
class BoxRecord:
    """One box."""

    name: str
    machine: str  # identifies the machine and its user; made by the box
    token_digest: str = field(repr=False)  # SHA-256 in hex; only the box has the token itself
    facts: BoxFacts
    added_at: datetime
    is_drained: bool = False
    is_removed: bool = False  # the record is deleted once the daemon has reported that no process is left
    daemon: str = ""  # SHA-256 of the daemon that reported last
    boot_id: str = ""


@dataclass(frozen=True, kw_only=True)
class LeaseRecord:
    """One host on one box."""

    lease: str
    box: str
    index: int
    phase: LeasePhase = LeasePhase.PLACED
    proof_digest: str = field(default="", repr=False)
    is_ending: bool = False
    has_notice: bool = False  # whether its box was drained while it ran
    why: str = ""  # reason for the end of the lease, or the reason why its host has not started yet

    @property
    def is_gone(self) -> bool:
        """Whether no process of the lease is left."""
        return self.phase is LeasePhase.GONE


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """Hosts that are placed together, or wait together."""

    number: int  # unique over all allocations; the lowest number is the oldest
    hosts: tuple[HostWish, ...]


@dataclass(frozen=True, kw_only=True)
class AllocationRecord:
    """Waiting requests and leases of one tag.

    They are stored as one document, so that the hosts of a request are placed atomically.
    """

    tag: str
    job_name: str
    asked_at: datetime
    requests: tuple[RequestRecord, ...] = ()
    leases: tuple[LeaseRecord, ...] = ()  # in the order in which they were placed
    is_ended: bool = False

    @property
    def living(self) -> tuple[LeaseRecord, ...]:
        """Leases that may have processes."""
        return tuple(lease for lease in self.leases if not lease.is_gone)

    @property
    def is_over(self) -> bool:
        """Whether the allocation was ended and no process is left."""
        return self.is_ended and not self.living

    def newest(self, index: int) -> LeaseRecord | None:
        """Return a host's newest lease, gone or not; None if it never had a box."""
        return next((lease for lease in reversed(self.leases) if lease.index == index), None)

    def with_lease(self, changed: LeaseRecord) -> AllocationRecord:
        """Return the allocation with one lease replaced."""
        leases = tuple(changed if lease.lease == changed.lease else lease for lease in self.leases)
        return replace(self, leases=leases)


@dataclass(frozen=True, kw_only=True)
class JoinTokenRecord:
    """A token that lets one box join by itself, once."""

    token_digest: str = field(repr=False)
    expires_at: datetime


def kind_of(facts: BoxFacts, *, awaits_gpus: bool = False) -> str:
    """Return the name of the kind of a box, the set of boxes with its CPUs, its memory in whole GiB and its GPUs.

    Args:
        facts: of the box; unknown GPUs count as none.
        awaits_gpus: whether the GPUs are unknown, but the box may tell them soon: such boxes are a kind of their own.
    """
    gpus = "-unknown" if awaits_gpus else f"-{len(facts.gpus)}gpu" if facts.gpus else ""
    return f"{facts.num_cpus}cpu-{round(facts.memory_bytes / GIB)}gib{gpus}"
