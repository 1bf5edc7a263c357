"""Results to REST JSON answers: status code, headers and body.

Where: `serializing` calls the writer of a rest-json operation.
Source: Smithy, "AWS restJson1 protocol" and "HTTP binding traits".
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

from clary.control.wire.json_serializing import json_writer
from clary.control.wire.messages import HttpResponse
from clary.control.wire.models import Protocol
from clary.control.wire.scalars import MisfitError, write_string, writer_of

HEADER_TIME_FORMAT = "rfc822"

Writer = Callable[[Mapping[str, Any]], HttpResponse]


def rest_writer(operation_model: Any) -> Writer:
    """Return the function that turns a result into an answer; that function raises MisfitError."""
    shape = operation_model.output_shape
    status = int(operation_model.http.get("responseCode", 200))
    if shape is None:
        return lambda result: HttpResponse(status, [("Content-Type", Protocol.REST_JSON.content_type)], b"{}")
    members = shape.members
    bound = {name for name, member in members.items() if "location" in member.serialization}
    header_writers = {
        name: _header_writer(members[name], members[name].serialization.get("name", name))
        for name in bound
        if members[name].serialization["location"] != "statusCode"
    }
    status_member = next((name for name in bound if name not in header_writers), None)
    write_body = _body_writer(shape)

    def write(result: Mapping[str, Any]) -> HttpResponse:
        headers: list[tuple[str, str]] = []
        rest: dict[str, Any] = {}
        actual_status = status
        for name, value in result.items():
            if value is None:
                continue
            if name == status_member:
                actual_status = int(value)
            elif name in header_writers:
                try:
                    headers.extend(header_writers[name](value))
                except MisfitError as error:
                    raise error.within(name)  # noqa: B904 - the same error, one level further out
            else:
                rest[name] = value
        content_type, body = write_body(rest)
        if not any(name.lower() == "content-type" for name, _ in headers):
            headers.insert(0, ("Content-Type", content_type))
        return HttpResponse(actual_status, headers, body)

    return write


def _header_writer(shape: Any, name: str) -> Callable[[Any], list[tuple[str, str]]]:
    if shape.serialization["location"] == "headers":
        return lambda value: [(name + key, write_string(item)) for key, item in value.items()]
    if shape.type_name == "list":
        write_item = writer_of(shape.member, time_format=HEADER_TIME_FORMAT)
        is_text = shape.member.type_name == "string"
        return lambda value: [
            (name, ", ".join(_list_item(write_item(item), is_text=is_text) for item in value if item is not None))
        ]
    if shape.serialization.get("jsonvalue"):
        return lambda value: [(name, base64.b64encode(json.dumps(value).encode()).decode("ascii"))]
    write = writer_of(shape, time_format=HEADER_TIME_FORMAT)
    return lambda value: [(name, write(value))]


def _list_item(text: str, *, is_text: bool) -> str:
    if is_text and any(character in text for character in ',"'):
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return text


def _body_writer(shape: Any) -> Callable[[Mapping[str, Any]], tuple[str, bytes]]:
    payload = shape.serialization.get("payload")
    if payload is None:
        write_members = json_writer(shape)
        return lambda rest: (Protocol.REST_JSON.content_type, dump_json(write_members(rest)))
    member = shape.members[payload]
    if member.type_name in ("blob", "string"):
        content_type = "application/octet-stream" if member.type_name == "blob" else "text/plain"

        def write_raw(rest: Mapping[str, Any]) -> tuple[str, bytes]:
            value = rest.get(payload, b"")
            return content_type, value.encode("utf-8") if isinstance(value, str) else bytes(value)

        return write_raw
    write_payload = json_writer(member)

    def write_structure(rest: Mapping[str, Any]) -> tuple[str, bytes]:
        unknown = next((name for name in rest if name != payload), None)
        if unknown is not None:
            raise MisfitError(f"{shape.name} has no such member").within(unknown)
        if payload not in rest:
            return Protocol.REST_JSON.content_type, b""
        return Protocol.REST_JSON.content_type, dump_json(write_payload(rest[payload]))

    return write_structure


def dump_json(document: Any) -> bytes:
    """Write a JSON document compactly, in ASCII."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode("ascii")
