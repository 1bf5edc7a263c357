"""CloudWatch Logs Insights: StartQuery, GetQueryResults, StopQuery and DescribeQueries.

A job sees only the lines of its own streams, and its own queries.
Source: the four operations (API reference) and "CloudWatch Logs Insights language query syntax" (user guide).
docs/logs.md describes the supported part of the language.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from clary.base.errors import WireError
from clary.control.insights.errors import MalformedQuery
from clary.control.insights.planning import plan_of
from clary.control.insights.reading import MAX_ROWS
from clary.control.permissions.api_rules import own_streams
from clary.control.services.call import Call
from clary.control.services.logs import LOG_GROUP, is_log_group
from clary.control.services.query_desk import Asked, LogQuery, QueryNotFound, QueryStatus, TooManyQueries
from clary.control.store import tokens
from clary.control.store.errors import BadToken
from clary.control.store.log_files.log_records import MAX_TIME_MS
from clary.control.wire.serializing import MEMBERS

LANGUAGE = "CWLI"
OWNER = "owner"
MAX_LISTED = 1000  # limit of maxResults in DescribeQueries
# Larger numbers are milliseconds, which some clients send (awswrangler): as seconds they would be after the
# year 5138.
_LAST_SECOND = 10**11
_TOKEN_KEY = secrets.token_bytes(32)  # new at each start of the service, which forgets results anyway


async def start_query(call: Call) -> Mapping[str, Any]:
    """Start a query and return its id; lines are searched in the background.

    Raises: WireError(InvalidParameterException), WireError(MalformedQueryException), WireError(LimitExceededException),
        WireError(ResourceNotFoundException) for another log group.
    """
    params = call.params
    _check_language(params)
    _check_groups(call)
    limit = params.get("limit")
    if limit is not None and limit > MAX_ROWS:
        raise _invalid(f"limit must be 1 to {MAX_ROWS} here, got {limit}: ask for shorter ranges of time.")
    start_ms, end_ms = _milliseconds(params["startTime"]), _milliseconds(params["endTime"], is_end=True)
    if start_ms >= end_ms:
        raise _invalid(f"startTime must not be after endTime; got {params['startTime']} and {params['endTime']}.")
    text = params["queryString"]
    try:
        plan = plan_of(text, limit=limit)
    except MalformedQuery as error:
        raise _malformed(error) from error
    asked = Asked(
        text=text,
        plan=plan,
        prefix=own_streams(call.grants) if call.grants is not None else "",
        start_ms=start_ms,
        end_ms=end_ms,
        log=f"{call.services.settings.account_id}:{LOG_GROUP}",
    )
    try:
        query_id = call.services.log_queries.start(_client(call) or OWNER, asked)
    except TooManyQueries as error:
        raise WireError("LimitExceededException", error.message) from error
    return {"queryId": query_id}


async def get_query_results(call: Call) -> Mapping[str, Any]:
    """Return the status of a query, and a page of its rows once it has ended.

    Raises: WireError(InvalidParameterException) also for a query that has failed, with the reason;
        WireError(ResourceNotFoundException).
    """
    query = _find(call)
    if query.status is QueryStatus.FAILED:
        # The answer has no member for the reason, and the status alone would not explain the failure.
        raise _invalid(f"Query {query.query_id} has the status Failed: {query.reason}")
    asked_for = call.params.get("maxItems")
    count = MAX_ROWS if asked_for is None else asked_for
    first = _position(call.params.get("nextToken"), query.query_id)
    page = query.rows[first : first + count]
    behind = first + len(page)
    has_more = behind < len(query.rows)
    token = tokens.make_token(_TOKEN_KEY, query=query.query_id, position=[behind]) if has_more else None
    answer = {
        "queryLanguage": LANGUAGE,
        "results": [[{"field": name, "value": value} for name, value in row] for row in page],
        "statistics": _statistics(query),
        "status": query.status.value,
        "nextToken": token,
    }
    return {name: value for name, value in answer.items() if value is not None}


async def stop_query(call: Call) -> Mapping[str, Any]:
    """Stop a query that has not ended yet.

    Raises: WireError(InvalidParameterException) if it has ended, WireError(ResourceNotFoundException).
    """
    query = _find(call)
    if not call.services.log_queries.stop(query):
        raise _invalid(f"Query {query.query_id} is not running: it has the status {query.status.value}.")
    return {"success": True}


async def describe_queries(call: Call) -> Mapping[str, Any]:
    """List queries, the newest first.

    Raises: WireError(InvalidParameterException) for a bad token, WireError(ResourceNotFoundException) for another log
        group.
    """
    params = call.params
    if params.get("queryLanguage", LANGUAGE) != LANGUAGE:
        return {"queries": []}
    if "logGroupName" in params and not is_log_group(params["logGroupName"]):
        raise _no_group(call, params["logGroupName"])
    queries = [
        query
        for query in call.services.log_queries.queries(_client(call))
        if params.get("status") in (None, query.status.value)
    ]
    about = ["queries", params.get("status")]
    first = _position(params.get("nextToken"), about)
    count = params.get("maxResults") or MAX_LISTED
    page = queries[first : first + count]
    answer: dict[str, Any] = {
        "queries": [
            {
                "queryLanguage": LANGUAGE,
                "queryId": query.query_id,
                "queryString": query.text,
                "status": query.status.value,
                "createTime": int(query.created_at.timestamp() * 1000),
                "logGroupName": LOG_GROUP,
                "queryDuration": int(query.duration_s * 1000),
                "bytesScanned": float(query.evaluation.scanned_bytes),
            }
            for query in page
        ]
    }
    if first + len(page) < len(queries):
        answer["nextToken"] = tokens.make_token(_TOKEN_KEY, query=about, position=[first + len(page)])
    return answer


def _client(call: Call) -> str | None:
    """Return the client whose queries the caller may read; None for the owner, with access to all queries."""
    return None if call.grants is None else call.grants.job_id


def _find(call: Call) -> LogQuery:
    try:
        return call.services.log_queries.find(_client(call), call.params["queryId"])
    except QueryNotFound as error:
        raise WireError("ResourceNotFoundException", error.message) from error


def _position(token: str | None, about: Any) -> int:
    if token is None:
        return 0
    try:
        return int(tokens.read_token(_TOKEN_KEY, token, query=about)[0])
    except BadToken as error:
        raise _invalid(error.message) from error


def _statistics(query: LogQuery) -> dict[str, float]:
    evaluation = query.evaluation
    return {
        "recordsMatched": float(evaluation.num_matched),
        "recordsScanned": float(evaluation.num_scanned),
        "estimatedRecordsSkipped": 0.0,
        "bytesScanned": float(evaluation.scanned_bytes),
        "estimatedBytesSkipped": 0.0,
        "logGroupsScanned": 1.0,
    }


def _check_language(params: Mapping[str, Any]) -> None:
    language = params.get("queryLanguage", LANGUAGE)
    if language != LANGUAGE:
        raise _invalid(f"queryLanguage {language} is not offered here: expected {LANGUAGE}.")


def _check_groups(call: Call) -> None:
    """Raise WireError unless exactly one member of the request names log groups, and only the existing group."""
    given = [name for name in ("logGroupName", "logGroupNames", "logGroupIdentifiers") if call.params.get(name)]
    if len(given) != 1:
        raise _invalid(
            f"expected exactly one of logGroupName, logGroupNames and logGroupIdentifiers; got "
            f"{', '.join(given) or 'none of them'}."
        )
    value = call.params[given[0]]
    for identifier in [value] if isinstance(value, str) else value:
        if not is_log_group(identifier):
            raise _no_group(call, identifier)


def _milliseconds(time: int, *, is_end: bool = False) -> int:
    """Return a time of a request in milliseconds; an end time includes its whole last second or millisecond."""
    if time < _LAST_SECOND:
        return time * 1000 + (1000 if is_end else 0)
    return min(time, MAX_TIME_MS) + is_end


def _malformed(error: MalformedQuery) -> WireError:
    found = WireError("MalformedQueryException", f"{error.message} (characters {error.start} to {error.end})")
    found.details[MEMBERS] = {
        "queryCompileError": {
            "location": {"startCharOffset": error.start, "endCharOffset": error.end},
            "message": error.message,
        }
    }
    return found


def _no_group(call: Call, identifier: str) -> WireError:
    return WireError(
        "ResourceNotFoundException",
        f"Log group '{identifier[:200]}' does not exist for account ID '{call.services.settings.account_id}'; there is "
        f"{LOG_GROUP}.",
    )


def _invalid(message: str) -> WireError:
    return WireError("InvalidParameterException", message)
