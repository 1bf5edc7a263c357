"""REST JSON requests to parameters: labels, query parameters, headers and body.

Where: `parsing` calls the reader of a rest-json operation; SageMaker Metrics is the one such service today.
Source: Smithy, "AWS restJson1 protocol" and "HTTP binding traits".
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

from clary.control.wire.json_parsing import json_reader, load_document
from clary.control.wire.messages import HttpRequest
from clary.control.wire.query_parsing import MAX_FIELDS
from clary.control.wire.scalars import MisfitError, reader_of
from clary.control.wire.uri_templates import UriTemplate

HEADER_TIME_FORMAT = "rfc822"
QUERY_TIME_FORMAT = "iso8601"

Reader = Callable[[HttpRequest, bytes], dict[str, Any]]


def rest_reader(operation_model: Any) -> Reader:
    """Return the function that turns a request and its decoded body into parameters, or raises MisfitError."""
    shape = operation_model.input_shape
    if shape is None:
        return lambda request, body: {}
    template = UriTemplate.of(operation_model.http)
    bound = [
        (name, _binding(member, member.serialization.get("name", name)))
        for name, member in shape.members.items()
        if "location" in member.serialization
    ]
    read_body = _body_reader(shape, {name for name, _ in bound})

    def read(request: HttpRequest, body: bytes) -> dict[str, Any]:
        labels = template.match(request.method, request.raw_path, request.query)
        if labels is None:
            raise MisfitError(f"{request.method} {request.raw_path[:80]} does not fit the operation's URI")
        parts = _Parts(request, labels, _query_parameters(request.query))
        result = read_body(body)
        for name, binding in bound:
            try:
                value = binding(parts)
            except MisfitError as error:
                raise error.within(name)  # noqa: B904 - the same error, one level further out
            if value is not None:
                result[name] = value
        return result

    return read


class _Parts:
    """A request, split once into the parts that bindings read."""

    def __init__(self, request: HttpRequest, labels: dict[str, str], parameters: list[tuple[str, str]]) -> None:
        self.headers = request.lowered_headers
        self.labels = labels
        self.parameters = parameters

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.parameters if key == name]


Binding = Callable[[_Parts], Any]


def _binding(shape: Any, name: str) -> Binding:
    location = shape.serialization["location"]
    if location == "uri":
        read = reader_of(shape, time_format=QUERY_TIME_FORMAT)
        return lambda parts: read(parts.labels[name])
    if location == "querystring":
        return _query_binding(shape, name)
    if location == "headers":
        prefix = name.lower()
        return lambda parts: (
            {key[len(prefix) :]: value for key, value in parts.headers.items() if key.startswith(prefix)} or None
        )
    return _header_binding(shape, name.lower())


def _query_binding(shape: Any, name: str) -> Binding:
    if shape.type_name == "map":
        # A map gets every query parameter, including parameters that are bound to other members.
        if shape.value.type_name == "list":
            return lambda parts: _grouped(parts.parameters) or None
        return lambda parts: dict(parts.parameters) or None
    if shape.type_name == "list":
        read_item = reader_of(shape.member, time_format=QUERY_TIME_FORMAT)
        return lambda parts: [read_item(value) for value in parts.values(name)] or None
    read = reader_of(shape, time_format=QUERY_TIME_FORMAT)

    def binding(parts: _Parts) -> Any:
        values = parts.values(name)
        if len(values) > 1:
            raise MisfitError(f"query parameter {name!r} occurs {len(values)} times")
        return read(values[0]) if values else None

    return binding


def _header_binding(shape: Any, name: str) -> Binding:
    if shape.type_name == "list":
        read_item = reader_of(shape.member, time_format=HEADER_TIME_FORMAT)
        is_date = shape.member.type_name == "timestamp" and (
            shape.member.serialization.get("timestampFormat", HEADER_TIME_FORMAT) == HEADER_TIME_FORMAT
        )

        def read_list(parts: _Parts) -> Any:
            text = parts.headers.get(name)
            return None if text is None else [read_item(item) for item in _header_items(text, is_date=is_date)]

        return read_list
    read: Callable[[str], Any] = reader_of(shape, time_format=HEADER_TIME_FORMAT)
    if shape.serialization.get("jsonvalue"):
        read = _read_json_header
    return lambda parts: None if (text := parts.headers.get(name)) is None else read(text)


def _body_reader(shape: Any, bound: set[str]) -> Callable[[bytes], dict[str, Any]]:
    payload = shape.serialization.get("payload")
    if payload is None:
        read_document = json_reader(shape)

        def read_members(body: bytes) -> dict[str, Any]:
            found = read_document(load_document(body)) if body.strip() else {}
            return {name: value for name, value in found.items() if name not in bound}

        return read_members
    member = shape.members[payload]
    if member.type_name == "blob":
        return lambda body: {payload: body} if body else {}
    if member.type_name == "string":
        return lambda body: {payload: _text(body)} if body else {}
    read_payload = json_reader(member)
    return lambda body: {payload: read_payload(load_document(body))} if body.strip() else {}


def _query_parameters(query: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise MisfitError(f"the query cannot be read: {error}") from error


def _grouped(pairs: list[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def _header_items(text: str, *, is_date: bool) -> list[str]:
    """Split a header list at its commas outside quotes; for dates, which contain a comma, at every second comma."""
    if is_date:
        pieces = [piece.strip() for piece in text.split(",")]
        return [", ".join(pieces[index : index + 2]) for index in range(0, len(pieces), 2)]
    items: list[str] = []
    position = 0
    if not text.strip():
        return items
    while position <= len(text):
        while position < len(text) and text[position] in " \t":
            position += 1
        if position < len(text) and text[position] == '"':
            item, position = _quoted(text, position + 1)
        else:
            end = text.find(",", position)
            end = len(text) if end < 0 else end
            item, position = text[position:end].strip(), end
        items.append(item)
        position += 1
    return items


def _quoted(text: str, position: int) -> tuple[str, int]:
    item = ""
    while position < len(text) and text[position] != '"':
        if text[position] == "\\":
            position += 1
        item += text[position : position + 1]
        position += 1
    if position >= len(text):
        raise MisfitError("a quoted header value has no end")
    end = text.find(",", position)
    return item, len(text) if end < 0 else end


def _read_json_header(text: str) -> Any:
    try:
        return json.loads(base64.b64decode(text, validate=True))
    except (ValueError, RecursionError) as error:
        raise MisfitError(f"a JSON header must be base64 of JSON: {error}") from error


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MisfitError(f"the body is not UTF-8: {error.reason}") from error
