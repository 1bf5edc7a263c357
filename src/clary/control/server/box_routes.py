"""Handlers for requests of boxes, of machines that join, and of the owner of boxes.

Where: `route_table` names these functions. A service whose engine is not boxes answers 409.
"""

from __future__ import annotations

from typing import Any

from clary.base.errors import ContractError, WireError
from clary.base.plain import from_plain, to_plain
from clary.contract.box_protocol import BOX_NAME, DIGEST, BoxOrders
from clary.control.engines.boxes.desk import BoxDesk, NewBox, require_desk
from clary.control.server.edge.internal_http import bearer_token
from clary.control.server.routing import Asked, Parts
from clary.control.wire.messages import HttpResponse

JOIN_VALID_S = 3600.0


async def next_orders(own: Parts, ask: Asked) -> BoxOrders:
    """Store the report of a box and return its orders. Raises: WireError 400, 410."""
    return await desk_of(own).orders(ask.values["box"], ask.message, ask.request.remote)


def boot_source(own: Parts, ask: Asked) -> HttpResponse:
    """Return the boot's source. Raises: WireError 404."""
    digest = ask.values["digest"]
    source = desk_of(own).boot_source(digest if DIGEST.fullmatch(digest) else "")
    return HttpResponse(200, [("Content-Type", "text/x-python"), ("Cache-Control", "no-store")], source)


def authority(own: Parts, ask: Asked) -> dict[str, str]:
    """Return the certificate of the service's authority; clients compare it with a fingerprint."""
    return {"ca_pem": desk_of(own).boot.ca_pem}


def boxes_page(own: Parts, ask: Asked) -> dict[str, Any]:
    """Return all boxes, and the jobs that wait for boxes."""
    return desk_of(own).page()


async def add_box(own: Parts, ask: Asked) -> Any:
    """Add the box named in the body, and return its token. Raises: WireError 400, 409."""
    admission = await desk_of(own).add(_new_box(ask.body))
    await _tell_engine(own)
    return to_plain(admission)


async def join(own: Parts, ask: Asked) -> Any:
    """Add the machine that sends the request with a join token as a box. Raises: WireError 400, 403, 409."""
    admission = await desk_of(own).join(bearer_token(ask.request), _new_box(ask.body))
    await _tell_engine(own)
    return to_plain(admission)


async def join_token(own: Parts, ask: Asked) -> dict[str, Any]:
    """Make a join token; the body may contain `valid_s`. Raises: WireError 400, 429."""
    desk = desk_of(own)
    body = ask.body
    valid_s = body.get("valid_s", JOIN_VALID_S) if isinstance(body, dict) else None
    if isinstance(valid_s, bool) or not isinstance(valid_s, int | float):
        raise WireError("ValidationException", 'expected {"valid_s": SECONDS}')
    return {**await desk.join_token(valid_s), "ca_pem": desk.boot.ca_pem}


async def drain(own: Parts, ask: Asked) -> None:
    """Take a box out of use. Raises: WireError 404."""
    await desk_of(own).drain(ask.values["box"])


async def resume(own: Parts, ask: Asked) -> None:
    """Take a box into use again. Raises: WireError 404."""
    await desk_of(own).resume(ask.values["box"])


async def remove(own: Parts, ask: Asked) -> None:
    """Remove a box; `{"force": true}` forgets a box that does not answer. Raises: WireError 404."""
    desk, body = desk_of(own), ask.body
    await desk.remove(ask.values["box"], is_forced=isinstance(body, dict) and body.get("force") is True)
    await _tell_engine(own)


def desk_of(own: Parts) -> BoxDesk:
    """Return the desk for boxes. Raises: WireError 409 with another engine."""
    return require_desk(own.boxes, own.engine)


async def _tell_engine(own: Parts) -> None:
    """Make the engine reload the boxes, so that they count for the admission of the next jobs."""
    if own.cluster is not None:
        await own.cluster.look_at_kinds()


def _new_box(body: Any) -> NewBox:
    try:
        new = from_plain(NewBox, body)
    except ContractError as error:
        raise WireError("ValidationException", error.message) from error
    if not BOX_NAME.fullmatch(new.name):
        raise WireError("ValidationException", f"name: expected letters, digits, - and ., got {new.name[:80]!r}")
    return new
