"""The hub through which every change to a job passes: it applies an event, stores it, wakes waiters.

Where: services create and stop jobs, the agent gateway reports facts, the reconciler launches and ends attempts. All do
so through one hub, so that agents receive orders and the reconciler wakes as soon as a change is durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Protocol

from clary.base.clock import Clock, ClockAnchor
from clary.contract.statuses import TrainingJobStatus
from clary.control.jobs import events, transitions
from clary.control.jobs.training_job import FinalMetric, TrainingJob
from clary.control.jobs.warm_pools import is_parked
from clary.control.store.damage import JobUnreadable
from clary.control.store.errors import JobExists, JobNotFound, StaleLease
from clary.control.store.tracking.tuning_records import TrialRefused
from clary.control.tuning.tuning_job import Trial

MAX_FINAL_METRICS = 40  # FinalMetricDataList of DescribeTrainingJob

# Called with the job before a change (None if it was not in memory) and the job after the change.
Listener = Callable[[TrainingJob | None, TrainingJob], None]

log = logging.getLogger(__name__)


class JobStore(Protocol):
    """The part of the store that the hub uses."""

    async def create_job(self, job: TrainingJob, tags: Mapping[str, str], *, trial: Trial | None = None) -> None:
        """Add a job, and its trial if it belongs to a tuning job; raises JobExists, TrialRefused.

        Args: as `Store.create_job`.
        """

    async def get_job(self, name: str) -> TrainingJob | None:
        """Read a job."""

    async def update_job(
        self, name: str, change: Callable[[TrainingJob], TrainingJob], *, known: TrainingJob | None = None
    ) -> TrainingJob:
        """Read, change and write a job in one transaction; raises JobNotFound.

        `known` replaces a record that cannot be read; without it, JobUnreadable is raised.

        Args: as `Store.update_job`.
        """

    async def unfinished_jobs(self) -> list[TrainingJob]:
        """Read every job that is not terminal or not released."""

    async def delete_job(self, name: str) -> None:
        """Remove a job; raises JobNotFound."""

    async def require_lease(self) -> None:
        """Raise StaleLease if another service owns the jobs by now."""


class JobHub:
    """Unfinished jobs in memory, equal to those of the store.

    One service at a time owns a database: it holds the `service` lease, and the store refuses the writes of a service
    that has lost it. So memory and store cannot diverge.
    """

    def __init__(
        self,
        store: JobStore,
        clock: Clock,
    ) -> None:
        self._store = store
        self._clock = clock
        self._waiting: dict[str, TrainingJob] = {}  # jobs without requested hosts, oldest first
        self._active: dict[str, TrainingJob] = {}  # jobs from the request for hosts to their release
        self._watchers: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Event()
        self._has_jobs = asyncio.Event()  # set while a job waits or has hosts
        self._listeners: list[Listener] = []
        self._doubtful: set[str] = set()  # jobs whose last write may or may not have happened
        # job -> the attempt that an earlier service left, and the last sign of its life that this service has stored
        self._left: dict[str, tuple[int, datetime]] = {}
        # the same, only of attempts that were running when this machine went down
        self._cut_short: dict[str, tuple[int, datetime]] = {}
        # Held while a job and its data are deleted, so that a second deletion cannot hit a new job of that name.
        self.deletion = asyncio.Lock()

    async def load(self, *, last_alive_at: datetime | None = None) -> None:
        """Load the unfinished jobs of an earlier service; re-anchor the clocks of jobs from before a reboot.

        Args:
            last_alive_at: last sign of life of that service; None if it is unknown.
        """
        for job in sorted(await self._store.unfinished_jobs(), key=lambda job: job.created_at):
            self._remember(job)
            self._left[job.name] = (job.attempt, self._last_sign(job, last_alive_at))
            if job.anchor is None:
                await self.update(job.name, self._anchored)
            elif not job.anchor.holds:
                sign_at = self._left[job.name][1]
                self._cut_short[job.name] = (job.attempt, sign_at)
                await self.update(job.name, partial(self._anchored, not_before=sign_at))
        self._changed.set()

    def doubt(self, name: str) -> None:
        """Request a check of the record of a job in memory; a damaged record is repaired from memory."""
        if self.live_job(name) is not None:
            self._doubtful.add(name)
            self._changed.set()

    def adopt(self, job: TrainingJob) -> None:
        """Add a stored job that was not in memory until now."""
        self._remember(job)
        self._notify(job.name)

    def cut_short_at(self, job: TrainingJob) -> datetime | None:
        """Return the last sign of life before a boot of this machine that the job's attempt had begun before."""
        attempt, sign_at = self._cut_short.get(job.name, (-1, None))
        return sign_at if attempt == job.attempt else None

    def left_at(self, job: TrainingJob) -> datetime | None:
        """Return the last stored sign of life of an attempt that an earlier service left; None for other attempts."""
        attempt, sign_at = self._left.get(job.name, (-1, None))
        return sign_at if attempt == job.attempt else None

    def now_of(self, job: TrainingJob) -> datetime:
        """Return the current time by the job's own clock."""
        return job.now(self._clock)

    def listen(self, listener: Listener) -> None:
        """Call `listener` for every job that is stored or loaded from now on; it must return at once."""
        self._listeners.append(listener)

    def waiting_jobs(self) -> Mapping[str, TrainingJob]:
        """Return jobs without requested hosts, by name, oldest first."""
        return self._waiting

    def active_jobs(self) -> list[TrainingJob]:
        """Return jobs whose hosts may exist."""
        return list(self._active.values())

    def live_job(self, name: str) -> TrainingJob | None:
        """Return a waiting or active job without reading the store."""
        return self._active.get(name) or self._waiting.get(name)

    def job_of_key(self, access_key_id: str) -> TrainingJob | None:
        """Return the job to whose present attempt a key belongs; None for an unknown key or an ended attempt."""
        for job in self._active.values():
            plan = job.plan
            if plan is not None and plan["job_endpoint"]["credentials"]["access_key_id"] == access_key_id:
                return None if is_parked(job) else job
        return None

    async def create(self, job: TrainingJob, tags: Mapping[str, str], *, trial: Trial | None = None) -> None:
        """Store a new job, and its trial if it has one, and wake the reconciler.

        Args: as `Store.create_job`.
        Raises: JobExists, TrialRefused.
        """
        job = self._anchored(job)
        with self._doubting(job.name):
            await self._store.create_job(job, tags, trial=trial)
        self._remember(job)
        self._changed.set()

    async def apply(self, name: str, event: events.Event, *, at: datetime | None = None) -> TrainingJob:
        """Apply an event durably and return the changed job.

        Args:
            name: name of the job.
            event: event to apply.
            at: time of the event by the job's clock, if it is known to be earlier than now.
        Raises: JobNotFound.
        """
        return await self.update(name, lambda job: transitions.apply(job, event, now=at or self.now_of(job)))

    async def update(self, name: str, change: Callable[[TrainingJob], TrainingJob]) -> TrainingJob:
        """Change a job durably; `change` is pure and may run more than once.

        If `change` returns the same object, no waiter is woken: otherwise the reconciler would wake itself endlessly.

        Raises: JobNotFound; errors of `change`, after which nothing is written.
        """
        has_changed = False
        before: TrainingJob | None = None

        def watched(job: TrainingJob) -> TrainingJob:
            nonlocal has_changed, before
            before, changed = job, change(job)
            has_changed = changed is not job
            return changed

        with self._doubting(name):
            # One service owns the database, so its memory holds the last written record.
            job = await self._store.update_job(name, watched, known=self.live_job(name))
        live = self.live_job(name)
        if has_changed:
            self._remember(job, before)
            self._notify(name)
        elif live is not None and _standing(live) != _standing(job):
            # A write whose confirmation was lost has changed the record before: see `settle_doubts`.
            self._remember(job, live)
            self._notify(name)
        return job

    async def record_metrics(self, name: str, values: list[FinalMetric], *, most: int = MAX_FINAL_METRICS) -> None:
        """Store in the job's record each metric's value with the latest time, for at most `most` names.

        Args:
            name: name of the job.
            values: values of any metrics, in any order.
            most: number of names that the record may hold; further new names are dropped.
        Raises: JobNotFound.
        """

        def merge(job: TrainingJob) -> TrainingJob:
            latest = {metric.name: metric for metric in job.final_metrics}
            for metric in values:
                known = latest.get(metric.name)
                is_newer = metric.at >= known.at if known is not None else len(latest) < most
                if is_newer:
                    latest[metric.name] = metric
            merged = tuple(latest.values())
            return job if merged == job.final_metrics else replace(job, final_metrics=merged)

        await self.update(name, merge)

    async def require_lease(self) -> None:
        """Check that this service still owns the jobs, before an act on hosts that no write precedes.

        Raises: StaleLease if another service owns them.
        """
        await self._store.require_lease()

    async def delete(self, name: str) -> None:
        """Remove an ended job; raises JobNotFound."""
        await self._store.delete_job(name)
        self._waiting.pop(name, None)
        self._active.pop(name, None)
        self._left.pop(name, None)
        self._cut_short.pop(name, None)
        self._note_whether_jobs_are_left()
        self._notify(name)

    async def wait_for_change(self, timeout_s: float) -> None:
        """Wait until any job has changed since the last call, at most `timeout_s`."""
        try:
            # Not asyncio.wait_for, which in Python 3.11 can swallow a cancellation that arrives together with the
            # event.
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()

    async def wait_for_jobs(self) -> None:
        """Wait until a job waits or has hosts; return at once if there is one already."""
        await self._has_jobs.wait()

    async def wait_for_job(self, name: str, timeout_s: float) -> None:
        """Wait until the job called `name` changes, at most `timeout_s`."""
        event = self._watchers.setdefault(name, asyncio.Event())
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return

    def wake_watchers(self) -> None:
        """End all waits of `wait_for_job`, because the service ends."""
        for event in self._watchers.values():
            event.set()
        self._watchers.clear()

    async def settle_doubts(self) -> None:
        """Reload the jobs whose last write failed: a commit may have succeeded although its confirmation was lost.

        Without this, such a job would be accepted and never started, or memory would lack a stored change.

        Raises: StoreError while the database is unavailable.
        """
        for name in list(self._doubtful):
            try:
                # The store's writer also orders this read, so no newer write can be pending.
                job = await self._store.update_job(name, lambda job: job, known=self.live_job(name))
            except (JobNotFound, JobUnreadable):
                self._doubtful.discard(name)
                continue
            self._doubtful.discard(name)
            known = self.live_job(name)
            if job != known:
                self._remember(job, known)
                self._notify(name)

    def _anchored(self, job: TrainingJob, *, not_before: datetime | None = None) -> TrainingJob:
        return replace(job, anchor=ClockAnchor.lay(self._clock, not_before=not_before or job.modified_at))

    def _last_sign(self, job: TrainingJob, last_alive_at: datetime | None) -> datetime:
        """Return when a job from before a boot certainly lived last, by the service's last sign of life.

        A clock that shows less than the job's last change is wrong, as on a machine without a battery, and does not
        limit the sign. Any other clock does: before the boot it may have been wrong.
        """
        sign_at, now = max(job.modified_at, last_alive_at or job.modified_at), self._clock.now()
        return min(sign_at, now) if now >= job.modified_at else sign_at

    @contextlib.contextmanager
    def _doubting(self, name: str) -> Iterator[None]:
        """Mark a job as doubtful if its write failed or was cancelled, but may nevertheless have been committed."""
        try:
            yield
        except (JobExists, JobNotFound, JobUnreadable, StaleLease, TrialRefused):
            raise
        except BaseException:
            self._doubtful.add(name)
            raise

    def _remember(self, job: TrainingJob, before: TrainingJob | None = None) -> None:
        is_active = not job.is_released
        is_waiting = not is_active and not job.is_terminal
        is_back = is_waiting and job.name in self._active
        for jobs, belongs in ((self._active, is_active), (self._waiting, is_waiting)):
            if belongs:
                jobs[job.name] = job
            else:
                jobs.pop(job.name, None)
        if is_back:  # back to its old place in the queue
            self._waiting = dict(sorted(self._waiting.items(), key=lambda item: item[1].created_at))
        self._note_whether_jobs_are_left()
        for listener in self._listeners:
            try:
                listener(before, job)
            except Exception:  # boundary: the change is stored; a listener's error must not undo it
                log.exception("job %s: a change was not taken note of", job.name)

    def _note_whether_jobs_are_left(self) -> None:
        if self._waiting or self._active:
            self._has_jobs.set()
        else:
            self._has_jobs.clear()

    def _notify(self, name: str) -> None:
        watcher = self._watchers.pop(name, None)
        if watcher is not None:
            watcher.set()
        self._changed.set()


def _standing(job: TrainingJob) -> tuple[int, TrainingJobStatus, bool]:
    """Return the facts that decide where a job belongs; unlike whole records, they are cheap to compare."""
    return job.attempt, job.status, job.is_released
