"""Estimates of when waiting jobs will get hosts. Pure.

Where: `reconcile.queue_outlook` shows the estimates to users. A running job is assumed to last as long as similar
jobs, else for its MaxRuntimeInSeconds; `placement.decide` gives the hosts that become free to queued jobs in order.
Every estimate names its basis; without a basis, it says that the start is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from clary.control.scheduling.placement import Capacity, Holding, Need, Place, decide

# number of jobs at the head of the queue that get an estimate; each is tried again after every job that ends before it
# starts
MOST_ESTIMATED = 100
_MANY_S = 3.15e9  # a hundred years, in seconds; a later start counts as unknown


class Basis(StrEnum):
    """Basis of an estimate."""

    PAST_JOBS = "past jobs"  # the durations of similar completed jobs are known for every job ahead
    MAX_RUNTIME = "MaxRuntimeInSeconds"  # for a job ahead only MaxRuntimeInSeconds is known, so it may end far sooner
    SCHEDULER = "scheduler"  # a scheduler of other machines, such as Slurm, orders the jobs: no place, no estimate
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Lasting:
    """Estimated duration of a job, or the rest of it."""

    seconds: float
    basis: Basis


@dataclass(frozen=True, kw_only=True)
class RunningJob:
    """A job that has hosts, and the estimated time for which it keeps them."""

    holding: Holding
    left: Lasting


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """A job that waits for hosts, and its estimated duration."""

    need: Need
    lasting: Lasting


@dataclass(frozen=True, kw_only=True)
class StartEstimate:
    """The estimated start of a job."""

    start_in_s: float | None  # None: unknown
    basis: Basis
    reason: str  # sentence on the estimate


def lasting(past_s: Sequence[float], *, max_runtime_s: float, elapsed_s: float = 0.0) -> Lasting:
    """Return the estimated rest of a job's duration.

    Args:
        past_s: seconds that similar completed jobs ran.
        max_runtime_s: seconds after which the job is stopped.
        elapsed_s: seconds that the job has run; beyond the median of similar jobs, `max_runtime_s` is the estimate.
    """
    typical_s = median(past_s) if past_s else 0.0
    if past_s and typical_s > elapsed_s:
        return Lasting(seconds=min(typical_s, max_runtime_s) - min(elapsed_s, max_runtime_s), basis=Basis.PAST_JOBS)
    return Lasting(seconds=max(0.0, max_runtime_s - elapsed_s), basis=Basis.MAX_RUNTIME)


def estimate_starts(
    running: Sequence[RunningJob], queue: Sequence[QueuedJob], *, capacity: Capacity
) -> Mapping[str, StartEstimate]:
    """Return the estimated start of each queued job, by name.

    Args:
        running: jobs with hosts, stopping jobs included.
        queue: jobs that wait, oldest first; no job overtakes another.
        capacity: capacity of the machine.
    """
    ends = {job.holding.job_name: (job.left.seconds, job.left.basis, job.holding) for job in running}
    estimates: dict[str, StartEstimate] = {}
    now_s, basis = 0.0, Basis.PAST_JOBS
    for place, job in enumerate(queue):
        name = job.need.job_name
        if place >= MOST_ESTIMATED:
            estimates[name] = _unknown(f"more than {MOST_ESTIMATED} jobs are ahead")
            continue
        while True:
            decision = decide(job.need, [holding for _, _, holding in ends.values()], capacity=capacity)
            if isinstance(decision, Place):
                break
            if not ends:
                break  # the job never fits: its start and those of all jobs behind it are unknown
            first = min(ends, key=lambda other: (ends[other][0], other))
            ended_at_s, of_first, _ = ends.pop(first)
            now_s = max(now_s, ended_at_s)
            basis = Basis.MAX_RUNTIME if of_first is Basis.MAX_RUNTIME else basis
        if not isinstance(decision, Place) or now_s > _MANY_S:
            reason = "a job ahead of it, or the job itself, fits into no hosts that come free"
            estimates.update({other.need.job_name: _unknown(reason) for other in queue[place:]})
            break
        estimates[name] = StartEstimate(start_in_s=now_s, basis=basis, reason=_REASONS[basis])
        gpus = tuple(sorted({index for indices in decision.gpus for index in indices}))
        holding = Holding(
            job_name=name,
            num_hosts=job.need.num_hosts,
            gpu_indices=gpus,
            memory_bytes=job.need.memory_bytes,
            share=job.need.share,
            of_gpu=job.need.of_gpu,
        )
        ends[name] = (now_s + job.lasting.seconds, job.lasting.basis, holding)
    return estimates


_REASONS = {
    Basis.PAST_JOBS: "if the jobs ahead last as long as those like them did",
    Basis.MAX_RUNTIME: "at the latest, if the jobs ahead use all of their MaxRuntimeInSeconds",
}


def _unknown(reason: str) -> StartEstimate:
    return StartEstimate(start_in_s=None, basis=Basis.UNKNOWN, reason=reason)
