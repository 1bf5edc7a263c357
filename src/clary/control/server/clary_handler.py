"""The service's own pages: agents' below /clary/v1/agents/ and pools/, people's at all other paths.

People come by token or by the console's cookie (`access`); agents have tokens of their own and never a cookie.
"""

from __future__ import annotations

from http import HTTPStatus

from clary.base.errors import WireError
from clary.control.reconcile.gateways.training_gateway import MAX_STATUS_BYTES
from clary.control.server import agent_routes, people_routes, pool_routes, status_routes
from clary.control.server.actions import rehearsal_actions, spot_actions
from clary.control.server.console_routes import ConsoleRoutes
from clary.control.server.edge.access import Access, require_csrf
from clary.control.server.edge.gates import STRANGER_BODY_BYTES, Admission, Refusal, admit_strangers
from clary.control.server.edge.guesses import GuessLimiter, too_many_guesses
from clary.control.server.edge.internal_http import error_answer, finite_answer
from clary.control.server.edge.sign_in import CODE_PATH, SignIn
from clary.control.server.edge.sign_in import PATH as SESSION_PATH
from clary.control.server.pages.state_page import StateRoutes
from clary.control.store.damage import JobUnreadable
from clary.control.wire.messages import HttpRequest, HttpResponse

OWNER_BODY_BYTES = 256 * 1024  # forms of pages, read on the event loop; a hundredth of it is long
# A browser writes every answer 404 into its log as an error, and pages ask for much that is merely not there yet: the
# console's requests carry the one header, and get the status in the other.
QUIET = "X-Clary-Quiet"
QUIET_STATUS = "X-Clary-Status"


class ClaryHandler:
    """Sends a request to agents' or people's routes and turns their errors into answers.

    Args:
        agents: of jobs.
        pools: agents of warm pools.
        people: pages of one job.
        spot: spot capacity.
        rehearsals: None has no such pages.
        access: reads cookies; None knows tokens alone.
        sign_in: gives out cookies; comes with `access`.
        console: pages about many jobs; None has none.
        status: programs' word on their progress; None takes none.
        guesses: counts wrong tokens; None counts none.
        max_body_bytes: largest body of somebody who is known.
        state: what is wrong with the state folder, rows that are set aside, backups; None has no such pages.
    """

    def __init__(
        self,
        agents: agent_routes.AgentRoutes,
        pools: pool_routes.PoolRoutes,
        people: people_routes.PeopleRoutes,
        spot: spot_actions.SpotRoutes,
        rehearsals: rehearsal_actions.RehearsalActions | None = None,
        *,
        access: Access | None = None,
        sign_in: SignIn | None = None,
        console: ConsoleRoutes | None = None,
        status: status_routes.StatusRoutes | None = None,
        guesses: GuessLimiter | None = None,
        max_body_bytes: int = 1 << 23,
        state: StateRoutes | None = None,
    ) -> None:
        self._agents = agents
        self._pools = pools
        self._people = people
        self._spot = spot
        self._rehearsals = rehearsals
        self._access = access
        self._sign_in = sign_in
        self._console = console
        self._status = status
        self._state = state
        self._guesses = guesses
        self._max_body_bytes = max_body_bytes

    def admit(self, head: HttpRequest) -> Admission | Refusal:
        """Judge a request by its head: only a token or cookie that opens its page lets more than a few bytes come."""
        try:
            return self._admission(head)
        except WireError as error:
            guessed = (head.header("authorization") or "").lower().startswith("bearer ")
            if self._guesses is None or not guessed or error.http_status != HTTPStatus.FORBIDDEN:
                return Refusal(answer=error_answer(error))
            wrong = self._guesses.note_wrong(head.remote)
            told = too_many_guesses(head.remote, wrong) if wrong.retry_after_s else error
            return Refusal(answer=error_answer(told), delay_s=wrong.delay_s)

    def _admission(self, head: HttpRequest) -> Admission:
        most = self._max_body_bytes
        if head.raw_path.startswith(agent_routes.PREFIX):
            job, host, _ = self._agents.authorize(head)
            return Admission(client=f"agent of {host} of {job.name}", max_body_bytes=most, is_known=True)
        if head.raw_path.startswith(pool_routes.PREFIX):
            pool, host = self._pools.authorize(head)
            return Admission(client=f"agent of {host} of {pool}", max_body_bytes=STRANGER_BODY_BYTES, is_known=True)
        if head.raw_path.startswith(status_routes.PREFIX) and self._status is not None:
            job, host = self._status.authorize(head)
            most = MAX_STATUS_BYTES
            return Admission(client=f"program of {host} of {job.name}", max_body_bytes=most, is_known=True)
        if head.raw_path in (SESSION_PATH, CODE_PATH):
            return admit_strangers(head)
        if self._access is not None:
            self._access.require_admin(head)
        return Admission(client="owner", max_body_bytes=min(most, OWNER_BODY_BYTES), is_known=True)

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Answer one request below /clary/v1/."""
        try:
            if request.raw_path.startswith(agent_routes.PREFIX):
                return await self._agents.handle(request)
            if request.raw_path.startswith(pool_routes.PREFIX):
                return await self._pools.handle(request)
            if request.raw_path.startswith(status_routes.PREFIX) and self._status is not None:
                return await self._status.handle(request)
            if request.raw_path in (SESSION_PATH, CODE_PATH):
                return await self._answer_sign_in(request)
            if self._access is not None:
                request = self._access.let_in(request)
            return finite_answer(await self._answer_person(request))
        except JobUnreadable as error:
            return error_answer(WireError("Conflict", error.message, http_status=409))
        except WireError as error:
            is_quiet = request.header(QUIET) is not None and _is_merely_absent(request, error)
            return _quiet(error) if is_quiet else error_answer(error)

    async def _answer_sign_in(self, request: HttpRequest) -> HttpResponse:
        if self._access is None or self._sign_in is None:
            raise WireError("NotFound", "this service has no console", http_status=404)
        session = self._access.session_of(request)
        if request.method == "DELETE" and session is not None:
            require_csrf(request, session)
        return await self._sign_in.handle(request, session)

    async def _answer_person(self, request: HttpRequest) -> HttpResponse:
        if request.raw_path.startswith(people_routes.PREFIX):
            return await self._people.handle(request)
        if request.raw_path == spot_actions.PATH:
            return await self._spot.handle(request)
        if request.raw_path == rehearsal_actions.PATH and self._rehearsals is not None:
            return await self._rehearsals.handle(request)
        if self._state is not None and self._state.has(request.raw_path):
            return await self._state.handle(request)
        if self._console is not None and self._console.has(request.raw_path):
            return await self._console.handle(request)
        raise WireError("NotFound", f"there is nothing at {request.raw_path}", http_status=404)


def _is_merely_absent(request: HttpRequest, error: WireError) -> bool:
    """Whether the only fault of a request is that its page or session does not exist."""
    if request.method == "GET" and request.raw_path == SESSION_PATH:
        return error.http_status == HTTPStatus.UNAUTHORIZED
    return error.http_status == HTTPStatus.NOT_FOUND


def _quiet(error: WireError) -> HttpResponse:
    answer = error_answer(error)
    return HttpResponse(HTTPStatus.OK, [*answer.headers, (QUIET_STATUS, str(error.http_status))], answer.body)
