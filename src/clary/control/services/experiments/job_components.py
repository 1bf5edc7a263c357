"""The trial component of a training job: its name, its creation, and its members.

Where: CreateTrainingJob with an ExperimentConfig creates the component; for any other job the first request that names
the component creates it. Status, times, parameters and artifacts are read from the job's record; when the job is
deleted, their last values are stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from clary.base.errors import WireError
from clary.control.instance_choice import settled
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import TrainingJob
from clary.control.services.call import Call
from clary.control.services.experiments import naming
from clary.control.services.experiments.summaries import KEPT, metric_summaries, owner_of
from clary.control.services.job_descriptions import readable
from clary.control.store.job_queries import MAX_RESULTS, JobQuery
from clary.control.store.tracking.component_metrics import Owner
from clary.control.store.tracking.experiment_rows import Kind, Tracked, TrackedExists
from clary.control.store.tracking.experiments import TrackedQuery

SUFFIX = "-aws-training-job"
SOURCE_TYPE = "SageMakerTrainingJob"
_JOB_KIND = "training-job"  # in ARNs
MAX_NAME = 120
MAX_TEXT = 2500  # StringParameterValue
MAX_PARAMETERS = 300


@dataclass(frozen=True)
class Placing:
    """Experiment and trial of a new job's component."""

    trial: str | None
    new_trial_of: str | None  # experiment in which a trial is created for this job
    display_name: str | None


async def place(call: Call, request: Mapping[str, Any]) -> Placing | None:
    """Return the experiment and trial that the request's ExperimentConfig names; None without ExperimentConfig.

    Raises: WireError(ValidationException) for an experiment, trial or run that does not exist, and for an experiment
        and a trial that do not belong together.
    """
    config = request.get("ExperimentConfig")
    if not config:
        return None
    store = call.services.store.experiments
    experiment = config.get("ExperimentName")
    if experiment is not None and await store.get(Kind.EXPERIMENT, experiment) is None:
        raise WireError("ValidationException", f"Experiment '{experiment}' of ExperimentConfig does not exist.")
    trial = config.get("TrialName")
    if trial is not None:
        found = await store.get(Kind.TRIAL, trial)
        if found is None:
            raise WireError("ValidationException", f"Trial '{trial}' of ExperimentConfig does not exist.")
        if experiment is not None and found.parent.lower() != experiment.lower():
            raise WireError(
                "ValidationException",
                f"Trial '{trial}' of ExperimentConfig belongs to experiment '{found.parent}', not to '{experiment}'.",
            )
    run = config.get("RunName")
    if run is not None and await store.get(Kind.COMPONENT, run) is None:
        raise WireError("ValidationException", f"Run '{run}' of ExperimentConfig does not exist.")
    new_trial_of = experiment if trial is None else None
    return Placing(trial, new_trial_of, config.get("TrialComponentDisplayName"))


async def create(call: Call, job: TrainingJob, placing: Placing, tags: Mapping[str, str]) -> None:
    """Create the component of a job that was just stored; it replaces the component of an earlier job of the same name.

    Args:
        call: CreateTrainingJob.
        job: the stored job.
        placing: result of `place`; a trial is created if it names only an experiment.
        tags: tags of the job, which the component gets, too.
    Raises: WireError, as raised by `api_errors`.
    """
    store = call.services.store.experiments
    trial = placing.trial
    with naming.api_errors():
        if placing.new_trial_of is not None:
            trial = f"{job.name}-aws-trial"
            new_trial = naming.new_record(call, Kind.TRIAL, trial, {}, parent=placing.new_trial_of)
            with suppress(TrackedExists):  # created for an earlier job of the same name
                await store.create(new_trial, {})
        document = {} if placing.display_name is None else {"DisplayName": placing.display_name}
        component = _record(call, job, document)
        await store.create(component, tags, trials=[] if trial is None else [trial], replaces=True)


async def find_component(call: Call, name: str) -> Tracked:
    """Return a component by its name or ARN; a job's component is created if it does not exist yet.

    Raises: WireError(ResourceNotFound).
    """
    store = call.services.store.experiments
    plain_name = name.rpartition("/")[2] if name.startswith("arn:") else name
    found = await store.get(Kind.COMPONENT, plain_name)
    if found is None:
        job = await _job_called(call, plain_name)
        if job is None:
            raise naming.not_found(Kind.COMPONENT, plain_name)
        return await _ensure(call, job)
    if found.document.get(KEPT):
        job = await call.services.find_job(found.source.rpartition("/")[2])
        if job is not None and job.created_at != found.created_at:  # the found job is a later job of the same name
            found = _record(call, job, {})
            await store.create(found, {}, replaces=True)
    return found


async def owner_of_arn(call: Call, arn: str) -> Owner:
    """Return the owner of the values of a component or training job, named by its ARN or a component's name.

    Raises: WireError(ResourceNotFound).
    """
    kind, _, name = arn.rpartition(":")[2].partition("/")
    if kind != _JOB_KIND:
        return owner_of(await find_component(call, arn))
    job = await _job_called(call, name + SUFFIX)
    if job is None:
        raise WireError("ResourceNotFound", f"There is no training job {name}.", http_status=404)
    return Owner(name=job.name, of_job=True)


