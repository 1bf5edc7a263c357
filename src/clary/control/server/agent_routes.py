"""HTTP for agents: paths, tokens and JSON around the agent gateway.

Agents send thousands of values at once; a large body becomes an object in a thread (`edge.large_bodies`).
Source: contract/agent_protocol.py, which lists the requests.
"""

from __future__ import annotations

import math
import re
from typing import Any
from urllib.parse import unquote

from clary.base.errors import ContractError, WireError
from clary.base.plain import from_plain, to_plain
from clary.contract.agent_protocol import LogBatch, Report
from clary.contract.deep_profiles import HostProfile
from clary.contract.metric_samples import SampleBatch
from clary.contract.stack_dumps import HostDump
from clary.contract.training_values import TrainingBatch
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.gateways.agent_gateway import AgentGateway
from clary.control.reconcile.gateways.sample_gateway import SampleGateway
from clary.control.reconcile.gateways.training_gateway import TrainingGateway
from clary.control.server.edge.internal_http import MAX_VALUES, bearer_token, json_answer, query_of, read_json
from clary.control.server.edge.large_bodies import LargeBodies
from clary.control.wire.messages import HttpRequest, HttpResponse

PREFIX = "/clary/v1/agents/"
MAX_ORDER_WAIT_S = 30.0
_LONG_NUMBER = re.compile(r"[0-9]{1,15}")
_NUMBER = re.compile(r"[0-9]{1,9}")  # of an attempt
_MOST_NUMBERS = 1 << 17  # of metrics; agents send 60,000 at once (agent.metrics.row_store)
# What agents post as JSON, by action, and how many values it may have.
_MESSAGES: dict[str, tuple[type[Any], int]] = {
    "reports": (Report, MAX_VALUES),
    "logs": (LogBatch, MAX_VALUES),
    "dumps": (HostDump, MAX_VALUES),
    "profiles": (HostProfile, MAX_VALUES),
    "samples": (SampleBatch, _MOST_NUMBERS),
    "training": (TrainingBatch, _MOST_NUMBERS),
}


class AgentRoutes:
    """Answers requests below /clary/v1/agents/; `samples` and `training` None take nothing in."""

    def __init__(
        self,
        gateway: AgentGateway,
        samples: SampleGateway | None = None,
        training: TrainingGateway | None = None,
    ) -> None:
        self._gateway = gateway
        self._samples = samples
        self._training = training
        self._large = LargeBodies()

    def authorize(self, request: HttpRequest) -> tuple[TrainingJob, str, str]:
        """Return job, host and action of a request with the right token; raises WireError with the status to send."""
        match [unquote(part) for part in request.raw_path.removeprefix(PREFIX).split("/")]:
            case [name, attempt, host, action] if _NUMBER.fullmatch(attempt):
                return self._gateway.authorize(name, int(attempt), host, bearer_token(request)), host, action
        raise WireError("NotFound", f"no such agent path: {request.raw_path}", http_status=404)

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Answer one agent; raises WireError with the status to send."""
        job, host, action = self.authorize(request)
        if request.method == "POST" and action in _MESSAGES:
            async with self._large.runner(request) as run:
                message = await run(_read_message, *_MESSAGES[action], request)
            job, host, action = self.authorize(request)  # its attempt may have ended meanwhile
            return json_answer(await self._take(message, job, host, action))
        match (request.method, action):
            case ("GET", "assignment"):
                return json_answer(to_plain(self._gateway.assignment(job)))
            case ("GET", "orders"):
                return json_answer(await self._order(job, host, request))
            case ("POST", "traces"):
                await self._take_trace(job, host, request)
                return json_answer({})
        raise _no_such(request.method, action)

    async def _take(self, message: Any, job: TrainingJob, host: str, action: str) -> Any:
        """Pass a message to its receiver; return the document of the answer."""
        match action:
            case "reports":
                return to_plain(await self._gateway.report(job, host, message))
            case "logs":
                return to_plain(await self._gateway.append_logs(job, host, message))
            case "dumps":
                await self._gateway.take_dump(job, host, message)
                return {}
            case "profiles":
                await self._gateway.take_profile(job, host, message)
                return {}
            case "samples" if self._samples is not None:
                return to_plain(await self._samples.append(job, host, message))
            case "training" if self._training is not None:
                return to_plain(await self._training.append(job, host, message))
        raise _no_such("POST", action)

    async def _take_trace(self, job: TrainingJob, host: str, request: HttpRequest) -> None:
        query = query_of(request)
        numbers = [query.get(name, "") for name in ("number", "rank", "offset")]
        if not all(_LONG_NUMBER.fullmatch(text) for text in numbers):
            raise WireError("ValidationException", f"number, rank and offset are numbers from 0, got {numbers!r:.100}")
        number, rank, offset = map(int, numbers)
        is_last = query.get("last") == "1"
        await self._gateway.take_trace(
            job, host, request.body, number=number, rank=rank, offset=offset, is_last=is_last
        )

    async def _order(self, job: TrainingJob, host: str, request: HttpRequest) -> Any:
        query = query_of(request)
        try:
            after = int(query.get("after", "0"))
            wait_s = min(float(query.get("wait_s", "0")), MAX_ORDER_WAIT_S)
            if not math.isfinite(wait_s):
                raise ValueError(f"wait_s is {wait_s}")
        except ValueError as error:
            raise WireError("ValidationException", f"after and wait_s are numbers: {error}") from error
        return to_plain(await self._gateway.next_order(job, host, after=after, wait_s=wait_s))


def _no_such(method: str, action: str) -> WireError:
    return WireError("NotFound", f"no such agent request: {method} {action}", http_status=404)


def _read_message(cls: type[Any], most_values: int, request: HttpRequest) -> Any:
    try:
        return from_plain(cls, read_json(request, most_values=most_values))
    except ContractError as error:
        raise WireError("ValidationException", error.message) from error
