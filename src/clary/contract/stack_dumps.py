"""State of a host's processes at one moment: their stacks, their waits, their connections.

Where: the service requests a dump in the answer to a report (`ReportReceipt.dump_number`), and the agent sends it with
`POST /clary/v1/agents/{job}/{attempt}/{host}/dumps`. An agent whose program makes no progress sends a dump without a
request.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

MAX_PROCESSES = 256  # of a host
MAX_THREADS = 128  # of a process
MAX_FRAMES = 100  # of a thread, innermost first
MAX_SOCKETS = 256  # of a process


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One call on a stack, in Python (`file` ends with .py) or in native code."""

    function: str
    file: str  # shortened but unambiguous: `torch/distributed/distributed_c10d.py`, `libc.so.6`
    line: int  # 0 if unknown


@dataclass(frozen=True, kw_only=True)
class ThreadStack:
    """One thread, its calls from the innermost outwards."""

    thread: int  # thread id inside the host
    name: str
    is_main: bool
    frames: tuple[Frame, ...]


@dataclass(frozen=True, kw_only=True)
class SocketState:
    """One TCP connection of a process, as the kernel sees it."""

    local: str  # `10.0.0.1:7777`
    peer: str
    state: str  # `ESTABLISHED`
    unsent_bytes: int  # written by the program and not acknowledged by the peer
    unread_bytes: int  # received and not read by the program
    num_retransmits: int  # retransmissions of the oldest segment that the peer has not acknowledged


@dataclass(frozen=True, kw_only=True)
class CollectiveCall:
    """One collective operation that a rank has called in a group; see `collective_records`.

    Attributes:
        number: number of the operation in its group, from 1.
        count: number of elements of this rank's input, or of one rank's share, as for a scatter or a reduce-scatter.
        peer: rank, within the group, of the peer of a send or receive; -1 if there is no peer, or any peer is accepted.
        state: `entered`, `under way`, `waited for`, `finished` or `failed`.
        age_s: seconds since the call.
        took_s: seconds from the call to the observed end; None before the end.
    """

    number: int
    operation: str
    count: int
    dtype: str
    state: str
    age_s: float
    took_s: float | None = None
    peer: int = -1

    @property
    def is_held(self) -> bool:
        """Whether the training thread was inside the operation."""
        return self.state in ("entered", "waited for")


@dataclass(frozen=True, kw_only=True)
class CollectiveGroup:
    """A group of ranks, and the last calls that one rank made on it.

    Attributes:
        kind: kind of backend; `DDP` for gradients.
        ranks: ranks in the form of `rank_lists`; empty if unknown.
        is_point_to_point: whether calls are sends and receives, which each rank numbers by itself.
        calls: the newest first; empty for a group that was made and never used.
    """

    name: str
    kind: str
    size: int
    ranks: str
    calls: tuple[CollectiveCall, ...]
    is_point_to_point: bool = False


@dataclass(frozen=True, kw_only=True)
class LeftCalls:
    """Last collective calls of a rank, by group, when its process ended."""

    rank: int
    groups: tuple[CollectiveGroup, ...]


@dataclass(frozen=True, kw_only=True)
class ProcessDump:
    """One process of a host's program."""

    pid: int  # process id on the machine
    parent: int
    rank: int | None  # None for a process that is not a rank: a wrapper, a worker of a data loader
    command: str
    state: str  # letter of proc(5): R, S, D, T, Z...
    wait_channel: str  # function of the kernel in which its main thread sleeps; empty if awake or unknown
    cpu_s: float
    num_waits: int  # waits that its main thread began while it was watched
    cpu_used_s: float  # processor time while it was watched, including all of its descendants
    bytes_moved: int  # moved by read(2), write(2) and similar calls while it was watched, including all descendants
    threads: tuple[ThreadStack, ...]
    sockets: tuple[SocketState, ...]
    error: str = ""  # reason why the stacks are missing
    runnable_s: float = 0.0  # time that its busiest thread, or a descendant's, ran or waited for a processor
    collectives: tuple[CollectiveGroup, ...] = ()  # empty without records
    num_groups_left_out: int = 0  # groups for which the record had no slot


@dataclass(frozen=True, kw_only=True)
class HostDump:
    """One host's processes at one moment.

    Attributes:
        number: number of the request that the dump answers; 0 for a dump that the agent took by itself.
        reason: why the dump was taken.
        addresses: addresses of the host, so that connections can be matched to hosts.
        num_left_out: number of processes beyond MAX_PROCESSES.
        watched_s: how long processes were watched before their stacks were read.
        left: last calls of ranks whose processes have ended.
        num_records_left_out: number of processes whose last calls are missing, because all together were too many.
    """

    number: int
    reason: str
    host: str
    taken_at: datetime
    addresses: tuple[str, ...]
    processes: tuple[ProcessDump, ...]
    watched_s: float = 0.0
    num_left_out: int = 0
    error: str = ""  # reason why the dump is empty
    left: tuple[LeftCalls, ...] = ()
    num_records_left_out: int = 0
