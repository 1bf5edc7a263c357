"""Messages between agents and service: facts upwards, orders downwards, log lines with sequence numbers.

Where: HTTP with JSON bodies on the service's port, below `/clary/v1/agents/{job}/{attempt}/{host}/`, authorised by the
attempt's bearer token. Agents make no decisions: they report facts and carry out orders; the service's pure transitions
turn facts into statuses and the next order.

    GET  assignment                          -> LaunchPlan
    POST reports   Report                    -> ReportReceipt   (also the heartbeat)
    GET  orders?after=N&wait_s=S             -> Order           (long poll: answers when there is an order newer than N)
    POST logs      LogBatch                  -> LogReceipt      (lines below `next_sequence` are stored, others resent)
    POST dumps     HostDump                  -> nothing         (`contract.stack_dumps`; asked for in a ReportReceipt)
    POST profiles  HostProfile                -> nothing         (`contract.deep_profiles`; asked for in the same way)
    POST traces?number=N&rank=R&offset=B&last=0|1, bytes -> nothing  (a part of a rank's trace)
    POST samples   SampleBatch               -> SampleReceipt   (`contract.metric_samples`; rows, each stored once)
    POST training  TrainingBatch             -> TrainingReceipt (`contract.training_values`; findings, each stored once)

Agents belong to pools and may outlive a job. Below `/clary/v1/pools/{pool}/{host}/`, authorised by the pool's token:

    GET  assignment?after=JOB:ATTEMPT&wait_s=S -> PoolAssignment (long poll: null when there is no new one yet)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from clary.base.string_enum import StrEnum
from clary.contract.deep_profiles import ProfileRequest
from clary.contract.health import HealthFinding
from clary.contract.job_rules import RuleFacts

MAX_BATCH_LINES = 65_536  # limit of lines in a LogBatch: an empty line takes a hundred times its own size in storage
AGENT_PATH = "/clary/v1/agents/{job}/{attempt}/{host}"
POOL_PATH = "/clary/v1/pools/{pool}/{host}"
HEARTBEAT_INTERVAL_S = 1.0
ORDER_WAIT_S = 10.0
MAX_CLUE_CHARACTERS = 800  # limit of Clue.text; FailureReason has room for 1024 characters
# Seconds from SIGTERM to SIGKILL for the remaining processes of a job that has lost a process: it cannot continue.
FAILURE_GRACE_S = 2.0
FAILURE_REASON = "failure"  # reason of the order to stop after a failure of the job
RECLAIM_REASON = "reclaimed"  # reason of the order to stop when capacity is reclaimed
# longest part of a notice's grace period, in seconds, that is reserved for the steps after the programs' end
NOTICE_MARGIN_S = 2.0
# share of a short grace period that is reserved: Slurm sends SIGKILL at the end of a whole second
_NOTICE_MARGIN_PART = 0.095


class HostPhase(StrEnum):
    """Phase of a host of a job; the service never moves a host backwards."""

    LAUNCHING = "launching"  # the host is requested; its agent has not reported yet
    PREPARING = "preparing"  # the agent fetches code, environment, channels
    PREPARED = "prepared"  # the agent waits for the order to run
    RUNNING = "running"  # the program runs
    EXITED = "exited"  # every process of the program has ended
    UPLOADING = "uploading"  # the agent writes its share of the results
    DONE = "done"  # the host's work is done; the agent waits for the order to release
    RELEASED = "released"  # the agent has left
    LOST = "lost"  # no report for too long, or its agent died

    @property
    def may_run(self) -> bool:
        """Whether a process of the program may still run or start."""
        return self in (HostPhase.LAUNCHING, HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING)


class OrderKind(StrEnum):
    """Kind of an order: the next action of an agent."""

    PREPARE = "prepare"  # first order: get ready to run
    RUN = "run"  # start the program
    STOP = "stop"  # signal every process, wait `grace_s`, kill
    UPLOAD = "upload"  # write results: `arguments` hold role and staged parts
    RELEASE = "release"  # leave the attempt; the host's work is done


PREPARE_NUMBER = 1  # number of the order to prepare, a host's first order in every attempt

# Argument of RELEASE: whether the host serves no other attempt, so that its agent ends instead of requesting one.
IS_LAST = "is_last"

# Argument of UPLOAD: whether the leader writes no model archive if no host has a model.
OMITS_EMPTY_MODEL = "omits_empty_model"


class UploadRole(StrEnum):
    """Treatment of a host's results."""

    STAGE = "stage"  # stage its own tree in S3 for the leader
    LEAD = "lead"  # merge every host's tree and write the final objects


