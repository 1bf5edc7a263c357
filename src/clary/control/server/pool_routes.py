"""HTTP for the agents of pools.

Source: contract/agent_protocol.py, which lists the request.
"""

from __future__ import annotations

import math
import re
from urllib.parse import unquote

from clary.base.errors import WireError
from clary.base.plain import to_plain
from clary.control.reconcile.gateways.pool_gateway import PoolGateway
from clary.control.server.edge.internal_http import bearer_token, json_answer, query_of
from clary.control.wire.messages import HttpRequest, HttpResponse

PREFIX = "/clary/v1/pools/"
MAX_WAIT_S = 30.0
_POOL = re.compile(r"pool_[0-9a-f]{12}")
_HOST = re.compile(r"algo-[0-9]{1,4}")


class PoolRoutes:
    """Answers requests below /clary/v1/pools/."""

    def __init__(self, gateway: PoolGateway) -> None:
        self._gateway = gateway

    def authorize(self, request: HttpRequest) -> tuple[str, str]:
        """Return pool and host of a request with the right token; raises WireError with the status to send."""
        match [unquote(part) for part in request.raw_path.removeprefix(PREFIX).split("/")]:
            case [pool, host, "assignment"] if _POOL.fullmatch(pool) and _HOST.fullmatch(host):
                self._gateway.authorize(pool, bearer_token(request))
                return pool, host
        raise WireError("NotFound", f"no such path of a pool: {request.raw_path}", http_status=404)

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Answer one agent; raises WireError with the status to send."""
        pool, host = self.authorize(request)
        query = query_of(request)
        try:
            wait_s = min(float(query.get("wait_s", "0")), MAX_WAIT_S)
            if not math.isfinite(wait_s):
                raise ValueError(f"wait_s is {wait_s}")
        except ValueError as error:
            raise WireError("ValidationException", f"wait_s is a number of seconds: {error}") from error
        found = await self._gateway.next_assignment(pool, host, after=query.get("after", ""), wait_s=wait_s)
        return json_answer(None if found is None else to_plain(found))
