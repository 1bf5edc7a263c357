"""Answers boots on other machines: their enrolment, and the agent's bundle.

Where: `route_table`. Any machine on the nodes' network reaches these routes. An enrolment gives one agent's tokens to
the first boot that proves itself for a number, and 410 to all other boots; the bundle holds only public code.
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
_NONE = "no host of this service is another machine (setting engine is local)"


async def enrol(engine: ClusterEngine | None, tag: str, index: str, request: HttpRequest) -> HttpResponse:
    """Answer a boot: 200 with the tokens of its host, or 202 while other boots are missing.

    Args:
        engine: of other machines; None with engine local.
        tag: of the path.
        index: of the path.
        request: its body is an Enrolment.
    Raises: WireError 410 for a boot without a pool, 400 for an invalid body, 503 while the scheduler is unavailable.
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
        raise WireError("ServiceUnavailable", error.message, http_status=503) from error  # the boot asks again
    status = 200 if isinstance(answer, Admission) else 202
    return json_answer(to_plain(answer), status=status)


def bundle(engine: ClusterEngine | None, digest: str) -> HttpResponse:
    """Return the agent's bundle of this digest. Raises: WireError 404 if it is not this release's."""
    if engine is None or digest != engine.bundle.digest:
        raise WireError("NotFound", _NONE if engine is None else "this release has another bundle", http_status=404)
    return HttpResponse(status=200, headers=[("Content-Type", "application/zip")], body=engine.bundle.data)


def why_late(engine: ClusterEngine | None) -> str:
    """Return the reason why the scheduler of other machines has not started; empty if it has."""
    return engine.scheduler.why_late if engine is not None and isinstance(engine.scheduler, LateStart) else ""
