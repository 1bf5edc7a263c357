"""Create, describe, list, stop and delete hyperparameter tuning jobs, and list their training jobs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clary.base.clock import ClockAnchor
from clary.base.errors import WireError
from clary.control.services.call import Call
from clary.control.services.sagemaker.training_jobs import check_training_job
from clary.control.services.tags import check_tags
from clary.control.services.tuning.instance_configs import act_on_first
from clary.control.services.tuning.tuning_acts import stop_tuning
from clary.control.services.tuning_answers import trial_status, trial_summary, tuning_summary
from clary.control.services.tuning_descriptions import describe_tuning, live_jobs
from clary.control.store.errors import BadToken
from clary.control.store.tracking.tuning_records import TuningJobExists, TuningJobNotFound, TuningQuery, TuningSort
from clary.control.tuning.parameter_space import Space
from clary.control.tuning.search import Question, propose
from clary.control.tuning.trial_requests import trial_requests
from clary.control.tuning.tuning_job import TuningJob, TuningStatus
from clary.control.tuning.tuning_request import TuningRequest
from clary.control.tuning.validation import check
from clary.control.tuning.warm_start import why_not_parent, with_metrics_of

DEFAULT_PAGE = 10
SEED_BITS = 31


async def create_tuning_job(call: Call) -> Mapping[str, Any]:
    """Check a request as a whole, training jobs included, and store the tuning job, without starting a trial.

    Raises: WireError(ResourceInUse, ResourceNotFound, ValidationException, ResourceLimitExceeded).
    """
    raw: Mapping[str, Any] = {name: value for name, value in call.params.items() if name != "Tags"}
    tags = check_tags(call.params.get("Tags") or ())
    raw = await _with_parents_metrics(call, raw)
    check(raw)
    request = TuningRequest(raw)
    services = call.services
    if await services.store.tuning.get(request.name) is not None:
        raise _exists(request.name)
    await _check_parents(call, request)
    for definition in request.definitions:
        name = f"{request.name}-000-00000000"
        point = await asyncio.to_thread(_some_point, definition.space, request)
        requests = trial_requests(definition, point, name)
        await act_on_first(replace(call, unknown_members=()), requests, check_training_job)
    now = services.clock.now()
    job = TuningJob(
        name=request.name,
        arn=call.arn(f"hyper-parameter-tuning-job/{request.name}"),
        request=raw,
        status=TuningStatus.IN_PROGRESS,
        created_at=now,
        modified_at=now,
        anchor=ClockAnchor.lay(services.clock, not_before=now),
        seed=secrets.randbits(SEED_BITS) if request.random_seed is None else request.random_seed,
        unknown_members=call.unknown_members,
    )
    try:
        await services.store.tuning.create(job, tags)
    except TuningJobExists as error:
        raise _exists(request.name) from error
    services.tuning.wake(job.name)
    return {"HyperParameterTuningJobArn": job.arn}


async def describe(call: Call) -> Mapping[str, Any]:
    """Return all members of a tuning job's description. Raises: WireError(ResourceNotFound)."""
    return await describe_tuning(call.services, await _find(call))


async def list_tuning_jobs(call: Call) -> Mapping[str, Any]:
    """List summaries of tuning jobs. Raises: WireError(ValidationException)."""
    params = call.params
    query = TuningQuery(
        name_contains=params.get("NameContains"),
        status=params.get("StatusEquals"),
        created_after=params.get("CreationTimeAfter"),
        created_before=params.get("CreationTimeBefore"),
        modified_after=params.get("LastModifiedTimeAfter"),
        modified_before=params.get("LastModifiedTimeBefore"),
        sort=TuningSort(params.get("SortBy", "Name")),
        descending=params.get("SortOrder", "Ascending") == "Descending",
    )
    records = call.services.store.tuning
    try:
        jobs, token = await records.page(
            query, max_results=params.get("MaxResults") or DEFAULT_PAGE, next_token=params.get("NextToken")
        )
    except BadToken as error:
        raise WireError("ValidationException", f"Invalid NextToken: {error.message}") from error
    summaries = [tuning_summary(job, await records.trials(job.name)) for job in jobs]
    answer: dict[str, Any] = {"HyperParameterTuningJobSummaries": summaries}
    return answer if token is None else {**answer, "NextToken": token}


