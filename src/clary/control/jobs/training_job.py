"""The record of one training job.

Where: services create it from a parsed request, the store keeps it as one JSON document, `transitions` changes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from clary.base.clock import Clock, ClockAnchor
from clary.base.errors import Fault
from clary.contract.agent_protocol import HostFacts, Order
from clary.contract.failure_reasons import failure_reason
from clary.contract.statuses import RuleStatus, SecondaryStatus, TrainingJobStatus, WarmPoolStatus


class EndCause(StrEnum):
    """Reason why a job ends or has ended."""

    SUCCESS = "success"  # every process of every host ended with 0
    FAILURE = "failure"  # a program, host or transfer failed
    STOP_REQUESTED = "stop_requested"  # StopTrainingJob
    MAX_RUNTIME = "max_runtime"  # StoppingCondition.MaxRuntimeInSeconds has passed
    MAX_WAIT = "max_wait"  # StoppingCondition.MaxWaitTimeInSeconds has passed
    MAX_PENDING = "max_pending"  # StoppingCondition.MaxPendingTimeInSeconds has passed
    RULE = "rule"  # a rule has found an issue, and its action is to stop the training


class RuleKind(StrEnum):
    """Kind of data that a rule evaluates."""

    DEBUG = "debug"  # saved tensors: DebugRuleConfigurations
    PROFILER = "profiler"  # series and profiles: ProfilerRuleConfigurations


class AttemptEnd(StrEnum):
    """Reason why an attempt ends early though its job continues."""

    RECLAIMED = "reclaimed"  # the capacity of a host was reclaimed, by the spot market or the engine
    RESTARTED = "restarted"  # the attempt failed, and a retry can help


@dataclass(frozen=True, kw_only=True)
class StatusTransition:
    """One row of SecondaryStatusTransitions."""

    status: SecondaryStatus
    started_at: datetime
    ended_at: datetime | None = None
    message: str


@dataclass(frozen=True, kw_only=True)
class HostRecord:
    """The service's record of one host of the current attempt."""

    facts: HostFacts
    report_number: int = 0
    order: Order | None = None
    lost_why: str = ""  # why a host was lost, or counts as the cause although it still delivers its results
    last_sign_at: datetime | None = None  # last time at which the lost or blamed host certainly worked
    is_cut_off: bool = False  # whether its link is cut


@dataclass(frozen=True, kw_only=True)
class FinalMetric:
    """A value of a metric; the last value, where a job lists its final metrics."""

    name: str
    value: float
    at: datetime
    step: int | None = None  # training step, if known


@dataclass(frozen=True, kw_only=True)
class RuleEvaluation:
    """State of one rule of the job."""

    kind: RuleKind
    name: str  # RuleConfigurationName
    status: RuleStatus
    details: str = ""  # StatusDetails: the finding with its step and limit, or the error
    changed_at: datetime


@dataclass(frozen=True, kw_only=True)
class JobFailure:
    """The first cause of a failed job."""

    fault: str
    message: str  # without the prefix of FailureReason
    host: str | None = None
    rank: int | None = None
    exit_code: int | None = None
    is_own_words: bool = False  # whether the message is the content of the program's failure file
    verdict: str = ""  # value of verdicts.Verdict; empty for a job that failed under a release without verdicts
    is_of_launch: bool = False  # whether hosts could not be supplied: their later reports never count as causes
    is_retryable: bool = False  # whether the same job can succeed later without a change
    # whether the failure may be a rank's reaction to the loss of a host that has not been reported yet
    may_be_answer: bool = False

    @property
    def reason(self) -> str:
        """FailureReason as clients see it: the prefix of the fault, the host, the message, the exit code."""
        message = self.message
        if self.host is not None and not self.is_own_words and not _begins_with_host(message, self.host):
            message = f"{self.host}: {message}"
        return failure_reason(Fault(self.fault), message, exit_code=self.exit_code)


@dataclass(frozen=True, kw_only=True)
class AttemptEnding:
    """The end of the current attempt, after which the job is retried."""

    kind: AttemptEnd
    reason: str  # sentence for people
    asked_at: datetime
    failure: JobFailure | None = None  # failure of a failed attempt
    is_by_signal: bool = False  # whether the reason is only a signal that an agent got, and not yet the engine's words


@dataclass(frozen=True, kw_only=True)
class PastAttempt:
    """An attempt that ended early."""

    number: int
    kind: AttemptEnd
    reason: str
    asked_at: datetime  # when its end was decided
    ended_at: datetime  # when the engine had ended its hosts
    failure: JobFailure | None = None
    hosts: Mapping[str, HostFacts] = field(default_factory=dict)  # facts at the attempt's end; empty for old attempts
    planned_hosts: tuple[Mapping[str, Any], ...] = ()  # selected members of its hosts in the plan; newest attempt only


@dataclass(frozen=True, kw_only=True)
class RestartRule:
    """Maximum number of retries of a failed job, and the failures that allow one."""

    max_restarts: int = 0  # reclaimed attempts are retried without a limit
    includes_programs: bool = False  # whether program failures with a retryable verdict are retried, too


