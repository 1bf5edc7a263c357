"""Reads the progress of a job's training from the store."""

from __future__ import annotations

from clary.contract.training_values import TrainingProgress
from clary.control.jobs.training_job import TrainingJob
from clary.control.jobs.training_status import of_hosts
from clary.control.services.call import Services


async def job_progress(services: Services, job: TrainingJob) -> TrainingProgress | None:
    """Return the progress of the job's current attempt; None while it is unknown."""
    if not job.attempt:
        return None
    said = await services.store.training.progress_of(job.name, job.attempt)
    return of_hosts({one.host: one.progress for one in said}, list(job.hosts))
