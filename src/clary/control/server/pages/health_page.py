"""Page `health` of a job: the findings of its hosts, and the diagnosis of sick hosts and links."""

from __future__ import annotations

from typing import Any

from clary.base.plain import to_plain
from clary.control.jobs.health import diagnose, findings_of
from clary.control.jobs.job_state import job_state
from clary.control.jobs.training_job import TrainingJob


def health_page(job: TrainingJob) -> dict[str, Any]:
    """Return the findings of the current attempt's hosts with the diagnosis, and why past attempts ended."""
    plan = job.plan or {}
    findings = findings_of(job)
    return {
        "job": job.name,
        "status": job.status.value,
        "state": job_state(job).value,
        "attempt": job.attempt,
        "is_checked": bool(plan.get("health_checks", True)),
        "hosts": {name: to_plain(found) for name, found in findings.items()},
        "sick": [to_plain(sickness) for sickness in diagnose(findings)],
        "past_attempts": [
            {"number": attempt.number, "reason": attempt.reason} for attempt in job.past_attempts if attempt.reason
        ],
    }
