"""ListTrainingJobs: filters, sorting, pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clary.base.errors import WireError
from clary.contract.statuses import TrainingJobStatus, WarmPoolStatus
from clary.control.services.call import Call
from clary.control.services.job_descriptions import warm_pool_status
from clary.control.store.errors import BadToken
from clary.control.store.job_queries import JobQuery, SortBy

DEFAULT_PAGE = 10
SORT_KEYS = {"Name": SortBy.NAME, "CreationTime": SortBy.CREATION_TIME, "Status": SortBy.STATUS}


async def list_training_jobs(call: Call) -> Mapping[str, Any]:
    """List summaries of jobs; newest first by default. Raises: WireError(ValidationException)."""
    params = call.params
    # No job of this service has a training plan, or one of the model's other statuses.
    is_foreign = params.get("TrainingPlanArnEquals")
    if is_foreign or params.get("StatusEquals") not in (None, *TrainingJobStatus):
        return {"TrainingJobSummaries": []}
    query = JobQuery(
        name_contains=params.get("NameContains"),
        status_equals=_status(params.get("StatusEquals")),
        warm_pool_status_equals=_warm_pool_status(params.get("WarmPoolStatusEquals")),
        created_after=params.get("CreationTimeAfter"),
        created_before=params.get("CreationTimeBefore"),
        modified_after=params.get("LastModifiedTimeAfter"),
        modified_before=params.get("LastModifiedTimeBefore"),
        sort_by=SORT_KEYS[params.get("SortBy", "CreationTime")],
        descending=params.get("SortOrder", "Descending") == "Descending",
        max_results=params.get("MaxResults") or DEFAULT_PAGE,
        next_token=params.get("NextToken"),
    )
    try:
        page = await call.services.store.list_jobs(query)
    except BadToken as error:
        raise WireError("ValidationException", f"Invalid NextToken: {error.message}") from error
    now = call.services.clock.now()
    summaries = [
        {
            "TrainingJobName": item.name,
            "TrainingJobArn": item.arn,
            "CreationTime": item.created_at,
            "TrainingEndTime": item.training_ended_at,
            "LastModifiedTime": item.modified_at,
            "TrainingJobStatus": str(item.status),
            "SecondaryStatus": str(item.secondary_status),
            **({} if item.warm_pool is None else {"WarmPoolStatus": warm_pool_status(item.warm_pool, now=now)}),
        }
        for item in page.summaries
    ]
    answer: dict[str, Any] = {"TrainingJobSummaries": summaries}
    if page.next_token is not None:
        answer["NextToken"] = page.next_token
    return answer


def _warm_pool_status(name: str | None) -> WarmPoolStatus | None:
    return None if name is None else WarmPoolStatus(name)


def _status(name: str | None) -> TrainingJobStatus | None:
    return None if name is None else TrainingJobStatus(name)
