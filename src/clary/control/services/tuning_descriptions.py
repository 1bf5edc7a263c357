"""Descriptions of tuning jobs, with their trials.

Where: the answers of DescribeHyperParameterTuningJob and Search.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clary.control.jobs.training_job import TrainingJob
from clary.control.services.call import Services
from clary.control.services.tuning_answers import describe_tuning_job
from clary.control.tuning.standing import best_of
from clary.control.tuning.tuning_job import Trial, TuningJob
from clary.control.tuning.tuning_request import TuningRequest


async def describe_tuning(services: Services, job: TuningJob) -> dict[str, Any]:
    """Return the members of a DescribeHyperParameterTuningJob answer."""
    trials = await services.store.tuning.trials(job.name)
    request = TuningRequest(job.request)
    parents: list[Trial] = []
    if request.is_identical_to_parents:
        for name in request.parents:
            parents += await services.store.tuning.trials(name)
    best = best_of(parents, request.objective) if parents else None
    return describe_tuning_job(job, trials, live_jobs(services, trials), parents_best=best)


def live_jobs(services: Services, trials: Sequence[Trial]) -> dict[str, TrainingJob]:
    """Return the training jobs of unfinished trials, by job name."""
    found = {trial.job_name: services.hub.live_job(trial.job_name) for trial in trials if not trial.is_over}
    return {name: job for name, job in found.items() if job is not None}
