"""Summaries of trial components' metrics: least, greatest, mean, standard deviation, last and count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from clary.control.services.call import Call
from clary.control.store.tracking.component_metrics import Owner, Summary
from clary.control.store.tracking.experiment_rows import Tracked

KEPT = "IsKept"  # marks the document of a component whose job was deleted


def owner_of(thing: Tracked) -> Owner:
    """Return the owner of a component's values: its job as long as the job exists."""
    is_of_job = bool(thing.source) and not thing.document.get(KEPT)
    return Owner(name=thing.source.rpartition("/")[2], of_job=True) if is_of_job else Owner(name=thing.key)


async def metric_summaries(call: Call, components: Sequence[Tracked]) -> dict[str, list[dict[str, Any]]]:
    """Return component's key -> its TrialComponentMetricSummary structures, sorted by name."""
    owners = {thing.key: owner_of(thing) for thing in components}
    found = await call.services.store.experiments.values.summaries(list(owners.values()))
    arns = {thing.key: thing.source or thing.arn for thing in components}
    return {
        key: [_structure(item, source_arn=arns[key]) for item in found[owner]]
        for key, owner in owners.items()
        if owner in found
    }


def _structure(item: Summary, *, source_arn: str) -> dict[str, Any]:
    numbers = {
        "Min": item.least,
        "Max": item.greatest,
        "Avg": item.mean,
        "StdDev": item.deviation,
        "Last": item.last,
        "Count": item.count,
    }
    return {
        "MetricName": item.name,
        "SourceArn": source_arn,
        "TimeStamp": item.last_at,
        **{name: number for name, number in numbers.items() if math.isfinite(number)},  # JSON has no infinities or NaN
    }
