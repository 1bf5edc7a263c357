"""JSON, bearer tokens and errors of the service's own pages, shared by agents' and users' routes."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl

from clary.base.errors import WireError
from clary.control.wire.json_bounds import has_more_values
from clary.control.wire.messages import HttpRequest, HttpResponse

MAX_VALUES = 500_000  # a full batch of log lines has about this many values

# Pages change often and may contain hostile text: browsers must not cache them, or treat them as anything but JSON.
JSON_HEADERS = [
    ("Content-Type", "application/json"),
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
]


def bearer_token(request: HttpRequest) -> str:
    """Return the bearer token of a request. Raises: WireError 403 without a token."""
    scheme, _, token = (request.header("authorization") or "").partition(" ")
    if scheme.lower() != "bearer" or not token or not token.isascii():
        raise WireError("AccessDenied", "this page needs `Authorization: Bearer TOKEN`", http_status=403)
    return token.strip()


def read_json(request: HttpRequest, *, most_values: int = MAX_VALUES) -> Any:
    """Return the JSON body. Raises: WireError 400 if it is not JSON or has more than `most_values` values."""
    if has_more_values(request.body, most_values):
        raise WireError("SerializationException", f"the body has more than {most_values} values")
    try:
        with _no_collection():
            return json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise WireError("SerializationException", f"the body is not JSON: {error}") from error


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Pause Python's garbage collection, which takes three quarters of the time of a parse.

    The parser does not release the interpreter lock, so the service answers no other request meanwhile.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def query_of(request: HttpRequest) -> dict[str, str]:
    """Return the decoded query, with the last value of a repeated name, without NUL, which some databases refuse."""
    pairs = parse_qsl(request.query, keep_blank_values=True)
    return {name.replace("\0", ""): value.replace("\0", "") for name, value in pairs}


def json_answer(document: Any, *, status: int = 200) -> HttpResponse:
    """Return a JSON answer."""
    return HttpResponse(status, list(JSON_HEADERS), json.dumps(document).encode())


def finite_answer(answer: HttpResponse) -> HttpResponse:
    """Return a JSON answer that all parsers accept: null for NaN and infinite values, which Python writes as words."""
    if answer.header("content-type") != "application/json":
        return answer
    if b"NaN" not in answer.body and b"Infinity" not in answer.body:
        return answer  # usually; the words may also occur within a text
    document = json.loads(answer.body, parse_constant=lambda _name: None)
    return HttpResponse(answer.status, answer.headers, json.dumps(document).encode())


def error_answer(error: WireError) -> HttpResponse:
    """Return an error in the format of AWS's JSON errors."""
    return json_answer({"__type": error.code, "message": error.message}, status=error.http_status)
