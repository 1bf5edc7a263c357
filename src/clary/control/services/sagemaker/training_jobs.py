"""Create, describe, stop, update and delete training jobs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from clary.base.errors import WireError
from clary.contract.rehearsals import is_rehearsal
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control import instance_choice
from clary.control.jobs import validation, warm_pools
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.members.judging import judge
from clary.control.jobs.members.member import Site
from clary.control.jobs.members.place import HERE, ON_NODES
from clary.control.jobs.status_rows import MESSAGES
from clary.control.jobs.training_job import RestartRule, StatusTransition, TrainingJob
from clary.control.jobs.training_status import progress_info
from clary.control.reconcile.admission import Admitted
from clary.control.reconcile.planning import metrics_interval_s
from clary.control.services.call import Call
from clary.control.services.experiments import job_components
from clary.control.services.job_acts import forget_files, stop_job
from clary.control.services.job_descriptions import describe, readable
from clary.control.services.sagemaker import profile_updates
from clary.control.services.sagemaker.metric_requests import check_metrics
from clary.control.services.sagemaker.output_buckets import require_output_buckets
from clary.control.services.sagemaker.profiler_requests import check_profiler, merged_rules, profiler_warnings
from clary.control.services.sagemaker.sources import source_warnings
from clary.control.services.tags import check_tags
from clary.control.services.training_progress import job_progress
from clary.control.settings import Settings
from clary.control.store.damage import JobUnreadable
from clary.control.store.errors import JobExists
from clary.control.tuning.tuning_job import Trial

# Members of the stored request that UpdateTrainingJob changes, besides the keep-alive period in ResourceConfig; in a
# structure, only the given members.
UPDATABLE_MEMBERS = ("ProfilerConfig", "ProfilerRuleConfigurations", "RemoteDebugConfig")

NOT_FOUND = "Requested resource not found."
RELEASE_WAIT_S = 20.0  # longest wait for the release of an ended job's hosts before the job is deleted


async def create_training_job(call: Call) -> Mapping[str, Any]:
    """Check a request as a whole and store the job, which has not started when this returns.

    Raises: WireError: ResourceInUse for a name in use; other codes for a request that is refused.
    """
    return await store_training_job(call)


async def check_training_job(call: Call) -> None:
    """Refuse a request that `create_training_job` would refuse; store no job. Raises: WireError.

    Name, tags and ExperimentConfig are not checked. Missing output buckets are created, as by `create_training_job`.
    """
    request: Mapping[str, Any] = {name: value for name, value in call.params.items() if name != "Tags"}
    validation.check(request, _site(call))
    check_profiler(request)
    await check_metrics(JobRequest(request))
    _admit(call, request)
    await _check_inputs_exist(call, request)
    await require_output_buckets(call, JobRequest(request))


async def store_training_job(
    call: Call,
    *,
    trial: Trial | None = None,
    tuning_job_arn: str = "",
    notes: Sequence[str] = (),
    is_kept_unasked: bool = False,
) -> Mapping[str, Any]:
    """Do the work of `create_training_job`, also for a trial of a tuning job.

    Args:
        call: contains the parameters of CreateTrainingJob.
        trial: trial record that is stored with the job; None for other jobs.
        tuning_job_arn: ARN of the trial's tuning job.
        notes: further warnings.
        is_kept_unasked: whether the service, not a client, has put KeepAlivePeriodInSeconds into the parameters.
    Raises: WireError; TrialRefused.
    """
    request: Mapping[str, Any] = {name: value for name, value in call.params.items() if name != "Tags"}
    tags = check_tags(call.params.get("Tags") or ())
    site = _site(call)
    validation.check(request, site)
    check_profiler(request)
    metric_warnings = await check_metrics(JobRequest(request))
    request, admitted = _admit(call, request)
    await _check_inputs_exist(call, request)
    source_problems = await source_warnings(call, JobRequest(request))
    placing = await job_components.place(call, request)
    name = JobRequest(request).name
    arn = call.arn(f"training-job/{name}")
    if await _is_stored(call, name):
        raise _name_in_use(arn)
    await require_output_buckets(call, JobRequest(request))  # last, because a refused request must make no bucket
    now = call.services.clock.now()
    message = MESSAGES[SecondaryStatus.STARTING]
    job = TrainingJob(
        name=name,
        arn=arn,
        request=request,
        status=TrainingJobStatus.IN_PROGRESS,
        secondary_status=SecondaryStatus.STARTING,
        transitions=(StatusTransition(status=SecondaryStatus.STARTING, started_at=now, message=message),),
        created_at=now,
        modified_at=now,
        tuning_job_arn=tuning_job_arn,
        is_kept_unasked=is_kept_unasked,
        warnings=(
            *notes,
            *_unknown(call),
            *validation.warnings(request, site),
            *_profiler_warnings(call, request),
            *metric_warnings,
            *source_problems,
            *admitted.warnings,
        ),
        emulation=admitted.emulation,
        restart_rule=_restart_rule(JobRequest(request), call.services.settings),
    )
    try:
        await call.services.hub.create(job, tags, trial=trial)
    except JobExists as error:
        raise _name_in_use(error.existing_arn) from error
    if placing is not None:
        await job_components.create(call, job, placing, tags)
    return {"TrainingJobArn": arn}


async def _is_stored(call: Call, name: str) -> bool:
    try:
        return await call.services.store.get_job(name) is not None
    except JobUnreadable:
        return True


def _name_in_use(existing_arn: str) -> WireError:
    return WireError(
        "ResourceInUse",
        "Training job names must be unique within an AWS account and region, and a training job with this name "
        f"already exists ({existing_arn})",
    )


def _admit(call: Call, request: Mapping[str, Any]) -> tuple[Mapping[str, Any], Admitted]:
    """Return the request with its first instance preference that can run here, and the notes on it."""
    refusal: WireError | None = None
    for candidate in instance_choice.candidates(request):
        try:
            return candidate, call.services.admission.admit(candidate)
        except WireError as error:
            if error.code != "ResourceLimitExceeded":
                raise
            refusal = refusal or error
    assert refusal is not None, "there is at least one candidate"
    raise refusal


def _unknown(call: Call) -> tuple[str, ...]:
    return tuple(f"{path} has no effect: this release knows no such member" for path in call.unknown_members)


def _site(call: Call) -> Site:
    """Return the facts about this service that the rules on request members need."""
    settings = call.services.settings
    is_local = settings.engine == "local"
    return Site(
        account_id=settings.account_id,
        machine_is_trusted=settings.machine_is_trusted,
        free_disk_bytes=shutil.disk_usage(settings.home_folder).free if is_local else None,
        place=HERE if is_local else ON_NODES,
        has_host_networks=call.services.admission.has_host_networks,
    )


def _profiler_warnings(call: Call, request: Mapping[str, Any]) -> tuple[str, ...]:
    return profiler_warnings(request, is_measured=bool(call.services.settings.metrics_interval_s))


def _restart_rule(request: JobRequest, settings: Settings) -> RestartRule:
    """Return how often to retry the job: as RetryStrategy says; without it, only if the job has checkpoints."""
    max_restarts = request.max_retries
    if max_restarts is None:
        max_restarts = settings.max_restarts if request.checkpoint_local_path is not None else 0
    # A rehearsal kills ranks on purpose, to test whether the job recovers.
    includes_programs = settings.restart_programs or is_rehearsal(request.request)
    return RestartRule(max_restarts=max_restarts, includes_programs=includes_programs)


async def describe_training_job(call: Call) -> Mapping[str, Any]:
    """Return all members of a job's description."""
    job = await find_job(call)
    reason = call.services.admission.pending_reason(job)
    services = call.services
    now = job.now(services.clock)
    description = describe(job, services.prices, services.settings, now=now, pending_reason=reason)
    if (progress := progress_info(await job_progress(call.services, job))) is not None:
        description["ProgressInfo"] = progress
    return description


