"""Page of a job's series: points of its hosts' measurements.

Where: the answer to jobs/NAME/series.

    ?names=rank-*/cpu_percent,host/*   patterns; all by default
    &host=algo-1&attempt=2             only of this host and attempt
    &since_ms=...&until_ms=...         milliseconds since 1970; by default at most the job's last 15 minutes
    &step_ms=...                       between points; by default, a step that gives about 60 points

A point is a list: at_ms, least, greatest, mean, count, last; NaN and infinite values are null.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from clary.base.errors import ContractError, WireError
from clary.control.jobs.training_job import TrainingJob
from clary.control.series.queries import FINE_MS, Point, SeriesQuery
from clary.control.services.call import Services

DEFAULT_SPAN_MS = 15 * 60 * 1000
DEFAULT_POINTS = 60
MS_PER_S = 1000
POINT_FIELDS = ("at_ms", "least", "greatest", "mean", "count", "last")
_NUMBER = re.compile(r"[0-9]{1,15}")


async def series_page(services: Services, job: TrainingJob, query: Mapping[str, str]) -> dict[str, Any]:
    """Return points of a job's series within a span of time. Raises: WireError with the status to send.

    Args:
        services: store the series.
        job: job of the series, which may have ended.
        query: parameters, as in the module docstring.
    """
    now_ms = int(services.clock.now().timestamp() * MS_PER_S)
    end_ms = _number(query, "until_ms")
    if end_ms is None:
        end_ms = _end_of(job, now_ms) + 1
    start_ms = _number(query, "since_ms")
    if start_ms is None:
        began_ms = int(job.created_at.timestamp() * MS_PER_S)
        start_ms = max(0, end_ms - DEFAULT_SPAN_MS, min(began_ms, end_ms - MS_PER_S))
    step_ms = _number(query, "step_ms")
    host = query.get("host")
    if host and job.hosts and host not in job.hosts:
        message = f"{job.name} has no host {host[:80]!r}; it has {', '.join(job.hosts)}"
        raise WireError("NotFound", message, http_status=404)
    try:
        wanted = SeriesQuery(
            job_name=job.name,
            host=host,
            names=query.get("names", "*"),
            attempt=_number(query, "attempt"),
            start_ms=start_ms,
            end_ms=end_ms,
            step_ms=default_step_ms(end_ms - start_ms) if step_ms is None else step_ms,
        )
        answer = await services.store.series.query(wanted)
    except ContractError as error:
        raise WireError("ValidationException", error.message) from error
    return {
        "job": job.name,
        "status": job.status.value,
        "is_over": job.is_terminal,
        "age_s": max(0.0, (_end_of(job, now_ms) - job.created_at.timestamp() * MS_PER_S) / MS_PER_S),
        "since_ms": wanted.start_ms,
        "until_ms": wanted.end_ms,
        "step_ms": wanted.step_ms,
        "fields": list(POINT_FIELDS),
        "series": [
            {"host": one.host, "name": one.name, "points": [_plain(point) for point in one.points]}
            for one in answer.series
        ],
        "num_dropped": answer.num_dropped,
        "damaged": list(answer.damaged),
    }


def default_step_ms(span_ms: int) -> int:
    """Return a step for about DEFAULT_POINTS points: in whole seconds, or whole tens of seconds if above 10 s."""
    step_ms = math.ceil(max(1, span_ms) / DEFAULT_POINTS)
    if step_ms > FINE_MS:
        return math.ceil(step_ms / FINE_MS) * FINE_MS
    return max(MS_PER_S, math.ceil(step_ms / MS_PER_S) * MS_PER_S)


def _end_of(job: TrainingJob, now_ms: int) -> int:
    if job.training_ended_at is None:
        return now_ms
    return int(job.training_ended_at.timestamp() * MS_PER_S)


def _plain(point: Point) -> list[float | None]:
    values = (point.at_ms, point.least, point.greatest, point.mean, point.count, point.last)
    return [value if math.isfinite(value) else None for value in values]


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise WireError("ValidationException", f"{name} must be a whole number, got {text[:40]!r}")
    return int(text)
