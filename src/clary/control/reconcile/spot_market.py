"""The spot capacity of this service: its present size, its holders, and jobs whose capacity is reclaimed.

Where: the reconciler calls it on its passes; `clary spot` shows and sets the capacity. `scheduling.spot` contains the
policies. If there is neither a schedule nor a capacity set by hand, all hosts that fit may be spot hosts.
"""

from __future__ import annotations

from dataclasses import dataclass

from clary.base.clock import Clock
from clary.contract.statuses import SecondaryStatus
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.status_rows import since
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.hub import JobHub
from clary.control.scheduling.spot import Reclaim, SpotSchedule, SpotUse, choose_reclaimed, why_wait


@dataclass(frozen=True, kw_only=True)
class SpotFacts:
    """The market at one moment."""

    capacity: int | None  # in hosts; None: as many as fit
    is_set_by_hand: bool
    next_change_s: float | None  # seconds until the next change; None without a schedule, or without a further change
    uses: tuple[SpotUse, ...]


class SpotMarket:
    """Spot capacity by schedule or by hand; a value set by hand is valid until it is reset or the service ends."""

    def __init__(self, hub: JobHub, clock: Clock, schedule: SpotSchedule | None = None) -> None:
        self._hub = hub
        self._clock = clock
        self._schedule = schedule
        self._started_s = clock.monotonic()
        self._by_hand: int | None = None

    def set_capacity(self, num_hosts: int | None) -> None:
        """Set the spot capacity in hosts, which overrides the schedule; None returns to the schedule."""
        self._by_hand = num_hosts

    def facts(self) -> SpotFacts:
        """Return the facts that `clary spot status` shows."""
        elapsed_s = self._clock.monotonic() - self._started_s
        next_s = None if self._schedule is None else self._schedule.next_change_s(elapsed_s)
        return SpotFacts(
            capacity=self._capacity(),
            is_set_by_hand=self._by_hand is not None,
            next_change_s=None if next_s is None else max(0.0, next_s - elapsed_s),
            uses=tuple(self._uses()),
        )

    def why_wait(self, job: TrainingJob) -> str:
        """Return the reason why a job has to wait for spot capacity; empty if it does not."""
        capacity = self._capacity()
        request = JobRequest(job.request)
        if capacity is None or not request.is_spot:
            return ""
        num_hosts = sum(group.instance_count for group in request.instance_groups)
        return why_wait(num_hosts, self._uses(), capacity)

    def reclaimed(self) -> Reclaim:
        """Return the jobs whose attempts have to end now, because jobs hold more than the capacity."""
        capacity = self._capacity()
        return Reclaim(job_names=()) if capacity is None else choose_reclaimed(self._uses(), capacity)

    def _capacity(self) -> int | None:
        if self._by_hand is not None or self._schedule is None:
            return self._by_hand
        return self._schedule.capacity_at(self._clock.monotonic() - self._started_s)

    def _uses(self) -> list[SpotUse]:
        return [
            SpotUse(
                job_name=job.name,
                num_hosts=len(job.hosts),
                order=_got_hosts_at_s(job),
                is_leaving=job.is_terminal or job.end_cause is not None or job.ending is not None,
            )
            for job in self._hub.active_jobs()
            if JobRequest(job.request).is_spot
        ]


def _got_hosts_at_s(job: TrainingJob) -> float:
    return (since(job.transitions, SecondaryStatus.STARTING) or job.created_at).timestamp()