async def stop_training_job(call: Call) -> Mapping[str, Any]:
    """Stop a job; its programs are signalled and its results are kept.

    Raises: WireError(ValidationException) for a job that does not exist or has ended.
    """
    job = await find_job(call)
    if await stop_job(call.services, job) is None:
        raise _is_over(job)
    return {}


async def update_training_job(call: Call) -> Mapping[str, Any]:
    """Change the members of a job that may change while it runs. Raises: WireError(ValidationException)."""
    job = await find_job(call)
    resources = call.params.get("ResourceConfig")
    if resources is not None and set(resources) - {"KeepAlivePeriodInSeconds"}:
        raise WireError("ValidationException", "Only KeepAlivePeriodInSeconds of ResourceConfig can be updated.")

    check_profiler(call.params)
    judgement = judge("UpdateTrainingJob", call.params, _site(call))
    for reason in judgement.refusals:
        raise WireError("ValidationException", reason)
    wanted = {name: call.params[name] for name in (*UPDATABLE_MEMBERS, "ResourceConfig") if name in call.params}
    now = job.now(call.services.clock)

    before = readable(job)
    request_after = JobRequest(_updated_request(before, wanted))
    await require_output_buckets(call, request_after, before=JobRequest(before.request))

    def change(current: TrainingJob) -> TrainingJob:
        request = _updated_request(current, wanted)
        plan = current.plan
        if plan is not None and "ProfilerConfig" in wanted:  # hosts get the interval in the answer to their next report
            interval_s = metrics_interval_s(JobRequest(request), call.services.settings)
            plan = {**plan, "metrics_interval_s": interval_s}
        about_profiler = _profiler_warnings(call, readable(replace(current, request=request)).request)
        stale = set(_profiler_warnings(call, readable(current).request)) - set(about_profiler)
        kept = (warning for warning in current.warnings if warning not in stale)
        warnings = tuple(dict.fromkeys((*kept, *_unknown(call), *judgement.warnings, *about_profiler)))
        modified_at = max(now, current.modified_at)
        return replace(
            current,
            request=request,
            plan=plan,
            warnings=warnings,
            modified_at=modified_at,
            is_kept_unasked=current.is_kept_unasked and "ResourceConfig" not in wanted,
        )

    updated = await call.services.hub.update(job.name, change)
    await profile_updates.follow(call.services, updated, wanted.get("ProfilerConfig"))
    return {"TrainingJobArn": job.arn}


