"""CloudWatch's GetMetricData: several metrics at once, in pages of MaxDatapoints. The member Expression is refused.

Source: GetMetricData, MetricDataQuery (CloudWatch API reference). Timestamps descend unless ScanBy requests ascending
timestamps.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from clary.base.errors import WireError
from clary.control.services.call import Call
from clary.control.services.metrics import statistics_by_period
from clary.control.store import tokens
from clary.control.store.errors import BadToken

MAX_QUERIES = 500
MAX_DATAPOINTS = 100_800  # maximum number of points in one answer
MAX_WORK_S = 30.0  # longest time in which all queries of a request are computed
STATISTICS = ("Average", "Sum", "Minimum", "Maximum", "SampleCount")
ASCENDING = "TimestampAscending"
_TOKEN_KEY = secrets.token_bytes(32)  # in memory only: a client fetches all pages from the same service process


async def get_metric_data(call: Call) -> Mapping[str, Any]:
    """Answer each query with its timestamps and values.

    Raises: WireError(ValidationError), WireError(InvalidNextToken), WireError(InvalidParameterCombination).
    """
    params = call.params
    queries = params["MetricDataQueries"]
    if len(queries) > MAX_QUERIES:
        raise WireError(
            "ValidationError", f"A request has at most {MAX_QUERIES} MetricDataQueries, got {len(queries)}."
        )
    if params["StartTime"] >= params["EndTime"]:
        raise WireError("ValidationError", "StartTime must be before EndTime.")
    identifiers = [query["Id"] for query in queries]
    if len(set(identifiers)) != len(identifiers):
        raise WireError("ValidationError", "Each Id of MetricDataQueries must be unique.")
    stats = {query["Id"]: _metric_stat(query) for query in queries}
    _require_bounded(params, stats)
    _require_own_account(call, queries)
    first, count = _first_point(params), params.get("MaxDatapoints") or MAX_DATAPOINTS
    wanted = [query for query in queries if query.get("ReturnData", True) is not False]
    limit = asyncio.timeout(MAX_WORK_S)
    try:
        async with limit:
            results = [await _result(call, query, stats[query["Id"]]) for query in wanted]
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise WireError(
            "InvalidParameterCombination",
            f"The {len(wanted)} metrics were not computed in {MAX_WORK_S:g} s: ask for fewer metrics at once.",
        ) from error
    answer: dict[str, Any] = {"MetricDataResults": list(_page(results, first, count)), "Messages": []}
    if first + count < sum(len(result["Values"]) for result in results):
        answer["NextToken"] = tokens.make_token(_TOKEN_KEY, query=_identity(params), position=[first + count])
    return answer


def _identity(params: Mapping[str, Any]) -> str:
    """Return the request without its page, as a text: a token is valid only for requests with the same text."""
    return repr([(name, value) for name, value in sorted(params.items()) if name not in ("NextToken", "MaxDatapoints")])


def _first_point(params: Mapping[str, Any]) -> int:
    token = params.get("NextToken")
    if token is None:
        return 0
    try:
        return int(tokens.read_token(_TOKEN_KEY, token, query=_identity(params))[0])
    except BadToken as error:
        raise WireError("InvalidNextToken", f"Invalid NextToken: {error.message}") from error


def _page(results: Sequence[dict[str, Any]], first: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield the results with the points of one page; a metric without points is on the first page.

    Args:
        results: results with all points.
        first: index of the page's first point, counted over all results.
        count: number of points in a page.
    """
    left_out = first
    for result in results:
        size = len(result["Values"])
        begin, end = min(left_out, size), min(left_out + count, size)
        left_out, count = left_out - begin, count - (end - begin)
        if end == begin and (size or first):
            continue
        page = {name: result[name][begin:end] for name in ("Timestamps", "Values")}
        yield {**result, **page, "StatusCode": "PartialData" if end < size else "Complete"}


def _require_own_account(call: Call, queries: Sequence[Mapping[str, Any]]) -> None:
    own = call.services.settings.account_id
    for query in queries:
        if query.get("AccountId", own) != own:
            raise WireError(
                "ValidationError", f"AccountId of query {query['Id']!r} is {query['AccountId']}: expected {own}."
            )


def _metric_stat(query: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the query's MetricStat. Raises: WireError for a missing or unsupported MetricStat."""
    name = query["Id"]
    if query.get("Expression"):
        raise WireError(
            "ValidationError",
            f"Error in expression {name!r}: this service does not support Expression; request the metrics "
            "themselves with MetricStat, and compute from their values.",
        )
    stat: Mapping[str, Any] | None = query.get("MetricStat")
    if stat is None:
        raise WireError("ValidationError", f"The query {name!r} needs a MetricStat.")
    if stat["Stat"] not in STATISTICS:
        raise WireError(
            "ValidationError",
            f"The statistic {stat['Stat']!r} of query {name!r} is not supported: ask for one of "
            f"{', '.join(STATISTICS)}.",
        )
    if stat["Period"] < 1:
        raise WireError("ValidationError", f"Period of query {name!r} must be at least 1 second, got {stat['Period']}.")
    return stat


def _require_bounded(params: Mapping[str, Any], stats: Mapping[str, Mapping[str, Any]]) -> None:
    span_s = (params["EndTime"] - params["StartTime"]).total_seconds()
    num_points = sum(span_s / stat["Period"] for stat in stats.values())
    if num_points > MAX_DATAPOINTS:
        raise WireError(
            "ValidationError",
            f"You have requested up to {num_points:,.0f} datapoints, which exceeds the limit of {MAX_DATAPOINTS:,}. "
            "You may reduce the datapoints requested by increasing Period, or decreasing the time range.",
        )


async def _result(call: Call, query: Mapping[str, Any], stat: Mapping[str, Any]) -> dict[str, Any]:
    params, metric = call.params, stat["Metric"]
    periods = await statistics_by_period(
        call,
        {name: metric.get(name) for name in ("Namespace", "MetricName", "Dimensions")},
        start=params["StartTime"],
        end=params["EndTime"],
        period_s=stat["Period"],
        unit=stat.get("Unit"),
    )
    starts = sorted(periods, reverse=params.get("ScanBy") != ASCENDING)
    return {
        "Id": query["Id"],
        "Label": query.get("Label") or metric["MetricName"],
        "Timestamps": [datetime.fromtimestamp(start, UTC) for start in starts],
        "Values": [periods[start].value(stat["Stat"]) for start in starts],
        "StatusCode": "Complete",
    }
