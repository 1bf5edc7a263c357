"""Authorization of a route's caller: by token of an agent, program, box, scraper or owner, or by console session.

Where: `clary_handler` authorizes each request by its head, and again with its body. Each token is compared by the part
that knows it: tokens of attempts by a gateway, the owner's token by `edge.access`.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from clary.base.errors import WireError
from clary.control.engines.boxes.desk import BoxDesk, require_desk
from clary.control.reconcile.gateways.agent_gateway import AgentGateway
from clary.control.reconcile.gateways.pool_gateway import PoolGateway
from clary.control.reconcile.gateways.training_gateway import MAX_STATUS_BYTES, TrainingGateway
from clary.control.server.edge.access import Access, require_csrf
from clary.control.server.edge.gates import STRANGER_BODY_BYTES
from clary.control.server.edge.internal_http import bearer_token
from clary.control.server.edge.sessions import Session
from clary.control.server.routing import Caller, Who
from clary.control.wire.messages import HttpRequest

OWNER_BODY_BYTES = 256 * 1024  # forms of pages, parsed on the event loop; usual forms have 1/100 of this
OPEN, OFF = "open", "off"  # values of the setting `metrics_page`; any other value requires the token


class Authorizer:
    """Checks the token or session that a route demands of its caller.

    Args:
        agents: knows the tokens of attempts.
        pools: knows the tokens of warm pools.
        programs: knows the tokens of hosts' programs.
        access: knows the owner's token and the sessions.
        metrics_token: token that permits reading the metrics.
        metrics_page: setting `metrics_page`.
        max_body_bytes: largest body of an agent of an attempt; `OWNER_BODY_BYTES` limits the owner and boxes, too.
        boxes: knows the tokens of boxes; None if the engine has no boxes.
        engine: setting `engine`.
    """

    def __init__(
        self,
        agents: AgentGateway,
        pools: PoolGateway,
        programs: TrainingGateway,
        access: Access,
        *,
        metrics_token: str,
        metrics_page: str,
        max_body_bytes: int,
        boxes: BoxDesk | None = None,
        engine: str = "local",
    ) -> None:
        self._agents = agents
        self._pools = pools
        self._programs = programs
        self._access = access
        self._metrics_token = metrics_token
        self._metrics_page = metrics_page
        self._max_body_bytes = max_body_bytes
        self._boxes = boxes
        self._engine = engine

    def authorize(self, who: Who, request: HttpRequest, values: Mapping[str, str]) -> Caller:
        """Return the caller of a request for a route that is open to `who`.

        Args:
            who: callers that the route permits.
            request: its head; the body may not have arrived yet.
            values: values in the path: job, attempt, host, pool, pool_host and box, if the route has them.
        Raises: WireError 401 or 403 for any other caller; 404 and 410 for an unknown agent or box; 404 for a scraper if
            the page of metrics is off; 409 for a box if the engine has no boxes.
        """
        match who:
            case Who.AGENT:
                host = values["host"]
                job = self._agents.authorize(values["job"], int(values["attempt"]), host, bearer_token(request))
                name, most = f"agent of {host} of {job.name}", self._max_body_bytes
                return Caller(name=name, max_body_bytes=most, job=job, host=host)
            case Who.POOL_AGENT:
                pool, host = values["pool"], values["pool_host"]
                self._pools.authorize(pool, bearer_token(request), host)
                return Caller(name=f"agent of {host} of {pool}", max_body_bytes=STRANGER_BODY_BYTES, host=host)
            case Who.PROGRAM:
                host = values["host"]
                token = bearer_token(request)
                job = self._programs.authorize_status(values["job"], int(values["attempt"]), host, token)
                name = f"program of {host} of {job.name}"
                return Caller(name=name, max_body_bytes=MAX_STATUS_BYTES, job=job, host=host)
            case Who.OWNER:
                session = self._access.let_in(request)
                most = min(self._max_body_bytes, OWNER_BODY_BYTES)
                return Caller(name="owner", max_body_bytes=most, session=session)
            case Who.TOKEN:
                self._access.session_of(request)  # refuses changes from a page of another origin
                self._access.require_token(request)
            case Who.BOX:
                box = values["box"]
                require_desk(self._boxes, self._engine).authorize(box, bearer_token(request))
                return Caller(name=f"box {box}", max_body_bytes=min(self._max_body_bytes, OWNER_BODY_BYTES))
            case Who.JOINER:
                require_desk(self._boxes, self._engine).authorize_joining(bearer_token(request))
            case Who.SCRAPER:
                self._require_scraper(request)
            case Who.ANYBODY:
                session = self._access.session_of(request)
                if session is not None and request.method == "DELETE":
                    require_csrf(request, session)
                return _stranger(request, session=session)
            case Who.NOBODY:
                pass
        return _stranger(request)

    def _require_scraper(self, request: HttpRequest) -> None:
        if self._metrics_page == OFF:
            raise WireError("NotFound", "setting metrics_page is off", http_status=404)
        if self._metrics_page == OPEN:
            return
        if not hmac.compare_digest(bearer_token(request).encode(), self._metrics_token.encode()):
            message = "the token does not open /metrics; `clary metrics --token` prints the one that does"
            raise WireError("AccessDenied", message, http_status=403)


def _stranger(request: HttpRequest, *, session: Session | None = None) -> Caller:
    name = f"a reader at {request.remote}"
    return Caller(name=name, max_body_bytes=STRANGER_BODY_BYTES, is_known=False, session=session)