def _updated_request(job: TrainingJob, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a job's request after an update; raises WireError if the job's state does not permit it."""
    if "ResourceConfig" in wanted and not warm_pools.can_be_updated(job):
        raise _has_no_pool(job)
    if job.is_terminal and "ResourceConfig" not in wanted:
        raise _is_over(job)
    request = dict(job.request)
    for name, value in wanted.items():
        is_structure = isinstance(value, Mapping) and isinstance(request.get(name), Mapping)
        request[name] = {**request[name], **value} if is_structure else value
    if "ProfilerRuleConfigurations" in wanted:
        before = job.request.get("ProfilerRuleConfigurations") or ()
        request["ProfilerRuleConfigurations"] = merged_rules(before, wanted["ProfilerRuleConfigurations"])
        check_profiler(request)
    return request


async def delete_training_job(call: Call) -> Mapping[str, Any]:
    """Delete an ended job, with its logs, dumps, profiles, rehearsals and tags; its results in S3 stay.

    Raises: WireError(ValidationException); WireError(ResourceInUse) if its hosts are still being released.
    """
    job = await _released_job(call)
    async with call.services.hub.deletion:
        if (await find_job(call)).created_at != job.created_at:
            raise WireError("ValidationException", NOT_FOUND)  # deleted meanwhile, and its name is in use again
        # The record is deleted last: until then the name stays in use, and a failed deletion can be repeated.
        await forget_files(call.services, job.name)
        await job_components.keep(call, job)
        await call.services.hub.delete(job.name)
    return {}


async def _released_job(call: Call) -> TrainingJob:
    """Return the job once all its hosts are released; clients may delete it as soon as its status is Completed."""
    clock = call.services.clock
    deadline_s = clock.monotonic() + RELEASE_WAIT_S
    while True:
        job = await find_job(call)
        if not job.is_terminal:
            raise WireError(
                "ValidationException",
                f"The request was rejected because the training job is in status {job.status.value}; "
                "only jobs that have ended can be deleted.",
            )
        if job.is_released:
            return job
        if warm_pools.is_parked(job):
            raise WireError(
                "ValidationException",
                f"The request was rejected because training job {job.name} retains an Available warm pool; set "
                "KeepAlivePeriodInSeconds to 0 with UpdateTrainingJob first.",
            )
        left_s = deadline_s - clock.monotonic()
        if left_s <= 0:
            raise WireError(
                "ResourceInUse",
                f"The hosts of training job {job.name} are still being released; try again in a few seconds.",
            )
        await call.services.hub.wait_for_job(job.name, left_s)


async def find_job(call: Call) -> TrainingJob:
    """Return the job that the call names; raises the real service's error if the job does not exist."""
    job = await call.services.find_job(call.params["TrainingJobName"])
    if job is None:
        raise WireError("ValidationException", NOT_FOUND)
    return job


def _has_no_pool(job: TrainingJob) -> WireError:
    state = "has no warm pool" if job.warm_pool is None else f"has a warm pool in status {job.warm_pool.status.value}"
    return WireError(
        "ValidationException",
        f"KeepAlivePeriodInSeconds cannot be updated: training job {job.name} {state}. It can be updated while the "
        "warm pool of a job that was created with it is InUse or Available.",
    )


def _is_over(job: TrainingJob) -> WireError:
    return WireError(
        "ValidationException", f"The request was rejected because the training job is in status {job.status.value}."
    )


async def _check_inputs_exist(call: Call, request: Mapping[str, Any]) -> None:
    job = JobRequest(request)
    for channel in job.channels:
        if channel.s3_uri is None:
            continue
        bucket, _, prefix = channel.s3_uri.removeprefix("s3://").partition("/")
        if not await _has_objects(call, bucket, prefix):
            raise WireError(
                "ValidationException",
                f'No S3 objects found under S3 URL "{channel.s3_uri}" given in input data source. Please ensure that '
                f"the bucket exists in the selected region ({call.region}), that objects exist under that S3 prefix, "
                f'and that the role "{job.role_arn}" has "s3:ListBucket" permissions on bucket "{bucket}".'
                + await _missing_bucket(call, bucket),
            )


async def _has_objects(call: Call, bucket: str, prefix: str) -> bool:
    try:
        return await call.services.objects.has_objects(bucket, prefix)
    except WireError as error:  # AWS, whose public bucket it is, does not answer
        raise WireError("ValidationException", error.message) from error


async def _missing_bucket(call: Call, bucket: str) -> str:
    """Return a sentence about a bucket that does not exist here; empty if it exists."""
    if await call.services.objects.has_bucket(bucket):
        return ""
    return (
        f" There is no bucket {bucket} in this service's store. A public bucket of AWS is read if setting "
        "public_buckets names it and setting internet is on (docs/s3.md, Public data)."
    )
