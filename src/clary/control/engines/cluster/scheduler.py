"""The interface for requesting hosts from a cluster's scheduler, implemented for Slurm and boxes.

Where: `cluster_engine` calls it. A scheduler starts one boot per host and ends it; the boot is a process that becomes
the host's agent. Boots report addresses, processors, memory and GPUs themselves when they enrol. Every method may be
called again with the same arguments, also after a crash of the service.

A *tag* names an allocation: it is the pool that the hosts belong to (`pool_0123456789ab`). A *kind* is a set of nodes
with the same resources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from clary.base.errors import EngineError
from clary.base.string_enum import StrEnum


class AllocationEnded(EngineError):
    """A request under the tag of an allocation that was ended; hosts are requested under a new tag."""


class AllocationState(StrEnum):
    """State of an allocation."""

    PENDING = "pending"  # the allocation waits in the scheduler's queue, or one of its hosts has no node
    GRANTED = "granted"  # every host has a node, on which its boot was started
    ENDING = "ending"  # the end was ordered, or the scheduler reclaims the nodes: see the members' notices
    GONE = "gone"  # no host of the allocation is left


class Ended(StrEnum):
    """Certainty of a host's end."""

    CERTAIN = "certain"  # no process of the host is left
    ASKED_FOR = "asked for"  # the scheduler has received the order
    OUT_OF_REACH = "out of reach"  # the node does not answer; the host may still run


class NoticeKind(StrEnum):
    """Reason why capacity is reclaimed."""

    RECLAIMED = "reclaimed"  # preempted for another job
    DRAINED = "drained"  # the node is being drained
    TIME_LIMIT = "time limit"
    CANCELLED = "cancelled"  # by a person, not by Clary


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Announcement that capacity ends."""

    kind: NoticeKind
    why: str  # in words, such as "Slurm job 4711 was preempted"
    ends_at: datetime | None = None  # aware, UTC; None if unknown


@dataclass(frozen=True, kw_only=True)
class Member:
    """One host of an allocation."""

    node: str  # the scheduler's name of the node
    is_alive: bool  # whether the boot, or the agent that it became, may run, even if not observed yet
    why_dead: str = ""  # text on the cause, as far as the scheduler knows
    notice: Notice | None = None


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A scheduler's knowledge of one tag."""

    state: AllocationState
    reason: str = ""  # reason of a wait or an end, as given by the scheduler: "Slurm job 4711 waits: Resources"
    members: Mapping[int, Member] = field(default_factory=dict)  # index of the host -> host; missing: has no node yet
    asked_at: datetime | None = None  # aware, UTC; None if unknown
    notice_grace_s: float = 0.0  # seconds from SIGTERM to SIGKILL of reclaimed hosts; 0: unknown, or no kill


@dataclass(frozen=True, kw_only=True)
class HostWish:
    """One requested host, with the resources that it needs."""

    index: int  # 0 for algo-1
    kind: str  # NodeKind.name; "" lets the scheduler choose
    num_cpus: int
    memory_bytes: int | None
    num_gpus: int


@dataclass(frozen=True, kw_only=True)
class AllocationOrder:
    """All hosts of one pool."""

    tag: str
    job_name: str  # shown in the scheduler's own lists
    hosts: tuple[HostWish, ...]
    # seconds after which the scheduler may end the allocation; covers run time, grace period and upload of results
    limit_s: int
    grace_s: float  # seconds that programs are promised between a notice and their end
    is_spot: bool = False  # whether other jobs may preempt it


@dataclass(frozen=True, kw_only=True)
class NodeKind:
    """Nodes with the same resources."""

    name: str  # unique, short
    num_cpus: int
    memory_bytes: int
    num_gpus: int
    num_nodes: int  # nodes that could ever run a host
    num_free: int
    maps_to: str  # as the scheduler names it: "partition gpu, constraint a100, gres gpu:8"
    instance_types: tuple[str, ...] = ()  # types that settings map to it
    isolation: str = ""  # in words; empty if unknown before a boot runs there
    # why its GPUs are not known yet, in words: jobs that could want them wait, for a limited time; empty: known
    why_unsure: str = ""
    nodes: tuple[str, ...] = ()  # names, where a node may be of several kinds; see `node_kinds.counts`
    out_of_use: str = ""  # nodes that get no job although they are not busy, with their states, in words


@dataclass(frozen=True, kw_only=True)
class Boot:
    """Script, address and certificate with which a host's boot process is started; the same for all hosts.

    Command on the node: PYTHON BOOT_FILE --service URL --ca CA_FILE --tag TAG --index INDEX --proof PROOF --scratch
    FOLDER. PROOF is `munge`, or `file:PATH` of a file of mode 0600 that holds a token.
    """

    script: str  # source text of the boot, for Python 3.10 and its standard library
    service_url: str  # https://HOST:PORT
    ca_pem: str  # certificate of the private authority that signed the service's; not secret


class ClusterScheduler(Protocol):
    """A source of hosts on other machines.

    Raises: EngineError from every method; its message names the program, the problem and the remedy. `retryable` is set
        if the same call can succeed later.
    """

    @property
    def name(self) -> str:
        """Name for users: slurm or boxes."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences on settings that the nodes of the last `capacity` do not bear out."""

    async def start(self, boot: Boot) -> None:
        """Find the scheduler's programs and begin to follow its queue."""

    async def close(self) -> None:
        """Stop following; allocations stay."""

    async def capacity(self) -> list[NodeKind]:
        """Return the kinds of nodes, the smallest first."""

    async def ask(self, order: AllocationOrder) -> None:
        """Request the order's hosts that have no living member and were not yet requested; return at once.

        The first call requests all hosts together. A later call after the loss of a host requests that host alone; the
        others keep their nodes.

        Raises: AllocationEnded if the scheduler reuses no tag of an ended allocation.
        """

    async def allocations(self) -> Mapping[str, Allocation]:
        """Return tag -> allocation for all allocations with this service's mark.

        Raises: a retryable EngineError while the scheduler does not answer: the state is unknown then, and no host
        counts as lost.
        """

    async def wanted(self, tags: Sequence[str]) -> Mapping[str, str]:
        """Return tag -> the waiting job that could use its nodes, as a text, for the first such tag.

        Args:
            tags: allocations that no job uses, the longest unused first.
        """

    async def end_host(self, tag: str, index: int) -> Ended:
        """End one host: its boot, its agent and all their processes."""

    async def end(self, tag: str) -> Ended:
        """End an allocation; `allocations` shows when it has ended."""

    def why_not_proved(self, tag: str, index: int, proof: str) -> str:
        """Return the reason why a boot's proof is not accepted; empty if it is.

        Args:
            tag: tag that the boot names.
            index: index that the boot names.
            proof: proof that the boot sent: a munge credential over "TAG INDEX", or a token.
        """
