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
    """The job has to wait for hosts; the reason is a sentence for people."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class HostsAsked:
    """The service is requesting the hosts of a new attempt from the engine."""

    plan: Mapping[str, Any]  # LaunchPlan as plain data, with the members known so far
    host_names: tuple[str, ...]
    log_streams: tuple[str, ...]
    log_bases: Mapping[str, int] = field(default_factory=dict)  # log stream -> number of lines already in it
    pool: str = ""  # warm pool that the hosts belong to, new or taken over
    left_by: str = ""  # job that left the hosts; empty for new hosts
    granted: str = ""  # sentence on the hosts that an engine with a queue has granted


@dataclass(frozen=True, kw_only=True)
class AllocationAsked:
    """The service is about to request a waiting job's hosts from an engine with a queue."""

    pool: str  # name of the allocation and of the hosts' pool


@dataclass(frozen=True, kw_only=True)
class NetworkReady:
    """The engine has built the network; agents start next."""

    plan: Mapping[str, Any]  # the complete LaunchPlan as plain data


@dataclass(frozen=True, kw_only=True)
class LaunchFailed:
    """The engine could not supply the hosts."""

    message: str
    fault: Fault


@dataclass(frozen=True, kw_only=True)
class HostReported:
    """An agent reported facts of its host."""

    host: str
    report: Report


@dataclass(frozen=True, kw_only=True)
class HostLost:
    """A host is lost: its agent died or has been silent for too long, its program did not stop, or its link is cut."""

    host: str
    why: str
    # last time at which the host certainly worked; None if the search for the cause of a failure does not need it
    last_sign_at: datetime | None = None
    is_cut_off: bool = False  # whether its link is cut while its agent still reports


@dataclass(frozen=True, kw_only=True)
class HostCutOff:
    """The other hosts could not reach a host whose program has ended by now; the host may still deliver results."""

    host: str
    why: str
    last_sign_at: datetime


@dataclass(frozen=True, kw_only=True)
class NoMoreEvidence:
    """End of the time in which evidence on the hosts of a failed attempt may still arrive."""


@dataclass(frozen=True, kw_only=True)
class StopWanted:
    """The job shall end early."""

    cause: EndCause  # STOP_REQUESTED, MAX_RUNTIME, MAX_WAIT or MAX_PENDING
    grace_s: float


@dataclass(frozen=True, kw_only=True)
class Reclaimed:
    """The job's capacity is reclaimed: the attempt ends, the job waits for other capacity."""

    reason: str  # sentence that names the capacity and why it is taken back
    grace_s: float
    noticed_at: datetime | None = None  # when a host got the notice, by the job's clock; None: no failure is its effect


@dataclass(frozen=True, kw_only=True)
class ReclaimExplained:
    """The engine tells why it takes back the capacity of an attempt that an agent's signal has ended."""

    reason: str  # sentence that names the capacity and why it is taken back


@dataclass(frozen=True, kw_only=True)
class UploadOverdue:
    """Results did not reach the object store in time."""

    limit_s: float


@dataclass(frozen=True, kw_only=True)
class Released:
    """No process of the attempt is left on any machine."""

    keeps_pool: bool = False  # whether the attempt's hosts stay, for the job's next attempt or for another job


@dataclass(frozen=True, kw_only=True)
class PoolGiven:
    """An attempt that an older release began without a pool is given a pool."""

    pool: str
    plan: Mapping[str, Any]  # LaunchPlan as plain data, with the pool


@dataclass(frozen=True, kw_only=True)
class PoolReused:
    """Another job has taken the hosts of the job's warm pool."""

    by: str


@dataclass(frozen=True, kw_only=True)
class PoolEnded:
    """The hosts of the job's pool are being ended, or have ended; no attempt runs on them any more."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class RuleEvaluationChanged:
    """The evaluation of a rule has changed, for a job that runs or has ended."""

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
    | ReclaimExplained
    | UploadOverdue
    | Released
    | PoolGiven
    | PoolReused
    | PoolEnded
    | RuleEvaluationChanged
)
