"""Requests with ids, handlers' answers as responses, and the refusals that the listener makes itself.

Where: `listener` uses them.
"""

from __future__ import annotations

import asyncio
import json
import os

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from multidict import CIMultiDict

from clary.base.errors import WireError
from clary.control.server.edge.bodies import BUSY_STATUS
from clary.control.wire.cbor_documents import dump_cbor
from clary.control.wire.messages import HttpResponse
from clary.control.wire.models import Protocol
from clary.control.wire.serializing import SMITHY_PROTOCOL

JSON_ERROR_TYPE = "application/x-amz-json-1.1"


class ListenerRequest(web.BaseRequest):
    """A request with an id of its own; `objects.front` puts the id into its answers too."""

    ATTRS = web.BaseRequest.ATTRS | frozenset({"clary_request_id"})
    clary_request_id = ""


def make_request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> ListenerRequest:
    """Make a request object for the listener, as the HTTP library's request factory.

    Args: as `aiohttp.web.BaseRequest`, in the library's order.
    """
    return ListenerRequest(message, payload, protocol, writer, task, asyncio.get_running_loop())


def new_request_id() -> str:
    """Return a new request id in AWS's format."""
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def whole_answer(request: ListenerRequest, answer: HttpResponse) -> web.Response:
    """Convert a handler's answer to a response of the HTTP library."""
    headers = CIMultiDict(answer.headers)
    headers.setdefault("X-Amzn-RequestId", request.clary_request_id)
    response = web.Response(status=answer.status, body=answer.body, headers=headers)
    _close_after_rest(request, response)
    return response


def refusal(request: ListenerRequest, error: WireError) -> web.Response:
    """Return an error in the format of AWS's JSON errors; in CBOR for clients that speak RPC v2 CBOR."""
    response = error_answer(request, error.http_status, error.code, error.message)
    if error.http_status == BUSY_STATUS:
        response.headers["Retry-After"] = "1"
    return response


def error_answer(request: ListenerRequest, status: int, code: str, message: str) -> web.Response:
    """Return an error with this status, code and message; in CBOR for clients that speak RPC v2 CBOR.

    Args:
        request: contains the answer's id; the connection is closed if the request's body was not read to the end.
        status: HTTP status.
        code: name of the error, as in AWS's services.
        message: text for users.
    """
    document = {"__type": code, "message": message}
    headers = {"X-Amzn-RequestId": request.clary_request_id, "X-Amzn-ErrorType": code}
    name, cbor = SMITHY_PROTOCOL
    if request.headers.get(name) == cbor:
        body, content_type = dump_cbor(document), Protocol.RPC_V2_CBOR.content_type
        headers[name] = cbor
    else:
        body, content_type = json.dumps(document).encode(), JSON_ERROR_TYPE
    response = web.Response(status=status, body=body, content_type=content_type, headers=headers)
    _close_after_rest(request, response)
    return response


def _close_after_rest(request: ListenerRequest, response: web.Response) -> None:
    if request.body_exists and not request.content.at_eof():
        response.force_close()  # the library would parse the rest of the body as the next request