@dataclass(frozen=True, kw_only=True)
class WarmPool:
    """State of a job's warm pool for the API, and whether its hosts can be taken."""

    status: WarmPoolStatus
    available_at: datetime | None = None  # when the hosts began to wait
    left_at: datetime | None = None  # when the hosts stopped waiting: taken by a job, or ended
    reused_by: str = ""  # the job that took the hosts
    reason: str = ""  # sentence on why the pool has ended
    is_parked: bool = False  # whether the job has left the hosts, so that a matching job can take them

    def retained_s(self, now: datetime) -> float:
        """Return how long the hosts have waited for a job, in seconds."""
        if self.available_at is None:
            return 0.0
        return max(0.0, ((self.left_at or now) - self.available_at).total_seconds())


def _begins_with_host(message: str, host: str) -> bool:
    """Whether a message begins by naming its host, as in `algo-1 was lost` and `the agent of algo-1 did not report`.

    Elsewhere in a message the name may be that of a peer, or be part of a path or of a longer name: algo-1 in algo-10.
    """
    return re.match(rf"(?:the agent of )?{re.escape(host)}(?![\w.-])", message) is not None


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One training job from its creation to its end; each change creates a new object."""

    name: str
    arn: str
    request: Mapping[str, Any]  # CreateTrainingJob as parsed, AWS spelling, without Tags; datetimes never occur in it
    status: TrainingJobStatus
    secondary_status: SecondaryStatus
    transitions: tuple[StatusTransition, ...]
    created_at: datetime
    modified_at: datetime
    tuning_job_arn: str = ""  # ARN of the tuning job whose trial it is
    # whether the service has added KeepAlivePeriodInSeconds to the request, for which DescribeTrainingJob omits it
    is_kept_unasked: bool = False
    # anchor of the job's clock; None for an ended job of an older release
    anchor: ClockAnchor | None = None
    training_started_at: datetime | None = None  # when the first host began to download
    training_ended_at: datetime | None = None
    attempt: int = 0  # 0 until hosts are first requested
    hosts: Mapping[str, HostRecord] = field(default_factory=dict)  # of the current attempt
    plan: Mapping[str, Any] | None = None  # the current attempt's LaunchPlan as plain data, with secrets
    log_streams: tuple[str, ...] = ()  # <job>/algo-1-<epoch>, one per host; the same for all attempts
    log_bases: Mapping[str, int] = field(default_factory=dict)  # stream -> lines in it before the current attempt
    failed_at: datetime | None = None  # when the service received the first report of a failure of the current attempt
    has_all_evidence: bool = False  # whether the wait for evidence on that failure has ended
    ending: AttemptEnding | None = None  # why the current attempt, not the job, ends
    past_attempts: tuple[PastAttempt, ...] = ()  # attempts that ended early, oldest first
    not_before: datetime | None = None  # earliest time of a retry
    restart_rule: RestartRule = field(default_factory=RestartRule)
    end_cause: EndCause | None = None
    stop_ordered_at: datetime | None = None
    failure: JobFailure | None = None
    final_metrics: tuple[FinalMetric, ...] = ()
    metric_units: Mapping[str, str] = field(default_factory=dict)  # metric that scripts have put -> CloudWatch's Unit
    metric_namespaces: tuple[str, ...] = ()  # namespaces of metrics that scripts have put
    rule_evaluations: tuple[RuleEvaluation, ...] = ()  # reports on rules; `rule_evaluations.evaluations_of` reads them
    warnings: tuple[str, ...] = ()  # shown by describe and in the first log lines
    emulation: tuple[str, ...] = ()  # shown likewise, under its own heading: differences between this machine and AWS
    pending_reason: str = ""  # sentence on why the job waits
    model_artifacts_uri: str | None = None  # set when the model is uploaded
    is_released: bool = True  # false while hosts of an attempt, or of the warm pool of an ended job, may exist
    pool: str = ""  # pool that the job holds; empty once another job holds the pool, or the pool has ended
    pool_gpus: tuple[int, ...] = ()  # GPUs of the machine that stay with the pool between two attempts
    warm_pool: WarmPool | None = None  # None for a job that never ran on a warm pool shown by the API

    def now(self, clock: Clock) -> datetime:
        """Return the current time by the job's clock, which is immune to steps of the wall clock."""
        return clock.now() if self.anchor is None else self.anchor.now(clock)

    @property
    def is_terminal(self) -> bool:
        """Whether the status cannot change any more."""
        return self.status.is_terminal

    @property
    def held_gpus(self) -> tuple[int, ...]:
        """GPUs of the machine that no other job may use: the GPUs of the attempt's hosts, or of the waiting pool."""
        if self.plan is None:
            return self.pool_gpus
        hosts = self.plan.get("hosts", ())
        return tuple(sorted({index for host in hosts for index in host["resources"]["gpu_indices"]}))

    @property
    def is_leaving(self) -> bool:
        """Whether the current attempt has ended, its hosts have yet to be released, and the job continues."""
        return self.ending is not None and not any(record.facts.phase.may_run for record in self.hosts.values())
