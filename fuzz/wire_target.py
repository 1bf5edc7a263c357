"""Requests of every AWS service but S3: routing, parsing, validation, and the error that comes back.

What must hold: whatever arrives, nothing but WireError comes out, its answer can be read by the sender's protocol, is
small and repeats no value that the model calls sensitive; what is accepted has the model's types and can be stored.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from xml.etree import ElementTree as ET

from clary.base.errors import WireError
from clary.control.wire.cbor_documents import load_cbor
from clary.control.wire.messages import HttpRequest, HttpResponse
from clary.control.wire.models import Operation, Protocol, all_services
from clary.control.wire.parsing import parse
from clary.control.wire.routing import protocol_of, route
from clary.control.wire.serializing import serialize_error
from clary.control.wire.validation import validate
from fuzz.byte_reader import ByteReader
from fuzz.findings import found, require
from fuzz.targets import Run
from fuzz.wire_values import SECRET, ValueMaker, cbor_body, form_body, form_fields, json_body

MAX_ANSWER_BYTES = 256 * 1024
REQUEST_ID = "7a62c49f-347e-4fc4-9331-6e8eEXAMPLE"
# The operations that the product carries out come first, so that short inputs reach them.
_FIRST = ("CreateTrainingJob", "PutMetricData", "FilterLogEvents", "AssumeRole", "BatchPutMetrics", "Search")
_METHODS = ("POST", "GET", "PUT", "DELETE", "HEAD", "")
_RPC = "/service/GraniteServiceVersion20100801/operation/PutMetricData"
_PATHS = ("/", "", "/metrics", "//", "/BatchPutMetrics", "/%zz", "/\udcff", "/..", _RPC)
_QUERIES = (
    "",
    "Action=GetCallerIdentity",
    "Action=GetRole&RoleName=a+b",
    "X-Amz-Credential=a%2F20260131%2Fr%2Fsts%2F",
    "&&=",
)
_HEADERS = ("Content-Type", "X-Amz-Target", "Authorization", "Content-Encoding", "smithy-protocol", "Host", "x-amzn-q")
_VALUES = (
    "application/x-amz-json-1.1",
    "application/x-amz-json-1.0",
    "application/x-www-form-urlencoded",
    "application/json",
    "SageMaker.CreateTrainingJob",
    "Logs_20140328.FilterLogEvents",
    "GraniteServiceVersion20100801.PutMetricData",
    "gzip",
    "application/cbor",
    "rpc-v2-cbor",
    "AWS4-HMAC-SHA256 Credential=AKID/20260131/us-west-2/sagemaker/aws4_request, SignedHeaders=host, Signature=0",
    "AWS4-HMAC-SHA256 Credential=AKID/20260131/us-west-2/monitoring/aws4_request, SignedHeaders=host, Signature=0",
)
_BODIES = (
    b"",
    b"{}",
    b"[]",
    b"null",
    b'{"TrainingJobName": "a"}',
    b'{"a":1,"a":2}',
    b"[" * 5000,
    b"\x1f\x8b",
    b"\x81" * 5000,
)


@contextmanager
def open_target() -> Iterator[Run]:
    """Load every model and yield the function that takes an input."""
    operations = _operations()
    yield lambda data: _run(data, operations)


def _operations() -> list[Operation]:
    found_ones: list[Operation] = []
    for service in all_services():
        names = service.protocol_names
        protocols = [Protocol.JSON_1_1, Protocol.JSON_1_0] if "json" in names else []
        protocols += [Protocol.QUERY] if "query" in names else []
        protocols += [protocol for protocol in (Protocol.REST_JSON, Protocol.RPC_V2_CBOR) if protocol in names]
        for name in sorted(service.operation_names):
            found_ones.extend(service.operation(name, protocol) for protocol in protocols)
    return sorted(found_ones, key=lambda operation: operation.name not in _FIRST)


def _run(data: bytes, operations: list[Operation]) -> None:
    reader = ByteReader(data)
    secret = ""
    if reader.byte() % 4 == 3:
        request = _raw_request(reader)
    else:
        request, secret = _structured_request(reader, operations)
    answer_or_params(request, secret=secret)


def answer_or_params(request: HttpRequest, *, secret: str = "") -> None:
    """Route, parse and validate a request; if it is refused, check the answer."""
    operation = None
    try:
        operation = route(request)
        params = parse(request, operation)
        _check_params(params)
        validate(operation, params)
    except WireError as error:
        protocol = operation.protocol if operation is not None else protocol_of(request)
        service = operation.service if operation is not None else None
        answer = serialize_error(error, protocol=protocol, request_id=REQUEST_ID, service=service)
        _check_answer(answer, protocol, secret)


def _raw_request(reader: ByteReader) -> HttpRequest:
    method, path, query = reader.word(_METHODS), reader.word(_PATHS), reader.word(_QUERIES)
    headers = [(reader.word(_HEADERS), reader.word(_VALUES)) for _ in range(reader.below(6))]
    body = reader.choose(_BODIES) if reader.chance() else b""
    return HttpRequest(method, path, query, headers, body + reader.rest())


def _structured_request(reader: ByteReader, operations: list[Operation]) -> tuple[HttpRequest, str]:
    """Return a request of an operation and, if a sensitive value is in it and nothing is out of place, that value."""
    operation = operations[reader.below(len(operations))]
    shape = operation.model.input_shape
    maker = ValueMaker(reader)
    value = maker.make(shape) if shape is not None else {}
    headers = [("Host", "127.0.0.1:4570")]
    method, path, query = "POST", "/", ""
    if operation.protocol is Protocol.QUERY:
        form = f"Action={operation.name}&Version={operation.service.api_version}".encode()
        fields = form_body(form_fields(shape, value)) if shape is not None else b""
        body = form + b"&" + fields
        headers.append(("Content-Type", "application/x-www-form-urlencoded"))
        if reader.chance(8):
            method, query, body = "GET", body.decode("ascii"), b""
    elif operation.protocol is Protocol.RPC_V2_CBOR:
        body = cbor_body(value)
        path = f"/service/{operation.service.target_prefix}/operation/{operation.name}"
        headers += [("Content-Type", operation.protocol.content_type), ("smithy-protocol", "rpc-v2-cbor")]
    else:
        body = json_body(value)
        headers.append(("Content-Type", operation.protocol.content_type))
        if operation.protocol is Protocol.REST_JSON:
            method, path = operation.model.http["method"], operation.model.http["requestUri"]
            query = reader.word(_QUERIES)
        else:
            headers.append(("X-Amz-Target", f"{operation.service.target_prefix}.{operation.name}"))
    mutated = _mutated(reader, body)
    is_plain = mutated == body and not maker.has_misfits
    if reader.chance(12):
        mutated = gzip.compress(mutated, mtime=0)
        headers.append(("Content-Encoding", reader.word(("gzip", "GZIP ", "identity", "br"))))
    # A misfit may stand where a key is expected, and error texts name keys.
    secret = SECRET if maker.has_secrets and is_plain else ""
    return HttpRequest(method, path, query, headers, mutated), secret


def _mutated(reader: ByteReader, body: bytes) -> bytes:
    for _ in range(reader.byte() % 8 - 4 if not reader.is_empty else 0):
        at = reader.below(len(body) + 1)
        kind = reader.below(4)
        if kind == 0:
            body = body[:at]
        elif kind == 1:
            body = body[:at] + reader.chunk() + body[at:]
        elif kind == 2:
            body = body[:at] + body[at + reader.byte() :]
        else:
            body = body[:at] + body[max(0, at - reader.byte()) : at] + body[at:]
    return body


def _check_answer(answer: HttpResponse, protocol: Protocol, secret: str) -> None:
    require(400 <= answer.status < 500, "an error of the caller has another status", status=answer.status)
    require(len(answer.body) <= MAX_ANSWER_BYTES, "an error is too long", num_bytes=len(answer.body))
    if secret:
        require(secret.encode() not in answer.body, "an error repeats a sensitive value", body=answer.body)
    for name, value in answer.headers:
        require(
            "\n" not in value and "\r" not in value and value.isascii(), "a header is split", name=name, value=value
        )
    if protocol is Protocol.QUERY:
        root = ET.fromstring(answer.body)
        texts = [element.text for element in root.iter() if element.tag.rpartition("}")[2] in ("Code", "Message")]
        require(len(texts) == 2 and all(texts), "an error has no code or no message", body=answer.body)
        return
    document = (load_cbor if protocol is Protocol.RPC_V2_CBOR else json.loads)(answer.body)
    require(bool(document["__type"]) and bool(document["message"]), "an error is empty", body=answer.body)


def _check_params(value: Any) -> None:
    """Parameters are of the documented types, and every text can be stored."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:
                found("a text cannot be stored", value=value)
            require("\0" not in value, "a text holds U+0000", value=value)
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            waiting.extend(value)
            waiting.extend(value.values())
        elif isinstance(value, datetime):
            require(value.tzinfo is not None, "a time has no time zone", value=value)
        else:
            require(
                value is None or isinstance(value, bool | int | float | bytes),
                "a value is of another type",
                value=value,
            )
