"""Training metrics of a job as curves.

Where: the answer to jobs/NAME/metric-values.

    ?names=train:loss&names=accuracy   all metrics by default; a value is also split at its commas
    &points=500                        largest number of points of a curve

    {"metrics": {name: [[at_ms, value, step], ...]}}: values that are not finite are null, like unknown steps
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl

from clary.base.errors import WireError
from clary.control.jobs.training_job import TrainingJob
from clary.control.services.call import Services
from clary.control.store.metric_values.metric_curves import MAX_CURVES, MAX_POINTS, CurvePoint

DEFAULT_POINTS = 500
_NUMBER = re.compile(r"[0-9]{1,6}")


async def metric_values_page(services: Services, job: TrainingJob, query: str) -> dict[str, Any]:
    """Return metrics of a job as curves. Raises: WireError with the status to send.

    Args:
        services: store the metrics.
        job: the job; it may have ended.
        query: percent-encoded, as in the module docstring.
    """
    pairs = parse_qsl(query.replace("%00", ""), keep_blank_values=True)  # some databases refuse NUL
    points = next((value for name, value in pairs if name == "points"), str(DEFAULT_POINTS))
    if not _NUMBER.fullmatch(points) or not 2 <= int(points) <= MAX_POINTS:
        raise WireError("ValidationException", f"points must be 2 to {MAX_POINTS}, got {points[:40]!r}")
    asked = [value for name, value in pairs if name == "names" and value]
    names = None if not asked else [*asked, *(part for value in asked if "," in value for part in value.split(","))]
    if names is not None and len(names) > MAX_CURVES:
        raise WireError("ValidationException", f"at most {MAX_CURVES} metrics at once, got {len(names)}")
    curves = await services.store.curves.curves(job.name, names=names, num_points=int(points))
    return {
        "job": job.name,
        "is_over": job.is_terminal,
        "metrics": {name: _plain(curve) for name, curve in curves.items()},
    }


def _plain(curve: Sequence[CurvePoint]) -> list[list[float | None]]:
    return [[point.at_ms, _finite(point.value), point.step] for point in curve]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
