"""Requests as botocore serialises them, responses as botocore parses them, and values of any shape."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from botocore.awsrequest import HeadersDict
from botocore.parsers import create_parser
from botocore.serialize import create_serializer

from clary.control.wire.messages import HttpRequest, HttpResponse
from clary.control.wire.models import Operation, Protocol, service

BOTOCORE_PROTOCOLS = {
    Protocol.JSON_1_0: "json",
    Protocol.JSON_1_1: "json",
    Protocol.QUERY: "query",
    Protocol.REST_JSON: "rest-json",
    Protocol.RPC_V2_CBOR: "smithy-rpc-v2-cbor",
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
REQUEST_ID = "7a62c49f-347e-4fc4-9331-6e8eEXAMPLE"


def json_request(operation_name: str, body: Any, *, prefix: str = "SageMaker", version: str = "1.1") -> HttpRequest:
    """Return an unsigned AWS JSON request; a body that is not bytes is dumped as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = [
        ("Host", "127.0.0.1:4570"),
        ("X-Amz-Target", f"{prefix}.{operation_name}"),
        ("Content-Type", f"application/x-amz-json-{version}"),
    ]
    return HttpRequest("POST", "/", "", headers, content, "127.0.0.1")


def form_request(body: str | bytes) -> HttpRequest:
    """Return an unsigned request of the query protocol."""
    content = body if isinstance(body, bytes) else body.encode()
    headers = [("Host", "127.0.0.1:4570"), ("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")]
    return HttpRequest("POST", "/", "", headers, content, "127.0.0.1")


def sagemaker(name: str) -> Operation:
    return service("sagemaker").operation(name, Protocol.JSON_1_1)


def request_by_botocore(operation: Operation, params: dict[str, Any]) -> HttpRequest:
    """Return the request that botocore sends for these parameters, without signature."""
    serializer = create_serializer(BOTOCORE_PROTOCOLS[operation.protocol], include_validation=False)
    raw = serializer.serialize_to_request(params, operation.model)
    body = raw["body"]
    if isinstance(body, dict):
        body = urlencode(body)
    if isinstance(body, str):
        body = body.encode()
    path, _, query = raw["url_path"].partition("?")
    added = raw["query_string"] or {}
    query = "&".join(part for part in (query, urlencode(added, doseq=True)) if part)
    return HttpRequest(raw["method"], path, query, list(raw["headers"].items()), body)


def read_by_botocore(operation: Operation, response: HttpResponse) -> dict[str, Any]:
    """Return a response as botocore parses it, metadata included."""
    parser = create_parser(BOTOCORE_PROTOCOLS[operation.protocol])
    raw = {
        "status_code": response.status,
        "headers": HeadersDict(dict(response.headers)),
        "body": response.body,
        "context": {"operation_name": operation.name},
    }
    found: dict[str, Any] = parser.parse(raw, operation.model.output_shape)
    return found


class ValueMaker:
    """Makes a value for any shape, with every member set, recursion cut, and a different number in each member."""

    def __init__(self, *, whole_seconds: bool = False) -> None:
        self._count = 0
        self._whole_seconds = whole_seconds

    def make(self, shape: Any, under_way: tuple[str, ...] = ()) -> Any:
        self._count += 1
        if shape.name in under_way:
            return {"structure": {}, "list": [], "map": {}}[shape.type_name]
        inner = (*under_way, shape.name)
        if shape.type_name == "structure":
            members = shape.members.items()
            if shape.is_tagged_union:
                members = [pair for pair in members if pair[1].name not in inner][:1]
            return {name: self.make(member, inner) for name, member in members if not self._is_cut(member, inner)}
        if shape.type_name == "list":
            return [] if self._is_cut(shape.member, inner) else [self.make(shape.member, inner) for _ in range(2)]
        if shape.type_name == "map":
            return {self._text(shape.key): self.make(shape.value, inner) for _ in range(2)}
        return self._scalar(shape)

    def _is_cut(self, shape: Any, under_way: tuple[str, ...]) -> bool:
        return shape.name in under_way

    def _scalar(self, shape: Any) -> Any:
        if shape.type_name == "string":
            return self._text(shape)
        if shape.type_name == "timestamp":
            return EPOCH + timedelta(days=20_000, seconds=self._count, milliseconds=0 if self._whole_seconds else 250)
        if shape.type_name == "boolean":
            return self._count % 2 == 0
        if shape.type_name == "blob":
            return bytes([self._count % 256, 0, 255])
        return self._count + 0.5 if shape.type_name in ("float", "double") else self._count

    def _text(self, shape: Any) -> str:
        self._count += 1
        if shape.serialization.get("jsonvalue"):
            return json.dumps({"number": self._count})
        return f"text {self._count} <&\"'>\\ \u00fc\u4e2d\U0001f600\n+%&=/"
