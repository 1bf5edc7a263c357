"""Events of a job; `transitions.apply` turns each into the next record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from clary.base.errors import Fault
from clary.contract.agent_protocol import Report
from clary.control.jobs.training_job import EndCause, RuleEvaluation


@dataclass(frozen=True, kw_only=True)
class MustWait:
    """The job does not fit now."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class HostsAsked:
    """The engine is being asked for the hosts of a new attempt."""

    plan: Mapping[str, Any]  # LaunchPlan in plain form, as far as it is known
    host_names: tuple[str, ...]
    log_streams: tuple[str, ...]
    log_bases: Mapping[str, int] = field(default_factory=dict)  # stream -> lines that are in it already
    pool: str = ""  # warm pool whose hosts they are, new or taken over
    left_by: str = ""  # job that left them
    granted: str = ""  # by an engine with a queue: which hosts, in words


@dataclass(frozen=True, kw_only=True)
class AllocationAsked:
    """An engine with a queue is about to be asked for the hosts of a waiting job."""

    pool: str  # names the allocation, and is the pool of the hosts


@dataclass(frozen=True, kw_only=True)
class NetworkReady:
    """The engine has built the network; agents start next."""

    plan: Mapping[str, Any]  # the complete LaunchPlan in plain form


@dataclass(frozen=True, kw_only=True)
class LaunchFailed:
    """The engine could not supply the hosts."""

    message: str
    fault: Fault


@dataclass(frozen=True, kw_only=True)
class HostReported:
    """An agent told facts of its host."""

    host: str
    report: Report


@dataclass(frozen=True, kw_only=True)
class HostLost:
    """A host is gone: its agent died or has been silent for too long."""

    host: str
    why: str
    last_sign_at: datetime | None = None  # when it was last known to be well; None where that explains nothing
    is_cut_off: bool = False  # its link is cut: its agent has reported all consequences for its own ranks


@dataclass(frozen=True, kw_only=True)
class HostCutOff:
    """A host whose program has ended by now was out of the others' reach; it may still hand in results."""

    host: str
    why: str
    last_sign_at: datetime


@dataclass(frozen=True, kw_only=True)
class NoMoreEvidence:
    """End of the time in which evidence on the hosts of a failed attempt may still arrive."""


@dataclass(frozen=True, kw_only=True)
class StopWanted:
    """The job is to end early."""

    cause: EndCause  # STOP_REQUESTED, MAX_RUNTIME, MAX_WAIT or MAX_PENDING
    grace_s: float


@dataclass(frozen=True, kw_only=True)
class Reclaimed:
    """The capacity under the job is taken back: the attempt ends, the job waits for other capacity."""

    reason: str  # in words: whose capacity, and why
    grace_s: float
    noticed_at: datetime | None = None  # when a host or engine heard of it first, by the job's clock; None: just now


@dataclass(frozen=True, kw_only=True)
class UploadOverdue:
    """Results did not reach the object store in time."""

    limit_s: float


@dataclass(frozen=True, kw_only=True)
class Released:
    """Nothing of the attempt exists any more on any machine."""

    keeps_pool: bool = False  # its hosts stay, for the job's next attempt or for another job


@dataclass(frozen=True, kw_only=True)
class PoolGiven:
    """An attempt that an older release began without a pool has one from now on."""

    pool: str
    plan: Mapping[str, Any]  # LaunchPlan in plain form, with the pool


@dataclass(frozen=True, kw_only=True)
class PoolReused:
    """Another job has taken the hosts of the job's warm pool."""

    by: str


@dataclass(frozen=True, kw_only=True)
class PoolEnded:
    """The hosts of the job's warm pool go, or, of a job that waits with them, are gone."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class RuleEvaluationChanged:
    """Something is known of a rule that was not; of a job that runs or has ended."""

    evaluation: RuleEvaluation


Event = (
    MustWait
    | HostsAsked
    | AllocationAsked
    | NetworkReady
    | LaunchFailed
    | HostReported
    | HostLost
    | HostCutOff
    | NoMoreEvidence
    | StopWanted
    | Reclaimed
    | UploadOverdue
    | Released
    | PoolGiven
    | PoolReused
    | PoolEnded
    | RuleEvaluationChanged
)