async def list_training_jobs_of(call: Call) -> Mapping[str, Any]:
    """List the training jobs of a tuning job. Raises: WireError(ResourceNotFound, ValidationException)."""
    job, params = await _find(call), call.params
    trials = await call.services.store.tuning.trials(job.name)
    live = live_jobs(call.services, trials)
    if (status := params.get("StatusEquals")) is not None:
        trials = [trial for trial in trials if trial_status(trial, live.get(trial.job_name)).value == status]
    sort = params.get("SortBy", "Name")
    if sort == "FinalObjectiveMetricValue":
        trials = [trial for trial in trials if trial.value is not None]
    keys = {
        "Name": lambda trial: trial.job_name,
        "CreationTime": lambda trial: (trial.created_at, trial.number),
        "Status": lambda trial: (trial_status(trial, live.get(trial.job_name)).value, trial.job_name),
        "FinalObjectiveMetricValue": lambda trial: (trial.value, trial.number),
    }
    trials = sorted(trials, key=keys[sort], reverse=params.get("SortOrder", "Ascending") == "Descending")
    identity = ["trials", job.arn, job.created_at.isoformat(), status, sort, params.get("SortOrder", "Ascending")]
    try:
        page, token = call.services.store.tuning.cut(
            trials,
            identity=identity,
            max_results=params.get("MaxResults") or DEFAULT_PAGE,
            next_token=params.get("NextToken"),
        )
    except BadToken as error:
        raise WireError("ValidationException", f"Invalid NextToken: {error.message}") from error
    answer: dict[str, Any] = {
        "TrainingJobSummaries": [trial_summary(job, trial, live.get(trial.job_name)) for trial in page]
    }
    return answer if token is None else {**answer, "NextToken": token}


async def stop_tuning_job(call: Call) -> Mapping[str, Any]:
    """Start no further training job, and stop the running training jobs.

    Raises: WireError(ResourceNotFound, ValidationException).
    """
    job = await _find(call)
    try:
        await stop_tuning(call.services, job)
    except TuningJobNotFound as error:
        raise _not_found(job.name) from error
    return {}


async def delete_tuning_job(call: Call) -> Mapping[str, Any]:
    """Delete an ended tuning job; its training jobs and their results stay.

    Raises: WireError(ResourceNotFound, ValidationException).
    """
    job = await _find(call)
    if not job.is_terminal:
        raise WireError(
            "ValidationException",
            f"The request was rejected because the hyperparameter tuning job is in status {job.status.value}; only "
            "those that have ended can be deleted.",
        )
    try:
        await call.services.store.tuning.remove(job.name)
    except TuningJobNotFound as error:
        raise _not_found(job.name) from error
    return {}


async def _find(call: Call) -> TuningJob:
    name = call.params["HyperParameterTuningJobName"]
    job = await call.services.store.tuning.get(name)
    if job is None:
        raise _not_found(name)
    return job


async def _with_parents_metrics(call: Call, raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add a parent's metrics to a request whose only definition names no metric.

    The SDK's `identical_dataset_and_algorithm_tuner` and `transfer_learning_tuner` omit metrics.
    """
    definition = raw.get("TrainingJobDefinition")
    if not definition or definition["AlgorithmSpecification"].get("MetricDefinitions"):
        return raw
    for name in TuningRequest(raw).parents:
        parent = await call.services.store.tuning.get(name)
        metrics = None if parent is None else with_metrics_of(definition, parent)
        if metrics is not None:
            return {**raw, "TrainingJobDefinition": metrics}
    return raw


async def _check_parents(call: Call, request: TuningRequest) -> None:
    for name in request.parents:
        parent = await call.services.store.tuning.get(name)
        if parent is None:
            raise _not_found(name)
        if why := why_not_parent(request, parent):
            raise WireError("ValidationException", why)


def _some_point(space: Space, request: TuningRequest) -> dict[str, str]:
    """Return hyperparameters of a possible trial, with which to check whether training jobs would be accepted."""
    strategy = request.strategy if request.strategy == "Grid" else "Random"
    return propose(Question(strategy=strategy, space=space, is_maximized=True, observations=(), seed=0, number=0))


def _exists(name: str) -> WireError:
    return WireError(
        "ResourceInUse",
        f"A hyperparameter tuning job with the name, {name}, already exists. Choose a different name.",
    )


def _not_found(name: str) -> WireError:
    return WireError("ResourceNotFound", f"Amazon SageMaker can't find a tuning job called {name}. Type another name.")
