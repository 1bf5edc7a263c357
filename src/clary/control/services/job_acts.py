"""Actions on a job that both the AWS API and the service's own pages offer."""

from __future__ import annotations

from clary.control import effects
from clary.control.jobs import events
from clary.control.jobs.training_job import EndCause, TrainingJob
from clary.control.services.call import Services


async def stop_job(services: Services, job: TrainingJob) -> TrainingJob | None:
    """Signal a job's programs and keep its results; returns before they have ended. Returns None for an ended job."""
    if job.is_terminal:
        return None
    grace_s = services.settings.stop_grace_s
    return await services.hub.apply(job.name, events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=grace_s))


async def forget_files(services: Services, name: str) -> None:
    """Remove a job's files outside of the database: log, work folders, traces of profiles, rehearsals."""
    effects.note()
    await services.logs.delete_streams(f"{name}/")
    await services.work_folders.forget(name)
    await services.profiles.forget(name)
    if services.rehearsals is not None:
        await services.rehearsals.forget(name)
