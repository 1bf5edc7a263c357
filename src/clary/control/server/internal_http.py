"""JSON, bearer tokens and errors of the service's own pages, shared by agents' and people's routes."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl

from clary.contract.errors import WireError
from clary.control.wire.json_bounds import has_more_values
from clary.control.wire.messages import HttpRequest, HttpResponse

MAX_VALUES = 500_000  # agents send 60,000 numbers of metrics at once (agent.metrics.row_store)

# What pages hold changes all the time and may be hostile text: no browser keeps it, or takes it for anything but JSON.
JSON_HEADERS = [
    ("Content-Type", "application/json"),
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
]


def bearer_token(request: HttpRequest) -> str:
    """Return the bearer token of a request; raises WireError 403 if there is none."""
    scheme, _, token = (request.header("authorization") or "").partition(" ")
    if scheme.lower() != "bearer" or not token or not token.isascii():
        raise WireError("AccessDenied", "this page needs `Authorization: Bearer TOKEN`", http_status=403)
    return token.strip()


def read_json(request: HttpRequest) -> Any:
    """Return the JSON body; raises WireError 400 if it is none, or has values beyond reason."""
    if has_more_values(request.body, MAX_VALUES):
        raise WireError("SerializationException", f"the body has more than {MAX_VALUES} values")
    try:
        return json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise WireError("SerializationException", f"the body is not JSON: {error}") from error


def query_of(request: HttpRequest) -> dict[str, str]:
    """Return the decoded query; of a repeated name the last value, and no NUL, which not every database takes."""
    pairs = parse_qsl(request.query, keep_blank_values=True)
    return {name.replace("\0", ""): value.replace("\0", "") for name, value in pairs}


def json_answer(document: Any, *, status: int = 200) -> HttpResponse:
    """Return a JSON answer."""
    return HttpResponse(status, list(JSON_HEADERS), json.dumps(document).encode())


def finite_answer(answer: HttpResponse) -> HttpResponse:
    """Return a JSON answer as all readers take it: null for what is not finite, which Python writes by name."""
    if answer.header("content-type") != "application/json":
        return answer
    if b"NaN" not in answer.body and b"Infinity" not in answer.body:
        return answer  # nearly all; those that have it may have it within a text
    document = json.loads(answer.body, parse_constant=lambda _name: None)
    return HttpResponse(answer.status, answer.headers, json.dumps(document).encode())


def error_answer(error: WireError) -> HttpResponse:
    """Return an error in the shape of AWS's JSON errors."""
    return json_answer({"__type": error.code, "message": error.message}, status=error.http_status)