@dataclass(frozen=True, kw_only=True)
class Order:
    """One order; `number` grows with every new order for the host, and a repeated number means the same order."""

    number: int
    kind: OrderKind
    reason: str = ""
    grace_s: float = 0.0
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PoolAssignment:
    """The attempt that a host of a pool serves next."""

    job: str
    attempt: int
    token: str = field(repr=False)  # bearer token of that attempt's agents

    @property
    def name(self) -> str:
        """Name by which agents report the attempt that they served last: `JOB:ATTEMPT`."""
        return f"{self.job}:{self.attempt}"


@dataclass(frozen=True, kw_only=True)
class ProcessExit:
    """How one process of the program ended."""

    rank: int | None  # global rank; None for a program that has no ranks
    local_rank: int
    pid: int
    exit_code: int | None  # None if a signal ended it
    signal: int | None
    ended_at: datetime
    is_consequence: bool = False  # caused by a stop order, the failure of another process, or the host's end


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The reason why a host failed, in words for FailureReason."""

    fault: str  # value of base.errors.Fault
    message: str
    exit_code: int | None = None
    retryable: bool = False
    at: datetime | None = None  # when it happened; None for agents that do not report it


@dataclass(frozen=True, kw_only=True)
class Clue:
    """One line of a process about its own failure, printed or recorded, and its time."""

    rank: int | None  # global rank; None for a program that has no ranks, or whose rank is not known
    at: datetime
    text: str  # `ValueError: no such column`


@dataclass(frozen=True, kw_only=True)
class GpuError:
    """The newest error of one kind that the driver has reported for a GPU."""

    gpu: int  # index of the GPU among the host's GPUs, as its program counts them
    xid: int  # the driver's code
    not_before: datetime  # time of the agent's last check without the error
    at: datetime  # when the agent saw it


@dataclass(frozen=True, kw_only=True)
class StagedPart:
    """Results of one host staged in S3 for the leader."""

    host: str
    kind: str  # model or output
    uri: str
    size_bytes: int
    num_files: int
    num_members: int = 0  # files, folders and links; 0 if an older agent has not counted them
    etag: str = ""  # of the object, with its quotes; empty if the store or an older agent names none


@dataclass(frozen=True, kw_only=True)
class CheckpointFacts:
    """State of the mirroring of a host's checkpoint folder to the object store."""

    set_number: int = 0  # newest set of this host; 0: none yet
    committed_at: datetime | None = None  # when that set was complete in the store; None if an earlier attempt wrote it
    num_files: int = 0  # files of that set
    size_bytes: int = 0
    dirty_files: int = 0  # files changed since that set
    dirty_bytes: int = 0
    lag_s: int = 0  # age of the oldest change that is not stored, in whole seconds
    stalled_since: datetime | None = None  # time since which storing changes has failed; None without failures
    error: str = ""  # error of the last round; empty if the round succeeded
    restored_set: int = 0  # set of this host that the attempt began with; 0: none
    restored_files: int = 0
    restored_bytes: int = 0
    missed: tuple[str, ...] = ()  # at most 20 paths that the last flush did not store
    # at most 20 paths that the last flush left out, because they or related files are not whole
    torn: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CapacityNotice:
    """The host's capacity is about to end: its agent has received a signal that the service did not send."""

    why: str  # in words, such as "SIGTERM from the engine"
    at: datetime  # when the signal arrived, by the host's clock
    grace_s: float | None = None  # from the signal to the engine's SIGKILL; None if unknown


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """All facts of a host; each report carries all of them, so that a lost report loses no fact."""

    phase: HostPhase
    phase_started_at: datetime
    agent_pid: int | None = None
    init_pid: int | None = None  # first process of the host's program
    timings_s: Mapping[str, float] = field(default_factory=dict)  # part -> seconds: environment, code, channel:NAME...
    not_isolated: tuple[str, ...] = ()  # sentences on the parts that this host shares with the machine
    exits: tuple[ProcessExit, ...] = ()
    failure: Failure | None = None
    clues: tuple[Clue, ...] = ()  # at most one for each rank
    gpu_errors: tuple[GpuError, ...] = ()  # errors up to the program's end; empty if the agent may not read them
    failure_file: str | None = None  # content of /opt/ml/output/failure, at most 1024 characters
    staged: tuple[StagedPart, ...] = ()
    uploaded: tuple[str, ...] = ()  # URIs of final objects written by this host
    results_are_empty: bool = False  # whether no final object holds a file: nothing is lost with them
    notes: tuple[str, ...] = ()  # warnings of this host, which `describe` shows
    standstill: str = ""  # signs that the program hangs; empty while it makes progress
    checkpoints: CheckpointFacts | None = None  # None for a job without CheckpointConfig
    rules: tuple[RuleFacts, ...] = ()  # facts of the host that runs the job's rules; empty on other hosts
    health: tuple[HealthFinding, ...] = ()  # findings of the health checks; empty before the checks are done
    awaits_rendezvous: bool = False  # whether some of the program's expected connections to the master port are missing
    rendezvous_at: datetime | None = None  # when these connections were complete; None if not seen or not watched
    notice: CapacityNotice | None = None  # the first notice
    could_not_upload: bool = False  # whether its upload has failed in a way that is not certain to happen again
    num_unsent_lines: int = 0  # lines of a released host that the service has not taken; its spool may have them


