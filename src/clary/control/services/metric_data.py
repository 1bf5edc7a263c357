"""CloudWatch's GetMetricData: several metrics at once. Only MetricStat; Expression is refused by name.

Source: GetMetricData, MetricDataQuery (CloudWatch API reference). Timestamps fall unless ScanBy says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from clary.base.errors import WireError
from clary.control.services.call import Call
from clary.control.services.metrics import statistics_by_period

MAX_QUERIES = 500
MAX_DATAPOINTS = 100_800  # of one answer
STATISTICS = ("Average", "Sum", "Minimum", "Maximum", "SampleCount")
ASCENDING = "TimestampAscending"


async def get_metric_data(call: Call) -> Mapping[str, Any]:
    """Answer each query with its timestamps and values. Raises: WireError(ValidationError)."""
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
        raise WireError("ValidationError", "Each Id of MetricDataQueries must be there once.")
    stats = {query["Id"]: _metric_stat(query) for query in queries}
    _require_bounded(params, stats)
    results = [
        await _result(call, query, stats[query["Id"]])
        for query in queries
        if query.get("ReturnData", True) is not False
    ]
    return {"MetricDataResults": results, "Messages": []}


def _metric_stat(query: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the query's MetricStat. Raises: WireError for everything that is not one that can be answered."""
    name = query["Id"]
    if query.get("Expression"):
        raise WireError(
            "ValidationError",
            f"Error in expression {name!r}: this service answers no Expression; ask for the metrics themselves with "
            "MetricStat, and compute from their values.",
        )
    stat: Mapping[str, Any] | None = query.get("MetricStat")
    if stat is None:
        raise WireError("ValidationError", f"The query {name!r} needs a MetricStat.")
    if stat["Stat"] not in STATISTICS:
        raise WireError(
            "ValidationError",
            f"The statistic {stat['Stat']!r} of query {name!r} is not kept: ask for one of {', '.join(STATISTICS)}.",
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
