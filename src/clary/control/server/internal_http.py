"""JSON, bearer tokens and errors of the service's own pages, shared by agents' and people's routes."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from clary.contract.errors import WireError


def bearer_token(request: web.BaseRequest) -> str:
    """Return the bearer token of a request; raises WireError 403 if there is none."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise WireError("AccessDenied", "this page needs `Authorization: Bearer TOKEN`", http_status=403)
    return token.strip()


async def read_json(request: web.BaseRequest, *, max_bytes: int) -> Any:
    """Read a JSON body of at most `max_bytes`; raises WireError 413 or 400."""
    body = bytearray()
    async for chunk in request.content.iter_chunked(64 * 1024):
        body += chunk
        if len(body) > max_bytes:
            raise WireError("RequestEntityTooLarge", f"the body has more than {max_bytes} bytes", http_status=413)
    try:
        return json.loads(body)
    except ValueError as error:
        raise WireError("SerializationException", f"the body is not JSON: {error}") from error


def json_answer(document: Any, *, status: int = 200) -> web.Response:
    """Return a JSON answer."""
    return web.Response(body=json.dumps(document).encode(), status=status, content_type="application/json")


def error_answer(error: WireError) -> web.Response:
    """Return an error in the shape of AWS's JSON errors."""
    return json_answer({"__type": error.code, "message": error.message}, status=error.http_status)
