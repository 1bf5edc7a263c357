"""DescribeTrainingJob and summaries from a job's record. Pure.

Source: DescribeTrainingJobResponse; members that clients read without a default are always present
(`OutputDataConfig.KmsKeyId`, StatusMessage of every transition, times of at least one second).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from clary.contract.statuses import SecondaryStatus
from clary.control.analysis.billing import bill
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.members.told_defaults import with_defaults
from clary.control.jobs.rules.rule_evaluations import RuleKind, rows_of
from clary.control.jobs.training_job import TrainingJob, WarmPool
from clary.control.reconcile.planning import metrics_interval_s
from clary.control.scheduling.prices import PriceList
from clary.control.settings import Settings
from clary.control.wire.fitting import fit

REQUEST_SHAPE = "CreateTrainingJobRequest"
DESCRIPTION_SHAPE = "DescribeTrainingJobResponse"
SEARCH_SHAPE = "TrainingJob"


def describe(
    job: TrainingJob, prices: PriceList, settings: Settings, *, now: datetime, pending_reason: str = ""
) -> dict[str, Any]:
    """Return the members of DescribeTrainingJob.

    Args:
        job: record of the job.
        prices: prices of hosts; spot prices make billable time shorter than training time.
        settings: contain the interval of measurements that applies if neither request nor plan has one.
        now: end of time spans that have not ended, such as the wait of a warm pool.
        pending_reason: why the job waits now; replaces that part of the stored message, which may be older.
    """
    job = readable(job)
    description: dict[str, Any] = {
        **_told_request(job),
        "TrainingJobArn": job.arn,
        "TuningJobArn": job.tuning_job_arn or None,
        "TrainingJobStatus": job.status.value,
        "SecondaryStatus": job.secondary_status.value,
        "SecondaryStatusTransitions": _transitions(job, pending_reason),
        "CreationTime": job.created_at,
        "LastModifiedTime": job.modified_at,
        "TrainingStartTime": job.training_started_at,
        "TrainingEndTime": job.training_ended_at,
        "FinalMetricDataList": [
            {"MetricName": metric.name, "Value": metric.value, "Timestamp": metric.at} for metric in job.final_metrics
        ]
        or None,
        "DebugRuleEvaluationStatuses": rows_of(job, RuleKind.DEBUG) or None,
        "ProfilerRuleEvaluationStatuses": rows_of(job, RuleKind.PROFILER) or None,
        **_profiler(job, settings),
    }
    price = prices.of_job(JobRequest(job.request))
    billed = bill(job, price, now=job.modified_at) if job.is_terminal else None
    if billed is not None:
        description["TrainingTimeInSeconds"] = billed.training_s
        description["BillableTimeInSeconds"] = billed.billable_s
    if job.model_artifacts_uri is not None:
        description["ModelArtifacts"] = {"S3ModelArtifacts": job.model_artifacts_uri.rstrip("/")}
    if job.warm_pool is not None:
        description["WarmPoolStatus"] = warm_pool_status(job.warm_pool, now=now)
    if job.secondary_status is SecondaryStatus.FAILED and job.failure is not None:
        description["FailureReason"] = job.failure.reason
    return {name: value for name, value in description.items() if value is not None}


def for_search(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a description that Search's structure TrainingJob has."""
    return fit(SEARCH_SHAPE, description).document


def readable(job: TrainingJob) -> TrainingJob:
    """Return the job with only those members of its stored request that fit the model's types.

    Another release or a bad disk may have left members that this release's model lacks or gives other types.
    """
    return replace(job, request=fit(REQUEST_SHAPE, job.request).document)


def unreadable_members(job: TrainingJob) -> tuple[str, ...]:
    """Return the dotted paths of members of the stored request that no answer can contain."""
    return fit(REQUEST_SHAPE, job.request).left_out


def warm_pool_status(pool: WarmPool, *, now: datetime) -> dict[str, Any]:
    """Return the structure WarmPoolStatus."""
    status: dict[str, Any] = {"Status": pool.status.value}
    if pool.available_at is not None:
        status["ResourceRetainedBillableTimeInSeconds"] = int(pool.retained_s(now))
    if pool.reused_by:
        status["ReusedByJob"] = pool.reused_by
    return status


def _told_request(job: TrainingJob) -> dict[str, Any]:
    """Return the request with defaults, and without the keep-alive period of a trial if only the service has set it."""
    told = fit(DESCRIPTION_SHAPE, job.request).document
    if job.is_kept_unasked:
        resources = told.get("ResourceConfig") or {}
        told["ResourceConfig"] = {
            name: value for name, value in resources.items() if name != "KeepAlivePeriodInSeconds"
        }
    return with_defaults(told)


def _profiler(job: TrainingJob, settings: Settings) -> dict[str, Any]:
    """Return the profiler's members of an answer; a configuration that only disables the profiler is omitted."""
    request = JobRequest(job.request)
    config = job.request.get("ProfilerConfig")
    if request.is_profiler_disabled:
        is_all = set(config or ()) == {"DisableProfiler"}
        return {"ProfilingStatus": "Disabled", "ProfilerConfig": None if is_all else config}
    if config is None:
        has_rules = bool(job.request.get("ProfilerRuleConfigurations"))
        return {"ProfilingStatus": "Enabled" if has_rules else "Disabled"}
    interval_s = (job.plan or {}).get("metrics_interval_s", metrics_interval_s(request, settings))
    interval = {"ProfilingIntervalInMilliseconds": round(interval_s * 1000)} if interval_s else {}
    return {"ProfilingStatus": "Enabled", "ProfilerConfig": {**interval, **config}}


def _transitions(job: TrainingJob, pending_reason: str) -> list[dict[str, Any]]:
    if pending_reason and job.past_attempts:  # as `attempts.wait` stores it: why the last attempt ended stays known
        pending_reason = f"{job.past_attempts[-1].reason}; {pending_reason}"
    rows = []
    for index, row in enumerate(job.transitions):
        is_last = index == len(job.transitions) - 1
        message = pending_reason if is_last and pending_reason and not job.is_terminal else row.message
        item = {"Status": row.status.value, "StartTime": row.started_at, "StatusMessage": message}
        if row.ended_at is not None:
            item["EndTime"] = row.ended_at
        rows.append(item)
    return rows
