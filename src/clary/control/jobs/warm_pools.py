"""Warm pools: jobs whose hosts stay, the time for which they stay, and the jobs that may take them. Pure.

Every attempt runs on the hosts of a pool. Most pools end with their attempt. The pool of a job that is retried keeps
its living hosts, and the API does not show it; the pool of a job with a keep-alive period waits for other jobs.

Where: `transitions` updates a job's `warm_pool`; the reconciler calls `matches` to find a pool for a waiting job, and
`why_over` to find pools that are due to end. One job at a time holds a pool: the job that runs on it, or the last job
that ran on it.
Source: "Train using SageMaker managed warm pools" (developer guide): matching criteria and statuses; WarmPoolStatus in
the API reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from clary.base.errors import Fault
from clary.contract.agent_protocol import HostPhase
from clary.contract.rehearsals import is_rehearsal
from clary.contract.statuses import WarmPoolStatus
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import EndCause, TrainingJob, WarmPool

COMING_S = 15.0  # seconds after a job's end; hosts that are not ready by then are faulty, and no job waits for them
_MATCHING_MEMBERS = (
    ("RoleArn",),
    ("ResourceConfig", "VolumeSizeInGB"),
    ("ResourceConfig", "VolumeKmsKeyId"),
    ("VpcConfig",),
    ("EnableNetworkIsolation",),
    ("EnableInterContainerTrafficEncryption",),
)


@dataclass(frozen=True, kw_only=True)
class PoolDecision:
    """Whether a pool's hosts stay."""

    stays: bool
    reason: str


def on_start(job: TrainingJob, *, left_by: str) -> WarmPool | None:
    """Return the pool of a job that gets hosts, as the API shows it, or None if the hosts serve only this job.

    Args:
        job: record of the job.
        left_by: the job that left the hosts; empty for new hosts, and for hosts of the job's last attempt.
    """
    is_told = left_by or job.warm_pool is not None or JobRequest(job.request).keep_alive_s > 0
    return WarmPool(status=WarmPoolStatus.IN_USE) if is_told else None


def on_finish(job: TrainingJob, now: datetime) -> TrainingJob:
    """Return a job that has just ended, with its pool waiting for other jobs or ending; unchanged without a pool."""
    if not job.pool:
        if job.warm_pool is None or job.warm_pool.status is not WarmPoolStatus.IN_USE:
            return job
        reason = "the job had given its hosts back"  # the job waited to be retried
        return replace(job, warm_pool=replace(job.warm_pool, status=WarmPoolStatus.TERMINATED, reason=reason))
    job = replace(job, is_released=False)
    if job.warm_pool is None:
        return job
    decision = stays_after_end(job)
    if decision.stays:
        return replace(job, warm_pool=WarmPool(status=WarmPoolStatus.AVAILABLE, available_at=now))
    return replace(job, warm_pool=WarmPool(status=WarmPoolStatus.TERMINATED, reason=decision.reason))


def stays_after_end(job: TrainingJob) -> PoolDecision:
    """Decide whether the hosts of an ended job wait for a matching job."""
    if JobRequest(job.request).keep_alive_s == 0:
        return PoolDecision(stays=False, reason="the job asked for no keep-alive period")
    if not job.hosts:
        return PoolDecision(stays=False, reason="the job ended while it waited to be tried again")
    if any(record.facts.phase is HostPhase.LOST for record in job.hosts.values()):
        return PoolDecision(stays=False, reason="a host was lost")
    if job.end_cause is EndCause.FAILURE:
        fault = job.failure.fault if job.failure is not None else Fault.INTERNAL.value
        if fault not in (Fault.ALGORITHM.value, Fault.USER.value):
            return PoolDecision(stays=False, reason=f"the job failed by a fault that may be the hosts' own ({fault})")
    return PoolDecision(stays=True, reason="waits for a matching job")


def park(job: TrainingJob) -> TrainingJob:
    """Return a job with its pool ready to be taken, because the job has left its hosts."""
    if job.warm_pool is None or not is_available(job):
        return job
    return replace(job, warm_pool=replace(job.warm_pool, is_parked=True))


def hand_over(job: TrainingJob, *, by: str, now: datetime) -> TrainingJob:
    """Return a job whose pool another job holds from now on.

    Args:
        job: the last holder.
        by: name of the job that holds it now.
        now: current time by the job's clock.
    """
    if job.warm_pool is None or not is_available(job):
        return job
    pool = replace(job.warm_pool, status=WarmPoolStatus.REUSED, left_at=now, reused_by=by, is_parked=False)
    return replace(job, warm_pool=pool, pool="", is_released=True, modified_at=now)


