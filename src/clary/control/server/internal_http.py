"""JSON, bearer tokens and errors of the service's own pages, shared by agents' and people's routes."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl

from clary.contract.errors import WireError
from clary.control.wire.messages import HttpRequest, HttpResponse

JSON_HEADERS = [("Content-Type", "application/json")]


def bearer_token(request: HttpRequest) -> str:
    """Return the bearer token of a request; raises WireError 403 if there is none."""
    scheme, _, token = (request.header("authorization") or "").partition(" ")
    if scheme.lower() != "bearer" or not token or not token.isascii():
        raise WireError("AccessDenied", "this page needs `Authorization: Bearer TOKEN`", http_status=403)
    return token.strip()


def read_json(request: HttpRequest) -> Any:
    """Return the JSON body; raises WireError 400 if it is none."""
    try:
        return json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise WireError("SerializationException", f"the body is not JSON: {error}") from error


def query_of(request: HttpRequest) -> dict[str, str]:
    """Return the decoded query; of a repeated name the last value."""
    return dict(parse_qsl(request.query, keep_blank_values=True))


def json_answer(document: Any, *, status: int = 200) -> HttpResponse:
    """Return a JSON answer."""
    return HttpResponse(status, JSON_HEADERS, json.dumps(document).encode())


def error_answer(error: WireError) -> HttpResponse:
    """Return an error in the shape of AWS's JSON errors."""
    return json_answer({"__type": error.code, "message": error.message}, status=error.http_status)
