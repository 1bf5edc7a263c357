"""Jobs side by side: the differences of their requests, and the results of each job.

Where: the answer to /clary/v1/compare?jobs=a,b,c.

    {"jobs": [{"name", "status", "secondary_status", "state", "created_at", "duration_s", "failure_reason", "metrics"}],
     "differences": [{"key": "HyperParameters.lr", "values": ["0.1", "0.01", null]}],   null if a job has no such key
     "missing": names without a job}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from clary.base.errors import WireError
from clary.base.plain import to_plain
from clary.control.jobs.job_state import job_state_row, job_times
from clary.control.jobs.training_job import TrainingJob
from clary.control.server.pages.secret_names import hide_secrets
from clary.control.services.call import Services

MAX_JOBS = 20
# Each job has its own name, and values derived from it.
_EXPECTED_TO_DIFFER = frozenset({"TrainingJobName", "Environment.SM_CURRENT_JOB_NAME"})
_MISSING = object()


async def compare_page(services: Services, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the page. Raises: WireError with the status to send."""
    names = list(dict.fromkeys(name for name in query.get("jobs", "").split(",") if name))
    if not 1 <= len(names) <= MAX_JOBS:
        raise WireError(
            "ValidationException", f"jobs takes 1 to {MAX_JOBS} names with commas between, got {len(names)}"
        )
    found = [await services.find_job(name) for name in names]
    jobs = [job for job in found if job is not None]
    return {
        "jobs": [_facts(services, job) for job in jobs],
        "differences": differences([hide_secrets(job.request) for job in jobs]),
        "missing": [name for name, job in zip(names, found, strict=True) if job is None],
    }


def differences(requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the members whose values differ between requests, with each request's value as text."""
    flat = [_flat(request) for request in requests]
    keys = dict.fromkeys(key for one in flat for key in one)
    return [
        {"key": key, "values": [one.get(key) for one in flat]}
        for key in sorted(keys, key=_interest)
        if key not in _EXPECTED_TO_DIFFER and len({one.get(key, _MISSING) for one in flat}) > 1
    ]


def _interest(key: str) -> tuple[int, str]:
    """Return a sort key that puts first the members by which users compare jobs."""
    first = ("HyperParameters", "ResourceConfig", "Environment", "AlgorithmSpecification")
    top = key.partition(".")[0]
    return (first.index(top) if top in first else len(first)), key


def _flat(document: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(document, Mapping) and (document or not prefix):
        return {
            key: value
            for name, part in document.items()
            for key, value in _flat(part, f"{prefix}.{name}" if prefix else str(name)).items()
        }
    return {prefix: document if isinstance(document, str) else json.dumps(document)}


def _facts(services: Services, job: TrainingJob) -> dict[str, Any]:
    return {
        **job_state_row(job),
        "created_at": to_plain(job.created_at),
        "duration_s": job_times(job, now=job.now(services.clock)).took_s,
        "metrics": [
            {"name": metric.name, "value": metric.value if math.isfinite(metric.value) else None}
            for metric in job.final_metrics
        ],
    }