def begin_to_end(job: TrainingJob, *, reason: str, now: datetime) -> TrainingJob:
    """Return a job whose waiting hosts no job can take any more, because the service ends them.

    Args:
        job: the last holder, or a job that waits with its own hosts.
        reason: why the pool ends, for people.
        now: current time by the job's clock.
    """
    if not job.is_terminal:  # it waits for its next attempt
        return replace(job, pool="", pool_gpus=()) if not job.hosts else job
    if job.warm_pool is None or not is_available(job):
        return job
    pool = replace(job.warm_pool, status=WarmPoolStatus.TERMINATED, left_at=now, reason=reason, is_parked=False)
    return replace(job, warm_pool=pool, modified_at=now)


def end(job: TrainingJob, *, now: datetime) -> TrainingJob:
    """Return an ended job, marked as released because its hosts and the hosts of its pool have ended."""
    if job.is_released:
        return job
    pool, reason = job.warm_pool, "its hosts did not come back"
    if pool is not None and pool.status in (WarmPoolStatus.AVAILABLE, WarmPoolStatus.IN_USE):
        pool = replace(
            pool, status=WarmPoolStatus.TERMINATED, left_at=now, reason=pool.reason or reason, is_parked=False
        )
    return replace(
        job,
        warm_pool=pool,
        pool="",
        pool_gpus=(),
        is_released=True,
        modified_at=now if pool is not None else job.modified_at,
    )


def can_be_updated(job: TrainingJob) -> bool:
    """Whether the keep-alive period of a job can change: it has a pool that the API shows and that has not ended."""
    is_there = job.warm_pool is not None and job.warm_pool.status in (WarmPoolStatus.IN_USE, WarmPoolStatus.AVAILABLE)
    return is_there and bool(job.pool)


def is_available(job: TrainingJob) -> bool:
    """Whether the pool of an ended job is Available: its hosts are to wait for another job."""
    return job.warm_pool is not None and job.warm_pool.status is WarmPoolStatus.AVAILABLE


def is_parked(job: TrainingJob) -> bool:
    """Whether the job has ended and its hosts wait, ready to be taken."""
    return job.is_terminal and bool(job.pool) and job.warm_pool is not None and job.warm_pool.is_parked


def is_becoming_available(job: TrainingJob, *, now: datetime) -> bool:
    """Whether the job has just ended and its hosts will wait for another job once they have been cleaned up."""
    pool = job.warm_pool
    if not job.is_terminal or not job.pool or pool is None or not is_available(job):
        return False
    return not pool.is_parked and pool.retained_s(now) < COMING_S


def coming_for(
    job: TrainingJob, others: Iterable[TrainingJob], *, now_of: Callable[[TrainingJob], datetime]
) -> TrainingJob | None:
    """Return the job whose hosts fit a waiting job and are just being prepared for their next job, or None.

    A job that has hosts of its own waits for no others.

    Args:
        job: the waiting job.
        others: jobs that have hosts.
        now_of: returns the current time by a job's own clock.
    """
    if job.pool:
        return None
    coming = (other for other in others if is_becoming_available(other, now=now_of(other)))
    return next((other for other in coming if matches(job, other)), None)


def why_over(job: TrainingJob, *, now: datetime) -> str:
    """Return why a waiting pool is due to end; empty while it may stay."""
    assert job.warm_pool is not None
    keep_alive_s = JobRequest(job.request).keep_alive_s
    if job.warm_pool.retained_s(now) < keep_alive_s:
        return ""
    if keep_alive_s == 0:
        return "the keep-alive period was set to 0"
    return f"no matching job came within the keep-alive period of {keep_alive_s} s"


def matches(job: TrainingJob, holder: TrainingJob) -> bool:
    """Whether a waiting job may run on the hosts of an ended job; rehearsals neither take nor leave hosts."""
    if is_rehearsal(job.request) or is_rehearsal(holder.request):
        return False  # a rehearsal's agents hold disks, which other agents cannot, and faults have struck its hosts
    groups, held = JobRequest(job.request).instance_groups, JobRequest(holder.request).instance_groups
    if groups != held or JobRequest(job.request).is_spot:
        return False
    if JobRequest(job.request).host_share != JobRequest(holder.request).host_share:
        return False
    return all(_member(job.request, path) == _member(holder.request, path) for path in _MATCHING_MEMBERS)


def _member(request: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = request
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value or None  # false counts as absent
