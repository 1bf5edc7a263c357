"""Reads the body of an API request within its bounds: length, budget and time."""

from __future__ import annotations

import asyncio

from aiohttp import web

from clary.base.errors import WireError
from clary.control.server.edge.body_budget import BodyTicket

BUSY_STATUS = 503  # AWS clients and agents retry such a request later


async def read_body(request: web.BaseRequest, *, max_bytes: int, ticket: BodyTicket, timeout_s: float) -> bytes:
    """Return the whole body, after sending `100 Continue` to a waiting client.

    Args:
        max_bytes: a longer body is refused as soon as its length is known.
        ticket: counts the held bytes.
        timeout_s: seconds for the whole body.
    Raises: WireError 413, 408, or 503 if the budget of bodies is used up.
    """
    if not request.body_exists:
        return b""
    if request.content_length is not None and request.content_length > max_bytes:
        raise too_large(max_bytes)
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # `100 Continue` is no part of the answer, which must still begin with its own headers.
        request.writer.output_size = 0
    pieces: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(timeout_s):
            while piece := await request.content.readany():
                num_bytes += len(piece)
                if num_bytes > max_bytes:
                    raise too_large(max_bytes)
                reason = ticket.grow(len(piece))
                if reason:
                    raise WireError("ServiceUnavailable", f"Please try again later: {reason}.", http_status=BUSY_STATUS)
                pieces.append(piece)
    except TimeoutError:
        message = f"The request's body did not arrive within {timeout_s:g} s."
        raise WireError("RequestTimeoutException", message, http_status=408) from None
    return b"".join(pieces)


def too_large(max_bytes: int) -> WireError:
    """Return the error for a body that is longer than its limit."""
    return WireError("RequestEntityTooLarge", f"The request's body is longer than {max_bytes} bytes.", http_status=413)
