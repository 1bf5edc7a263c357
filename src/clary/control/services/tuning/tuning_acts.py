"""Actions on a tuning job that both the AWS API and the service's own pages offer."""

from __future__ import annotations

from dataclasses import replace

from clary.base.errors import WireError
from clary.control.services.call import Services
from clary.control.tuning.tuning_job import TuningJob, TuningStatus


async def stop_tuning(services: Services, job: TuningJob) -> TuningJob:
    """Start no further training job and stop the running training jobs; return before they have ended.

    Args:
        services: parts of the service.
        job: record of the tuning job.
    Raises: WireError(ValidationException) for an ended tuning job; TuningJobNotFound for a deleted one.
    """
    now = job.now(services.clock)

    def change(current: TuningJob) -> TuningJob:
        if current.is_terminal:
            raise WireError(
                "ValidationException",
                f"The request was rejected because the hyperparameter tuning job is in status {current.status.value}.",
            )
        return replace(
            current,
            status=TuningStatus.STOPPING,
            ends_as=TuningStatus.STOPPED,
            stops_running=True,
            end_reason="it was stopped",
            modified_at=now,
        )

    changed = await services.store.tuning.change(job.name, change)
    services.tuning.wake(job.name)
    return changed
