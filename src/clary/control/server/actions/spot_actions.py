"""Spot capacity over HTTP: look at it, set it, take it from under a job, as a cloud would.

Where: `clary spot` sends these; `people_routes` passes the last one on.

    GET  /clary/v1/spot                 -> capacity and who holds it
    POST /clary/v1/spot {"capacity": 3} -> so many hosts from now on; null: by the schedule again
    POST /clary/v1/jobs/NAME/reclaim    -> the job's attempt ends
"""

from __future__ import annotations

import hmac
from typing import Any

from clary.base.errors import WireError
from clary.base.plain import to_plain
from clary.control.jobs import events
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.spot_market import SpotMarket
from clary.control.scheduling.spot import MAX_HOSTS
from clary.control.server.edge.internal_http import bearer_token, json_answer, read_json
from clary.control.services.call import Services
from clary.control.wire.messages import HttpRequest, HttpResponse

PATH = "/clary/v1/spot"
MAX_GRACE_S = 3600.0


class SpotRoutes:
    """Answers requests for the market itself, opened by the admin token."""

    def __init__(self, market: SpotMarket, *, admin_token: str) -> None:
        self._market = market
        self._admin_token = admin_token

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Answer one request; raises WireError with the status to send."""
        if not hmac.compare_digest(bearer_token(request).encode(), self._admin_token.encode()):
            raise WireError("AccessDenied", "the token does not open this service", http_status=403)
        if request.method == "POST":
            self._market.set_capacity(_capacity_of(read_json(request)))
        return json_answer(to_plain(self._market.facts()))


def _capacity_of(body: Any) -> int | None:
    capacity = body.get("capacity") if isinstance(body, dict) and "capacity" in body else body
    is_number = isinstance(capacity, int) and not isinstance(capacity, bool)
    if capacity is not None and not (is_number and 0 <= capacity <= MAX_HOSTS):
        raise WireError(
            "ValidationException", f'expected {{"capacity": 0 to {MAX_HOSTS} hosts, or null}}, got {str(body)[:80]}'
        )
    return capacity


async def reclaim(services: Services, job: TrainingJob, body: Any) -> dict[str, Any]:
    """End the job's attempt; it goes on with other capacity.

    Args:
        body: `host`, whose capacity goes (default: the first), and `grace_s` (default: setting `stop_grace_s`).

    Raises: WireError 400 for a job that is not on spot capacity, that has no hosts, or that ends already.
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
    if host not in job.hosts:
        raise WireError("NotFound", f"{job.name} has no host {host!r}; it has {', '.join(job.hosts)}", http_status=404)
    reason = f"The spot capacity of {host} was reclaimed"
    changed = await services.hub.apply(job.name, events.Reclaimed(reason=reason, grace_s=float(grace_s)))
    if changed.ending is None:
        raise WireError("ValidationException", f"{job.name} ends already; it is {changed.secondary_status.value}")
    return {"name": job.name, "attempt": changed.attempt, "reason": changed.ending.reason}
