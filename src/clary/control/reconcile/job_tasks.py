"""Background tasks for work on a job that takes longer than a pass of the reconciler, at most one per job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from clary.control.background_tasks import FailureLog
from clary.control.jobs.training_job import TrainingJob
from clary.control.store.errors import StaleLease

log = logging.getLogger(__name__)


class JobTasks:
    """Owns one task per job while the job is launched or released."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failures = FailureLog(log)

    def is_busy(self, name: str) -> bool:
        """Whether a task of the job is running."""
        return name in self._tasks

    def open_tasks(self) -> list[asyncio.Task[None]]:
        """Return the running tasks."""
        return list(self._tasks.values())

    def begin(self, job: TrainingJob, work: Callable[[TrainingJob], Coroutine[None, None, None]]) -> None:
        """Start a job's work in the background; its errors are logged."""
        name = job.name

        async def guarded() -> None:
            try:
                await work(job)
            except StaleLease as stale:
                log.warning("job %s: background work was dropped: %s", name, stale.message)
            except Exception as error:  # noqa: BLE001 - boundary: as in `make_pass`; it must not end the service
                self._failures.tell(f"job {name}: background work failed; the next pass tries again", error)
            finally:
                self._tasks.pop(name, None)

        self._tasks[name] = asyncio.create_task(guarded(), name=f"job:{name}")
