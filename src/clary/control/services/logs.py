"""CloudWatch Logs, for clients that read training logs.

Source: DescribeLogGroups, DescribeLogStreams, GetLogEvents, FilterLogEvents, PutRetentionPolicy, DeleteRetentionPolicy
(API reference), and the token rules that both versions of the SageMaker SDK rely on: every answer of GetLogEvents has a
forward token, and an unchanged token means that there are no newer lines yet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

from clary.base.errors import WireError
from clary.control.services.call import Call
from clary.control.store.errors import BadLogQuery, BadToken, StreamNotFound
from clary.control.store.log_files.logs import StreamOrder

T = TypeVar("T")

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
STANDARD = "STANDARD"  # logGroupClass
MAX_STREAMS_PER_PAGE = 50
MAX_EVENTS_PER_PAGE = 10_000
# RetentionInDays (PutRetentionPolicy, API reference)
RETENTION_DAYS = (
    *(1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545),
    *(731, 1096, 1827, 2192, 2557, 2922, 3288, 3653),
)


async def describe_log_groups(call: Call) -> Mapping[str, Any]:
    """List the only log group, unless the request excludes it."""
    params = call.params
    is_wanted = (
        LOG_GROUP.startswith(params.get("logGroupNamePrefix", ""))
        and params.get("logGroupNamePattern", "") in LOG_GROUP
        and params.get("logGroupClass", STANDARD) == STANDARD
        and any(map(is_log_group, params.get("logGroupIdentifiers") or (LOG_GROUP,)))
        and call.services.settings.account_id in (params.get("accountIdentifiers") or call.services.settings.account_id)
    )
    if not is_wanted:
        return {"logGroups": []}
    days = await call.services.logs.retention_days()
    group = {
        "logGroupName": LOG_GROUP,
        "logGroupClass": STANDARD,
        "arn": f"{_arn(call)}:*",
        "logGroupArn": _arn(call),
        "creationTime": 0,
        "metricFilterCount": 0,
        "storedBytes": 0,
        "retentionInDays": days or None,
    }
    return {"logGroups": [_present(group)]}


async def put_retention_policy(call: Call) -> Mapping[str, Any]:
    """Set the number of days for which events are kept, in place of the setting `log_retention_days`.

    Raises: WireError(InvalidParameterException, ResourceNotFoundException).
    """
    _check_group(call)
    days = call.params["retentionInDays"]
    if days not in RETENTION_DAYS:
        valid = ", ".join(map(str, RETENTION_DAYS))
        raise WireError("InvalidParameterException", f"retentionInDays must be one of {valid}; got {days}.")
    await call.services.logs.set_retention(days)
    return {}


async def delete_retention_policy(call: Call) -> Mapping[str, Any]:
    """Delete the retention policy, so that the setting `log_retention_days` applies again."""
    _check_group(call)
    await call.services.logs.set_retention(None)
    return {}


async def describe_log_streams(call: Call) -> Mapping[str, Any]:
    """List streams of the log group; the answer has a token only if more streams remain.

    Raises: WireError(InvalidParameterException, ResourceNotFoundException).
    """
    _check_group(call)
    params = call.params
    by_event = params.get("orderBy") == "LastEventTime"
    prefix = params.get("logStreamNamePrefix", "")
    if by_event and prefix:
        raise WireError(
            "InvalidParameterException", "Cannot order by LastEventTime with a logStreamNamePrefix.", http_status=400
        )
    page = await _checked(
        call.services.logs.list_streams(
            prefix,
            order_by=StreamOrder.LAST_EVENT if by_event else StreamOrder.NAME,
            descending=bool(params.get("descending", False)),
            limit=params.get("limit") or MAX_STREAMS_PER_PAGE,
            token=params.get("nextToken"),
        )
    )
    streams = [
        _present(
            {
                "logStreamName": stream.name,
                "creationTime": stream.created_at_ms,
                "firstEventTimestamp": stream.first_event_ms,
                "lastEventTimestamp": stream.last_event_ms,
                "lastIngestionTime": stream.last_ingestion_ms,
                "uploadSequenceToken": "0",
                "arn": f"{_arn(call)}:log-stream:{stream.name}",
                "storedBytes": stream.stored_bytes,
            }
        )
        for stream in page.streams
    ]
    return _present({"logStreams": streams, "nextToken": page.next_token})


async def get_log_events(call: Call) -> Mapping[str, Any]:
    """Read one stream, forwards or backwards."""
    _check_group(call)
    params = call.params
    name = params["logStreamName"]
    page = await _checked(
        call.services.logs.get_events(
            name,
            start_ms=params.get("startTime"),
            end_ms=params.get("endTime"),
            from_head=bool(params.get("startFromHead", False)),
            token=params.get("nextToken"),
            limit=params.get("limit") or MAX_EVENTS_PER_PAGE,
        )
    )
    return {
        "events": [
            {"timestamp": event.timestamp_ms, "message": event.message, "ingestionTime": event.ingestion_ms}
            for event in page.events
        ],
        "nextForwardToken": page.next_forward_token,
        "nextBackwardToken": page.next_backward_token,
    }


async def filter_log_events(call: Call) -> Mapping[str, Any]:
    """Read events of several streams, merged by time.

    Raises: WireError(InvalidParameterException, ResourceNotFoundException).
    """
    _check_group(call)
    params = call.params
    if params.get("logStreamNames") and params.get("logStreamNamePrefix"):
        raise WireError("InvalidParameterException", "Only one of logStreamNames and logStreamNamePrefix can be given.")
    page = await _checked(
        call.services.logs.filter_events(
            streams=params.get("logStreamNames"),
            prefix=params.get("logStreamNamePrefix"),
            start_ms=params.get("startTime"),
            end_ms=params.get("endTime"),
            pattern=params.get("filterPattern"),
            limit=params.get("limit") or MAX_EVENTS_PER_PAGE,
            token=params.get("nextToken"),
            client="" if call.grants is None else call.grants.job_id,
        )
    )
    events = [
        {
            "logStreamName": event.stream,
            "timestamp": event.timestamp_ms,
            "message": event.message,
            "ingestionTime": event.ingestion_ms,
            "eventId": event.event_id,
        }
        for event in page.events
    ]
    return _present({"events": events, "searchedLogStreams": [], "nextToken": page.next_token})


def is_log_group(identifier: str) -> bool:
    """Whether a name or an ARN names the only log group."""
    return identifier.rpartition("log-group:")[2].removesuffix(":*") == LOG_GROUP


def _check_group(call: Call) -> None:
    if not is_log_group(call.params.get("logGroupName") or call.params.get("logGroupIdentifier", "")):
        raise WireError("ResourceNotFoundException", "The specified log group does not exist.")


async def _checked(reading: Awaitable[T]) -> T:
    try:
        return await reading
    except StreamNotFound as error:
        raise WireError("ResourceNotFoundException", "The specified log stream does not exist.") from error
    except (BadToken, BadLogQuery) as error:
        raise WireError("InvalidParameterException", error.message) from error


def _arn(call: Call) -> str:
    return f"arn:aws:logs:{call.region}:{call.services.settings.account_id}:log-group:{LOG_GROUP}"


def _present(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
