"""The page `stop` of a job: asks it to end, as StopTrainingJob does."""

from __future__ import annotations

from typing import Any

from clary.base.errors import WireError
from clary.control.jobs import events
from clary.control.jobs.training_job import EndCause, TrainingJob
from clary.control.services.call import Services


async def stop_job(services: Services, job: TrainingJob) -> dict[str, Any]:
    """Signal a job's programs and keep its results; answers before they have ended.

    Raises: WireError for a job that is over.
    """
    if job.is_terminal:
        raise WireError("ValidationException", f"{job.name} is over: it is {job.status.value}")
    grace_s = services.settings.stop_grace_s
    changed = await services.hub.apply(job.name, events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=grace_s))
    return {
        "name": job.name,
        "status": changed.status.value,
        "secondary_status": changed.secondary_status.value,
        "grace_s": grace_s,
    }
