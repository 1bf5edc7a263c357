"""The service's own pages: agents' below /clary/v1/agents/ and pools/, people's below jobs/, at spot and rehearsal."""

from __future__ import annotations

from clary.contract.errors import WireError
from clary.control.server import agent_routes, people_routes, pool_routes, rehearsal_actions, spot_actions
from clary.control.server.internal_http import error_answer
from clary.control.wire.messages import HttpRequest, HttpResponse


class ClaryHandler:
    """Sends a request to agents' or people's routes and turns their errors into answers."""

    def __init__(
        self,
        agents: agent_routes.AgentRoutes,
        pools: pool_routes.PoolRoutes,
        people: people_routes.PeopleRoutes,
        spot: spot_actions.SpotRoutes,
        rehearsals: rehearsal_actions.RehearsalActions | None = None,
    ) -> None:
        self._agents = agents
        self._pools = pools
        self._people = people
        self._spot = spot
        self._rehearsals = rehearsals

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Answer one request below /clary/v1/."""
        try:
            if request.raw_path.startswith(agent_routes.PREFIX):
                return await self._agents.handle(request)
            if request.raw_path.startswith(pool_routes.PREFIX):
                return await self._pools.handle(request)
            if request.raw_path.startswith(people_routes.PREFIX):
                return await self._people.handle(request)
            if request.raw_path == spot_actions.PATH:
                return await self._spot.handle(request)
            if request.raw_path == rehearsal_actions.PATH and self._rehearsals is not None:
                return await self._rehearsals.handle(request)
            raise WireError("NotFound", f"there is nothing at {request.raw_path}", http_status=404)
        except WireError as error:
            return error_answer(error)
