"""HTTP for programs that say themselves how far they are: the status page of Kubeflow's trainer, at our address.

Source: docs/user-guides/trainjob-progress.md of kubeflow/trainer; agents hand out address and token
(`agent.environments.variables`), transformers, TRL and the Kubeflow SDK post to it.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from clary.base.errors import WireError
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.gateways.training_gateway import MAX_STATUS_BYTES, TrainingGateway
from clary.control.server.edge.internal_http import bearer_token, json_answer, read_json
from clary.control.wire.messages import HttpRequest, HttpResponse

PREFIX = "/clary/v1/status/"
_NUMBER = re.compile(r"[0-9]{1,9}")  # of an attempt


class StatusRoutes:
    """Answers requests below /clary/v1/status/."""

    def __init__(self, gateway: TrainingGateway) -> None:
        self._gateway = gateway

    def authorize(self, request: HttpRequest) -> tuple[TrainingJob, str]:
        """Return job and host of a request with the right token; raises WireError with the status to send."""
        match [unquote(part) for part in request.raw_path.removeprefix(PREFIX).split("/")]:
            case [name, attempt, host] if _NUMBER.fullmatch(attempt) and request.method in ("POST", "PUT"):
                return self._gateway.authorize_status(name, int(attempt), host, bearer_token(request)), host
        raise WireError("NotFound", f"no such status: {request.method} {request.raw_path}", http_status=404)

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Take one status; raises WireError with the status to send."""
        job, host = self.authorize(request)
        if len(request.body) > MAX_STATUS_BYTES:
            raise WireError("ValidationException", f"a status has at most {MAX_STATUS_BYTES} bytes")
        await self._gateway.take_status(job, host, read_json(request))
        return json_answer({})
