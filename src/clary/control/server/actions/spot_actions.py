"""Spot capacity over HTTP: shows it, sets it, and reclaims the capacity of a job, as a cloud would.

Where: `clary spot` sends these requests.

    GET  /clary/v1/spot                 -> capacity and the jobs that hold it
    POST /clary/v1/spot {"capacity": 3} -> this number of hosts from now on; null restores the schedule
    POST /clary/v1/jobs/NAME/reclaim    -> the job's attempt ends
"""

from __future__ import annotations

from typing import Any

from clary.base.errors import WireError
from clary.base.plain import to_plain
from clary.control.jobs import events
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.spot_market import SpotMarket
from clary.control.scheduling.spot import MAX_HOSTS
from clary.control.services.call import Services

MAX_GRACE_S = 3600.0


def spot_page(market: SpotMarket) -> Any:
    """Return the capacity and the jobs that hold it."""
    return to_plain(market.facts())


def set_capacity(market: SpotMarket, body: Any) -> Any:
    """Set the capacity and return the page. Raises: WireError 400."""
    market.set_capacity(_capacity_of(body))
    return spot_page(market)


def _capacity_of(body: Any) -> int | None:
    capacity = body.get("capacity") if isinstance(body, dict) and "capacity" in body else body
    is_number = isinstance(capacity, int) and not isinstance(capacity, bool)
    if capacity is not None and not (is_number and 0 <= capacity <= MAX_HOSTS):
        raise WireError(
            "ValidationException", f'expected {{"capacity": 0 to {MAX_HOSTS} hosts, or null}}, got {str(body)[:80]}'
        )
    return capacity


async def reclaim(services: Services, job: TrainingJob, body: Any) -> dict[str, Any]:
    """End the job's attempt; the job continues on other capacity.

    Args:
        body: `host`, whose capacity is reclaimed (default: the first host), and `grace_s` (default: setting
            `stop_grace_s`).

    Raises: WireError 400 for an invalid body, and for a job that is not on spot capacity, that has no hosts, or that is
        already ending; 404 for an unknown host.
    """
    if not isinstance(body, dict):
        raise WireError("ValidationException", f"expected a JSON object with host and grace_s, got {str(body)[:80]!r}")
    if not JobRequest(job.request).is_spot:
        raise WireError(
            "ValidationException",
            f"{job.name} is not on spot capacity, so nothing can be reclaimed: create it with "
            "EnableManagedSpotTraining (use_spot_instances=True), or end it with: clary stop",
        )
    grace_s = body.get("grace_s", services.settings.stop_grace_s)
    if isinstance(grace_s, bool) or not isinstance(grace_s, int | float) or not 0 <= grace_s <= MAX_GRACE_S:
        raise WireError("ValidationException", f"grace_s must be 0 to {MAX_GRACE_S:g} seconds, got {str(grace_s)[:40]}")
    if job.is_terminal or not job.hosts:
        raise WireError("ValidationException", f"{job.name} has no hosts now; it is {job.secondary_status.value}")
    host = body.get("host") or next(iter(job.hosts))
    if not isinstance(host, str):
        raise WireError("ValidationException", f"host must be one of {', '.join(job.hosts)}, got {str(host)[:80]}")
    if host not in job.hosts:
        raise WireError(
            "NotFound", f"{job.name} has no host {host[:80]!r}; it has {', '.join(job.hosts)}", http_status=404
        )
    reason = f"The spot capacity of {host} was reclaimed"
    changed = await services.hub.apply(job.name, events.Reclaimed(reason=reason, grace_s=float(grace_s)))
    if changed.ending is None:
        raise WireError("ValidationException", f"{job.name} is already ending; it is {changed.secondary_status.value}")
    if changed.ending.reason != reason:  # it began to end before, for another reason
        raise WireError("ValidationException", f"{job.name} is already ending: {changed.ending.reason}"[:400])
    return {"name": job.name, "attempt": changed.attempt, "reason": changed.ending.reason}
