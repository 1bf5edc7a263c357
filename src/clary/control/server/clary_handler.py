"""The service's own pages: agents' below /clary/v1/agents/ and pools/, people's at all other paths.

People come by token or by the console's cookie (`access`); agents have tokens of their own and never a cookie.
"""

from __future__ import annotations

from clary.contract.errors import WireError
from clary.control.server import (
    agent_routes,
    people_routes,
    pool_routes,
    rehearsal_actions,
    spot_actions,
    state_routes,
    status_routes,
)
from clary.control.server.access import Access, require_csrf
from clary.control.server.console_routes import ConsoleRoutes
from clary.control.server.internal_http import error_answer, finite_answer
from clary.control.server.sign_in import CODE_PATH, SignIn
from clary.control.server.sign_in import PATH as SESSION_PATH
from clary.control.store.damage import JobUnreadable
from clary.control.wire.messages import HttpRequest, HttpResponse


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
        state: state_routes.StateRoutes | None = None,
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
                return self._answer_sign_in(request)
            if self._access is not None:
                request = self._access.let_in(request)
            return finite_answer(await self._answer_person(request))
        except JobUnreadable as error:
            return error_answer(WireError("Conflict", error.message, http_status=409))
        except WireError as error:
            return error_answer(error)

    def _answer_sign_in(self, request: HttpRequest) -> HttpResponse:
        if self._access is None or self._sign_in is None:
            raise WireError("NotFound", "this service has no console", http_status=404)
        session = self._access.session_of(request)
        if request.method == "DELETE" and session is not None:
            require_csrf(request, session)
        return self._sign_in.handle(request, session)

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
