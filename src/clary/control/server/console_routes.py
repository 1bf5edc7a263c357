"""Pages about many jobs at once, for the console: the list of jobs, hosts, a comparison.

Where: `clary_handler` sends these paths here; `people_routes` has the pages of one job.

    GET /clary/v1/jobs      -> jobs_page
    GET /clary/v1/hosts     -> hosts_page
    GET /clary/v1/compare   -> compare_page
"""

from __future__ import annotations

import hmac

from clary.base.errors import WireError
from clary.control.reconcile.gateways.sample_gateway import SampleGateway
from clary.control.server.edge.internal_http import bearer_token, json_answer, query_of
from clary.control.server.pages.compare_page import compare_page
from clary.control.server.pages.hosts_page import hosts_page
from clary.control.server.pages.jobs_page import jobs_page
from clary.control.server.pages.machine_page import MachinePage
from clary.control.services.call import Services
from clary.control.wire.messages import HttpRequest, HttpResponse

JOBS_PATH = "/clary/v1/jobs"
HOSTS_PATH = "/clary/v1/hosts"
COMPARE_PATH = "/clary/v1/compare"


class ConsoleRoutes:
    """Answers requests for these pages, by the admin token.

    Args:
        services: jobs, live and stored.
        samples: what hosts measured last.
        admin_token: opens them; `access` puts it where a cookie was.
        machine: that hosts share; None has no part of the page of hosts.
    """

    def __init__(
        self, services: Services, samples: SampleGateway, *, admin_token: str, machine: MachinePage | None = None
    ) -> None:
        self._machine = machine
        self._services = services
        self._samples = samples
        self._admin_token = admin_token

    def has(self, path: str) -> bool:
        """Whether a path is one of these pages."""
        return path in (JOBS_PATH, HOSTS_PATH, COMPARE_PATH)

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Answer one request; raises WireError with the status to send."""
        if not hmac.compare_digest(bearer_token(request).encode(), self._admin_token.encode()):
            raise WireError("AccessDenied", "the token does not open this service", http_status=403)
        if request.method not in ("GET", "HEAD"):
            raise WireError("MethodNotAllowed", f"{request.raw_path} is only read", http_status=405)
        query = query_of(request)
        if request.raw_path == HOSTS_PATH:
            return json_answer(hosts_page(self._services, self._samples, self._machine))
        if request.raw_path == COMPARE_PATH:
            return json_answer(await compare_page(self._services, query))
        return json_answer(await jobs_page(self._services, query))
