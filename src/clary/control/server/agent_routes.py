"""HTTP for agents: paths, tokens and JSON around the agent gateway.

Source: contract/agent_protocol.py, which lists the four requests.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from clary.contract.agent_protocol import LogBatch, Report
from clary.contract.errors import ContractError, WireError
from clary.contract.plain import from_plain, to_plain
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.agent_gateway import AgentGateway
from clary.control.server.internal_http import bearer_token, json_answer, read_json

PREFIX = "/clary/v1/agents/"
MAX_ORDER_WAIT_S = 30.0


class AgentRoutes:
    """Answers requests below /clary/v1/agents/."""

    def __init__(self, gateway: AgentGateway, *, max_body_bytes: int) -> None:
        self._gateway = gateway
        self._max_body_bytes = max_body_bytes

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one agent; raises WireError with the status to send."""
        parts = request.path.removeprefix(PREFIX).split("/")
        if len(parts) != 4 or not parts[1].isdigit():
            raise WireError("NotFound", f"no such agent path: {request.path}", http_status=404)
        name, attempt, host, action = parts
        job = self._gateway.authorize(name, int(attempt), host, bearer_token(request))
        match (request.method, action):
            case ("GET", "assignment"):
                return json_answer(to_plain(self._gateway.assignment(job)))
            case ("GET", "orders"):
                return json_answer(await self._order(job, host, request))
            case ("POST", "reports"):
                report = await self._body(Report, request)
                return json_answer(to_plain(await self._gateway.report(job, host, report)))
            case ("POST", "logs"):
                batch = await self._body(LogBatch, request)
                return json_answer(to_plain(await self._gateway.append_logs(job, host, batch)))
        raise WireError("NotFound", f"no such agent request: {request.method} {action}", http_status=404)

    async def _order(self, job: TrainingJob, host: str, request: web.BaseRequest) -> Any:
        try:
            after = int(request.query.get("after", "0"))
            wait_s = min(float(request.query.get("wait_s", "0")), MAX_ORDER_WAIT_S)
        except ValueError as error:
            raise WireError("ValidationException", f"after and wait_s are numbers: {error}") from error
        return to_plain(await self._gateway.next_order(job, host, after=after, wait_s=wait_s))

    async def _body(self, cls: type[Any], request: web.BaseRequest) -> Any:
        document = await read_json(request, max_bytes=self._max_body_bytes)
        try:
            return from_plain(cls, document)
        except ContractError as error:
            raise WireError("ValidationException", error.message) from error