async def ensure_of_source(call: Call, source_arn: str) -> None:
    """Create the missing component of the job with this ARN (upper or lower case), if there is such a job."""
    store = call.services.store.experiments
    known = await store.all_of(TrackedQuery(kind=Kind.COMPONENT, source=source_arn))
    if known:
        return
    job = await _job_called(call, source_arn.rpartition("/")[2] + SUFFIX)
    if job is not None and job.arn.lower() == source_arn.lower():
        await _ensure(call, job)


async def keep(call: Call, job: TrainingJob) -> None:
    """Store the members of a job's component before the job is deleted; does nothing without a component."""
    store = call.services.store.experiments
    stored = await store.get(Kind.COMPONENT, job.name + SUFFIX)
    if stored is None:
        return
    metrics = await metric_summaries(call, [stored])
    kept = {**describe_job(job), **stored.document, "Metrics": metrics.get(stored.key, []), KEPT: True}

    def change(thing: Tracked) -> Tracked:
        return replace(thing, document=kept)

    with naming.api_errors():
        await store.change(Kind.COMPONENT, stored.name, change)


async def job_of(call: Call, thing: Tracked) -> TrainingJob | None:
    """Return the job that a component describes; None if it has no job, or the job was deleted."""
    if not thing.source or thing.document.get(KEPT):
        return None
    return await call.services.find_job(thing.source.rpartition("/")[2])


def describe_job(job: TrainingJob) -> dict[str, Any]:
    """Return the members of a job's component that are derived from the job's record."""
    job = readable(job)
    failure = "" if job.failure is None else job.failure.reason
    message = f"Status: {job.status}, secondary status: {job.secondary_status}, failure reason: {failure}."
    return naming.without_none(
        {
            "Status": {"PrimaryStatus": str(job.status), "Message": message[:1024]},
            "StartTime": job.training_started_at,
            "EndTime": job.training_ended_at,
            "Parameters": _parameters(JobRequest(job.request)),
            "InputArtifacts": _inputs(JobRequest(job.request)),
            "OutputArtifacts": _outputs(job),
        }
    )


def _record(call: Call, job: TrainingJob, document: Mapping[str, Any]) -> Tracked:
    name = job.name + SUFFIX
    component = naming.new_record(call, Kind.COMPONENT, name, document, source=job.arn)
    return replace(component, created_at=job.created_at, modified_at=job.created_at)


async def _ensure(call: Call, job: TrainingJob) -> Tracked:
    component = _record(call, job, {})
    store = call.services.store.experiments
    try:
        await store.create(component, {})
    except TrackedExists:
        return await naming.find(call, Kind.COMPONENT, component.name)
    return component


async def _job_called(call: Call, component: str) -> TrainingJob | None:
    """Return the job whose component has the name, ignoring case: the SDK asks in lower case."""
    if not component.lower().endswith(SUFFIX):
        return None
    name = component[: -len(SUFFIX)]
    job = await call.services.find_job(name)
    if job is not None or name != name.lower():
        return job
    token = None
    while True:
        page = await call.services.store.list_jobs(JobQuery(max_results=MAX_RESULTS, next_token=token))
        for item in page.summaries:
            if item.name.lower() == name:
                return await call.services.find_job(item.name)
        token = page.next_token
        if token is None:
            return None


def _parameters(request: JobRequest) -> dict[str, dict[str, Any]]:
    raw = request.request
    resources = settled(raw.get("ResourceConfig") or {})
    found: dict[str, dict[str, Any]] = {name: _value(text) for name, text in (raw.get("HyperParameters") or {}).items()}
    own: Mapping[str, Any] = {
        "SageMaker.ImageUri": (raw.get("AlgorithmSpecification") or {}).get("TrainingImage"),
        "SageMaker.InstanceType": resources.get("InstanceType"),
        "SageMaker.InstanceCount": resources.get("InstanceCount"),
        "SageMaker.VolumeSizeInGB": resources.get("VolumeSizeInGB"),
    }
    for name, value in own.items():
        if value is not None:
            found[name] = {"NumberValue": float(value)} if isinstance(value, int) else {"StringValue": value}
    return dict(list(found.items())[:MAX_PARAMETERS])


def _value(text: str) -> dict[str, Any]:
    """Return the text of a hyperparameter as a number if it is one."""
    try:
        number = float(text)
    except ValueError:
        return {"StringValue": text[:MAX_TEXT]}
    return {"NumberValue": number} if math.isfinite(number) else {"StringValue": text}


def _inputs(request: JobRequest) -> dict[str, dict[str, str]]:
    found = {}
    for channel in request.request.get("InputDataConfig") or ():
        uri = channel.get("DataSource", {}).get("S3DataSource", {}).get("S3Uri")
        if uri is not None:
            media = {"MediaType": channel["ContentType"]} if channel.get("ContentType") else {}
            found[channel["ChannelName"]] = {**media, "Value": uri}
    return found


def _outputs(job: TrainingJob) -> dict[str, dict[str, str]]:
    found = {}
    hook = (job.request.get("DebugHookConfig") or {}).get("S3OutputPath")
    if hook is not None:
        found["SageMaker.DebugHookOutput"] = {"Value": hook}
    if job.model_artifacts_uri is not None:
        found["SageMaker.ModelArtifact"] = {"Value": job.model_artifacts_uri.rstrip("/")}
    return found
