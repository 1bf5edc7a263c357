"""Conversion of results and errors to HTTP responses.

Where: last step of the wire. Results are written by the output shape of their operation; errors need no operation, so
that the sender of a request that could not be routed can parse the refusal. Source: Smithy, "AWS JSON 1.0/1.1", "AWS
query", "AWS restJson1", "Smithy RPC v2 CBOR protocol" and "awsQueryCompatible".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from clary.base.errors import ContractError, WireError
from clary.control.wire.cbor_documents import dump_cbor
from clary.control.wire.cbor_values import cbor_writer
from clary.control.wire.json_serializing import json_writer
from clary.control.wire.messages import HttpResponse
from clary.control.wire.models import ExceptionModel, Operation, Protocol, Service
from clary.control.wire.rest_serializing import dump_json, rest_writer
from clary.control.wire.scalars import MisfitError
from clary.control.wire.xml_serializing import xml_members_writer, xml_text

REQUEST_ID_HEADER = "x-amzn-RequestId"
ERROR_TYPE_HEADER = "x-amzn-ErrorType"
QUERY_ERROR_HEADER = "x-amzn-query-error"
SMITHY_PROTOCOL = ("smithy-protocol", "rpc-v2-cbor")  # header that clients of RPC v2 send and expect
RETRY_AFTER_HEADER = "x-amz-retry-after"  # milliseconds that a client should wait before it retries
MEMBERS = "members"  # key in a WireError's details: further members of the error, spelled as in its model
RETRY_AFTER_MS = "retry_after_ms"  # key in a WireError's details: value of RETRY_AFTER_HEADER
SERVER_ERROR_STATUS = 500
DEFAULT_ERROR_STATUS = 400


def serialize(operation: Operation, result: Mapping[str, Any], *, request_id: str) -> HttpResponse:
    """Return the HTTP response with a result.

    Args:
        result: spelled as in the model; members that are None are left out.
    Raises: ContractError naming the first member that the model does not have, or the first value of another type.
    """
    try:
        response = _writer(operation)(result, request_id)
    except MisfitError as error:
        raise ContractError(
            f"{operation.service.name} {operation.name} cannot answer: {error.text} (at '{error.location}')"
        ) from error
    response.headers.append((REQUEST_ID_HEADER, request_id))
    return response


def serialize_error(
    error: WireError, *, protocol: Protocol, request_id: str, service: Service | None = None
) -> HttpResponse:
    """Return the HTTP response with an error.

    Args:
        error: `details["retry_after_ms"]`, if set, is the time for which clients wait before they retry;
            `details["members"]` holds further members, which all protocols but query send.
        protocol: protocol of the operation; without an operation, from `routing.protocol_of`.
        service: its model names status code and spelling of the error; None if unknown.
    """
    model = service.exceptions.get(error.code) if service is not None else None
    status = error.http_status
    if status == DEFAULT_ERROR_STATUS and model is not None and model.http_status is not None:
        status = model.http_status
    is_sender_fault = status < SERVER_ERROR_STATUS
    headers = [("Content-Type", protocol.content_type), (REQUEST_ID_HEADER, request_id)]
    if RETRY_AFTER_MS in error.details:
        headers.append((RETRY_AFTER_HEADER, str(error.details[RETRY_AFTER_MS])))
    if protocol is Protocol.QUERY:
        namespace = f' xmlns="{xml_text(service.xml_namespace)}"' if service is not None else ""
        code = model.code if model is not None else error.code
        body = (
            f"<ErrorResponse{namespace}><Error><Type>{'Sender' if is_sender_fault else 'Receiver'}</Type>"
            f"<Code>{xml_text(code)}</Code><Message>{xml_text(error.message)}</Message></Error>"
            f"<RequestId>{xml_text(request_id)}</RequestId></ErrorResponse>"
        ).encode()
        return HttpResponse(status, headers, body)
    code = model.shape_name if model is not None else error.code
    document = {**error.details.get(MEMBERS, {}), "__type": code, "message": error.message}
    if model is not None and model.message_member != "message":
        # Generated clients read the member that the model names; other clients read `message`.
        document[model.message_member] = error.message
    headers.append((ERROR_TYPE_HEADER, code))
    if service is not None and service.is_query_compatible:
        headers.append((QUERY_ERROR_HEADER, _query_error(error, model, is_sender_fault=is_sender_fault)))
    if protocol is Protocol.RPC_V2_CBOR:
        return HttpResponse(status, [*headers, SMITHY_PROTOCOL], dump_cbor(document))
    return HttpResponse(status, headers, dump_json(document))


Writer = Callable[[Mapping[str, Any], str], HttpResponse]


@cache
def _writer(operation: Operation) -> Writer:
    if operation.protocol is Protocol.REST_JSON:
        write_rest = rest_writer(operation.model)
        return lambda result, request_id: write_rest(result)
    if operation.protocol is Protocol.QUERY:
        return _query_writer(operation)
    return _cbor_writer(operation) if operation.protocol is Protocol.RPC_V2_CBOR else _json_writer(operation)


def _json_writer(operation: Operation) -> Writer:
    shape = operation.model.output_shape
    content_type = operation.protocol.content_type
    if shape is None:
        # The response of an operation without output has no body (StopTrainingJob).
        return lambda result, request_id: HttpResponse(200, [("Content-Type", content_type)], _nothing(result))
    write_document = json_writer(shape)

    def write(result: Mapping[str, Any], request_id: str) -> HttpResponse:
        return HttpResponse(200, [("Content-Type", content_type)], dump_json(write_document(result)))

    return write


def _cbor_writer(operation: Operation) -> Writer:
    shape = operation.model.output_shape
    if shape is None:
        # The protocol forbids body and content type where an operation has no output.
        return lambda result, request_id: HttpResponse(200, [SMITHY_PROTOCOL], _nothing(result))
    write_document = cbor_writer(shape)
    headers = [("Content-Type", operation.protocol.content_type), SMITHY_PROTOCOL]
    return lambda result, request_id: HttpResponse(200, [*headers], dump_cbor(write_document(result)))


def _query_writer(operation: Operation) -> Writer:
    shape = operation.model.output_shape
    name = operation.name
    namespace = xml_text(operation.service.xml_namespace)
    write_members = xml_members_writer(shape) if shape is not None else None
    wrapper = (shape.serialization.get("resultWrapper") if shape is not None else None) or f"{name}Result"

    def write(result: Mapping[str, Any], request_id: str) -> HttpResponse:
        if write_members is None:
            wrapped = _nothing(result).decode()
        else:
            wrapped = f"<{wrapper}>{write_members(result)}</{wrapper}>"
        body = (
            f'<{name}Response xmlns="{namespace}">{wrapped}<ResponseMetadata>'
            f"<RequestId>{xml_text(request_id)}</RequestId></ResponseMetadata></{name}Response>"
        )
        return HttpResponse(200, [("Content-Type", operation.protocol.content_type)], body.encode())

    return write


def _nothing(result: Mapping[str, Any]) -> bytes:
    for name, value in result.items():
        if value is not None:
            raise MisfitError("the operation has no output").within(name)
    return b""


def _query_error(error: WireError, model: ExceptionModel | None, *, is_sender_fault: bool) -> str:
    code = model.code if model is not None else error.code
    return f"{code};{'Sender' if is_sender_fault else 'Receiver'}"