@dataclass(frozen=True, kw_only=True)
class Report:
    """Facts of one host at one moment; `number` grows, and the service drops facts older than its newest."""

    number: int
    facts: HostFacts
    last_order: int = 0  # number of the newest order that the agent has received
    notice_age_s: float = 0.0  # seconds from `facts.notice` to this report; clocks of hosts and service may differ


@dataclass(frozen=True, kw_only=True)
class ReportReceipt:
    """The service's answer to a report."""

    accepted: bool  # False: the attempt has ended; the agent kills its program and leaves
    order_number: int  # newest order for the host
    dump_number: int = 0  # newest requested dump of the host's processes; 0 for none
    dump_reason: str = ""
    profile: ProfileRequest | None = None  # newest requested profile of the host's ranks
    metrics_interval_s: float = 0.0  # interval of the host's measurements; 0 changes nothing


@dataclass(frozen=True, kw_only=True)
class MetricValue:
    """A value that a metric definition found in a log line."""

    name: str
    value: float
    at: datetime


@dataclass(frozen=True, kw_only=True)
class LogBlock:
    """Lines of a host's log that arrived together; the block is the unit of transfer, not the line."""

    at_ms: int  # milliseconds since 1970, when the agent read them
    text: str  # one or more lines, separated by `\n`, without `\n` at the end; no line is empty
    rank: int | None = None
    metrics: tuple[MetricValue, ...] = ()  # values found by metric definitions; a line with values is its own block

    @cached_property
    def num_lines(self) -> int:
        """Number of lines, which is also the number of sequence numbers that the block takes in its stream."""
        return self.text.count("\n") + 1

    def lines(self) -> list[str]:
        """Return the lines one by one."""
        return self.text.split("\n")


@dataclass(frozen=True, kw_only=True)
class LogBatch:
    """Lines of a host's stream, numbered from `first_sequence` without gaps."""

    first_sequence: int
    blocks: tuple[LogBlock, ...]

    @property
    def end_sequence(self) -> int:
        """Sequence number after the last line."""
        return self.first_sequence + sum(block.num_lines for block in self.blocks)


@dataclass(frozen=True, kw_only=True)
class LogReceipt:
    """The service has stored every line below `next_sequence`."""

    next_sequence: int


def notice_margin_s(grace_s: float, most_s: float = NOTICE_MARGIN_S) -> float:
    """Return the seconds of a notice's grace period that are kept for the host's last checkpoint and reports.

    Args:
        grace_s: seconds from the notice to the end of the capacity.
        most_s: upper limit of the reserved seconds, which takes effect for a long grace period.
    """
    return min(most_s, _NOTICE_MARGIN_PART * max(0.0, grace_s))
