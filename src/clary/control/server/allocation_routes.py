"""Handlers for requests of boot programs on other machines: enrolment, and the agent's bundle.

Where: `route_table`. Any machine on the nodes' network can send requests to these routes. For each host number the
first boot with a valid proof gets the agent's tokens; every other boot gets 410. The bundle contains only public code.
Source: contract/enrolment.py.
"""

from __future__ import annotations

import json
import re

from clary.base.errors import ContractError, EngineError, WireError
from clary.base.plain import from_plain, to_plain
from clary.contract.enrolment import Admission, Enrolment
from clary.control.engines.cluster.cluster_engine import ClusterEngine
from clary.control.engines.cluster.late_start import LateStart
from clary.control.server.edge.internal_http import json_answer
from clary.control.wire.messages import HttpRequest, HttpResponse

_INDEX = re.compile(r"[0-9]{1,5}")
_NONE = "this service starts no hosts on other machines (setting engine is local)"


async def enrol(engine: ClusterEngine | None, tag: str, index: str, request: HttpRequest) -> HttpResponse:
    """Answer a boot: 200 with the tokens of its host, or 202 while other boots are missing.

    Args:
        engine: starts hosts on other machines; None if the setting `engine` is local.
        tag: tag in the path.
        index: host index in the path.
        request: its body is an Enrolment.
    Raises: WireError 410 if no pool needs the boot, its proof or claim is wrong, another boot has the number, the index
        is malformed, or `engine` is None; 400 for an invalid body; 503 while the scheduler is unavailable, or if the
        enrolment cannot be stored.
    """
    if engine is None:
        raise WireError("AllocationOver", _NONE, http_status=410)
    if not _INDEX.fullmatch(index):
        raise WireError("AllocationOver", "an index has one to five digits", http_status=410)
    try:
        asked = from_plain(Enrolment, json.loads(request.body))
    except (ValueError, RecursionError, ContractError) as error:
        raise WireError("ValidationException", f"the body is no enrolment: {error}"[:300]) from error
    try:
        answer = await engine.enrolments.enrol(tag, int(index), asked)
    except EngineError as error:
        if not error.retryable:
            raise
        raise WireError("ServiceUnavailable", error.message, http_status=503) from error  # the boot retries
    status = 200 if isinstance(answer, Admission) else 202
    return json_answer(to_plain(answer), status=status)


def bundle(engine: ClusterEngine | None, digest: str) -> HttpResponse:
    """Return the agent's bundle with this digest. Raises: WireError 404 for another digest, and if `engine` is None."""
    if engine is None or digest != engine.bundle.digest:
        raise WireError("NotFound", _NONE if engine is None else "this release has another bundle", http_status=404)
    return HttpResponse(status=200, headers=[("Content-Type", "application/zip")], body=engine.bundle.data)


def why_late(engine: ClusterEngine | None) -> str:
    """Return why the scheduler of other machines has not started yet; empty if it has started."""
    return engine.scheduler.why_late if engine is not None and isinstance(engine.scheduler, LateStart) else ""
