"""Estimates for queued jobs: place in the queue, and start time.

Where: pages about jobs show them; `scheduling.queue_estimates` contains the policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.admission import Admission
from clary.control.reconcile.hub import JobHub
from clary.control.reconcile.past_durations import PastDurations
from clary.control.scheduling.placement import Need
from clary.control.scheduling.queue_estimates import (
    MOST_ESTIMATED,
    Basis,
    QueuedJob,
    RunningJob,
    StartEstimate,
    estimate_starts,
    lasting,
)

ENGINE_DECIDES = "the engine that lends hosts decides when"


@dataclass(frozen=True, kw_only=True)
class QueuePlace:
    """Place of a job in the queue, and its estimated start."""

    place: int | None  # from 1; None for a job that younger jobs may pass for now, or that a scheduler orders
    num_waiting: int  # all jobs in the queue, also jobs without a place
    start_in_s: float | None  # None: unknown
    basis: str  # the facts that the estimate uses
    estimate: str  # end of a sentence on the estimate: `if the jobs ahead ...`


class QueueOutlook:
    """Estimates the starts of queued jobs."""

    def __init__(self, hub: JobHub, admission: Admission, past: PastDurations) -> None:
        self._hub = hub
        self._admission = admission
        self._past = past

    def places(self) -> Mapping[str, QueuePlace]:
        """Return the place of every waiting job, by name."""
        waiting = list(self._hub.waiting_jobs().values())
        if not self._admission.decides_order:
            told = {job.name: self._admission.pending_reason(job) or ENGINE_DECIDES for job in waiting}
            return {name: _place(None, len(waiting), _held_back(why, Basis.SCHEDULER)) for name, why in told.items()}
        held_back = {job.name: why for job in waiting if (why := self._admission.why_held_back(job))}
        queue = [job for job in waiting if job.name not in held_back]
        estimates = estimate_starts(
            [self._running(job) for job in self._hub.active_jobs()],
            [self._queued(job) for job in queue[: MOST_ESTIMATED + 1]],
            capacity=self._admission.capacity,
        )
        far = StartEstimate(start_in_s=None, basis=Basis.UNKNOWN, reason=f"more than {MOST_ESTIMATED} jobs are ahead")
        numbered = {job.name: number for number, job in enumerate(queue, start=1)}
        return {
            job.name: _place(
                numbered.get(job.name),
                len(waiting),
                _held_back(held_back[job.name]) if job.name in held_back else estimates.get(job.name, far),
            )
            for job in waiting
        }

    def place(self, job: TrainingJob) -> QueuePlace | None:
        """Return the place of a job; None if it does not wait."""
        return self.places().get(job.name) if job.name in self._hub.waiting_jobs() else None

    def _running(self, job: TrainingJob) -> RunningJob:
        request = JobRequest(job.request)
        began_at = job.training_started_at or job.modified_at
        elapsed_s = max(0.0, (self._hub.now_of(job) - began_at).total_seconds())
        left = lasting(self._past.of(job), max_runtime_s=request.max_runtime_s, elapsed_s=elapsed_s)
        if job.is_terminal:  # its hosts are being released, or kept for a matching job until another job needs them
            left = lasting((), max_runtime_s=0.0)
        return RunningJob(holding=self._admission.holding(job), left=left)

    def _queued(self, job: TrainingJob) -> QueuedJob:
        request = JobRequest(job.request)
        need = Need.of(job.name, self._admission.mapping(request))
        return QueuedJob(need=need, lasting=lasting(self._past.of(job), max_runtime_s=request.max_runtime_s))


def _held_back(why: str, basis: Basis = Basis.UNKNOWN) -> StartEstimate:
    return StartEstimate(start_in_s=None, basis=basis, reason=why)


def _place(number: int | None, num_waiting: int, estimate: StartEstimate) -> QueuePlace:
    return QueuePlace(
        place=number,
        num_waiting=num_waiting,
        start_in_s=estimate.start_in_s,
        basis=estimate.basis.value,
        estimate=estimate.reason,
    )
