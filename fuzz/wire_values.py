"""Values of a model's shapes, good and bad, and how the protocols write them.

Where: `wire_target` makes its structured requests of these. Written here and not by botocore, whose serialisers refuse
the very values that are of interest.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from clary.control.wire.cbor_documents import dump_cbor
from clary.control.wire.scalars import MisfitError
from fuzz.byte_reader import ByteReader

SECRET = "hunter2-is-a-secret"  # stands in members that the model calls sensitive
MAX_DEPTH = 7
MAX_ITEMS = 3

_TEXTS = (
    "a",
    "",
    "job-1",
    "s3://bucket/prefix",
    "arn:aws:iam::000000000000:role/R",
    "\0",
    "\ud800",
    "é中\U0001f600",
    "x" * 65,
    "x" * 300,
    "-" * 70,
    "ml.m5.xlarge",
    "true",
    "NaN",
    "1e999",
    "9" * 30,
    "2026-01-31T00:00:00Z",
    "0001-01-01T00:00:00+23:59",
    "Sat, 31 Jan 2026 00:00:00 GMT",
    "AAAA",
    "A=",
)
_NUMBERS = (
    0,
    1,
    -1,
    2**31 - 1,
    2**31,
    2**63,
    -(2**63) - 1,
    10**400,
    0.5,
    1e308,
    -0.0,
    1.7e9,
    float("inf"),
    float("nan"),
    253402300800,
    -62135596801,
)
_ANYTHING: tuple[Any, ...] = (None, True, False, [], {}, [None], {"": None}, [[[]]], {"a": {"b": [1, "x"]}})


class ValueMaker:
    """Makes a value of a shape; `has_misfits` says afterwards whether one of another type stands somewhere."""

    def __init__(self, reader: ByteReader) -> None:
        self._reader = reader
        self.has_misfits = False
        self.has_secrets = False

    def make(self, shape: Any, depth: int = 0) -> Any:
        """Return a value; the deeper, the smaller."""
        if self._reader.chance(24):
            self.has_misfits = True
            return self._anything()
        type_name = shape.type_name
        if depth >= MAX_DEPTH:
            return {"structure": {}, "list": [], "map": {}}.get(type_name) or self._scalar(shape)
        if type_name == "structure":
            wanted = [
                name for name in shape.members if name in shape.required_members or self._reader.chance(2 + depth)
            ]
            return {name: self.make(shape.members[name], depth + 1) for name in wanted if not self._reader.chance(24)}
        if type_name == "list":
            return [self.make(shape.member, depth + 1) for _ in range(self._reader.below(MAX_ITEMS + 1))]
        if type_name == "map":
            count = self._reader.below(MAX_ITEMS + 1)
            return {str(self._scalar(shape.key)): self.make(shape.value, depth + 1) for _ in range(count)}
        return self._scalar(shape)

    def _scalar(self, shape: Any) -> Any:
        type_name = shape.type_name
        if type_name == "string":
            return self._text(shape)
        if type_name in ("integer", "long", "float", "double", "timestamp"):
            return self._reader.choose(_NUMBERS)
        if type_name == "boolean":
            return self._reader.chance()
        return self._reader.choose(_TEXTS)

    def _text(self, shape: Any) -> str:
        if shape.metadata.get("sensitive"):
            self.has_secrets = True
            return SECRET + "!" * self._reader.choose((0, 1, 70, 3000))
        kind = self._reader.byte() % 8
        if kind < 3 and shape.enum:
            return str(self._reader.choose(shape.enum))
        if kind == 3:
            length = self._reader.choose(("min", "max"))
            return "a" * min(int(shape.metadata.get(length, 0)) + self._reader.below(3) - 1, 5000)
        return self._reader.text() if kind == 4 else self._reader.choose(_TEXTS)

    def _anything(self) -> Any:
        kind = self._reader.below(4)
        if kind == 0:
            return self._reader.choose(_TEXTS)
        if kind == 1:
            return self._reader.choose(_NUMBERS)
        if kind == 2:
            return nested(self._reader.choose((5, 100, 990, 5000)))
        return self._reader.choose(_ANYTHING)


def nested(depth: int) -> Any:
    """Return lists in lists."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def json_body(value: Any) -> bytes:
    """Write a JSON document, also one that is deeper than the json module writes."""
    try:
        return json.dumps(value).encode("ascii")
    except RecursionError:
        return b'{"Tags":' + b"[" * 5000 + b"]" * 5000 + b"}"


def cbor_body(value: Any) -> bytes:
    """Write a CBOR document; one that CBOR cannot hold becomes a deep or an indefinite one."""
    try:
        return dump_cbor(value)
    except RecursionError:
        return b"\xa1\x64Tags" + b"\x81" * 5000
    except (MisfitError, OverflowError):
        return b"\xbf\x69Namespace\x7f\x61a\x61b\xff\x6aMetricData\x9f\xbf\x65Value\xf9\x3e\x00\xff\xff\xff"


def form_fields(shape: Any, value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Return a value as fields of a query form; a value of another type than the shape's is written as it is."""
    type_name = shape.type_name if shape is not None else ""
    if isinstance(value, dict) and type_name == "structure":
        fields: list[tuple[str, str]] = []
        for name, item in value.items():
            member = shape.members.get(name)
            shown = member.serialization.get("name", name) if member is not None else name
            fields.extend(form_fields(member, item, f"{prefix}.{shown}" if prefix else shown))
        return fields
    if isinstance(value, list) and type_name == "list":
        dot = "" if shape.serialization.get("flattened") else f".{shape.member.serialization.get('name', 'member')}"
        return [
            field
            for index, item in enumerate(value, 1)
            for field in form_fields(shape.member, item, f"{prefix}{dot}.{index}")
        ]
    if isinstance(value, dict) and type_name == "map":
        fields = []
        for index, (key, item) in enumerate(value.items(), 1):
            fields.append((f"{prefix}.entry.{index}.key", key))
            fields.extend(form_fields(shape.value, item, f"{prefix}.entry.{index}.value"))
        return fields
    shown = "true" if value is True else "false" if value is False else "" if value is None else _shown(value)
    return [(prefix, shown)]


def form_body(fields: list[tuple[str, str]]) -> bytes:
    """Write fields as a form."""
    return "&".join(
        f"{quote(name, safe='.', errors='replace')}={quote(value, errors='replace')}" for name, value in fields
    ).encode("ascii")


def _shown(value: Any) -> str:
    try:
        return str(value)
    except (RecursionError, ValueError):  # too deep, or more digits than Python writes
        return "9" * 400
