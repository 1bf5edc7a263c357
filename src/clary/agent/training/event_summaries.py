"""Scalars, histograms and images of one record of an event file. Pure.

Where: `event_files` keeps one `EventReader` a file, because a tag says only once which plugin its tensors are of.
Source: event.proto, summary.proto, histogram.proto, tensor.proto of TensorBoard (numbers of fields); tensors of
TensorFlow 2 carry a plugin's name: scalars, histograms (rows of left, right, count), images (width, height, pictures).
"""

from __future__ import annotations

import base64
import json
import math
import struct
import sys

from clary.agent.training.wire_fields import (
    Malformed,
    as_bytes,
    as_double,
    as_float,
    as_signed,
    as_text,
    doubles,
    fields_of,
)
from clary.contract.training_values import MAX_NAME_CHARACTERS, Finding, FindingKind

MAX_BUCKETS = 64  # of a histogram that is kept; more are joined
MAX_IMAGE_BYTES = 256 * 1024  # of one that is kept; of larger ones only the place
MAX_TAGS = 10_000  # whose plugin is remembered, a file
_MS_PER_S = 1000
_MOST_MS = 4_102_444_800_000  # 2100: no program was there yet
_MOST_COUNT = sys.float_info.max  # JSON has no infinity
_DT_FLOAT, _DT_DOUBLE, _DT_INT32, _DT_INT64 = 1, 2, 3, 9
_CONTENT = {_DT_FLOAT: "f", _DT_DOUBLE: "d", _DT_INT32: "i", _DT_INT64: "q"}


class EventReader:
    """Reads the records of one file, in order."""

    def __init__(self) -> None:
        self._plugins: dict[str, str] = {}  # tag -> plugin

    def read(self, record: bytes, *, offset: int, file: str) -> list[Finding]:
        """Return what a record holds; none for what no chart shows. Raises: Malformed."""
        at_ms, step, summaries = 0, 0, []
        for number, _, value in fields_of(record):
            if number == 1:
                seconds = as_double(value)
                at_ms = int(seconds * _MS_PER_S) if 0 <= seconds * _MS_PER_S < _MOST_MS else 0
            elif number == 2:
                step = as_signed(value)
            elif number == 5:
                summaries.append(as_bytes(value))
        found = []
        for summary in summaries:
            for number, _, value in fields_of(summary):
                if number == 1 and (one := self._value(as_bytes(value))) is not None:
                    kind, tag, number_found, data, size_bytes = one
                    found.append(
                        Finding(
                            kind=kind,
                            name=tag,
                            at_ms=at_ms,
                            step=step,
                            value=number_found,
                            data=data,
                            file=file,
                            offset=offset,
                            size_bytes=size_bytes,
                        )
                    )
        return found

    def _value(self, message: bytes) -> tuple[FindingKind, str, float | None, str, int] | None:
        """Return kind, tag, number, data and size of a Summary.Value."""
        tag = plugin = ""
        simple: float | None = None
        histogram = image = tensor = None
        for number, _, value in fields_of(message):
            if number == 1:
                tag = as_text(value)
            elif number == 2:
                simple = as_float(value)
            elif number == 4:
                image = as_bytes(value)
            elif number == 5:
                histogram = as_bytes(value)
            elif number == 8:
                tensor = as_bytes(value)
            elif number == 9:
                plugin = _plugin_of(as_bytes(value))
        if not tag or len(tag) > MAX_NAME_CHARACTERS or "\0" in tag:
            return None
        if plugin and len(self._plugins) < MAX_TAGS:
            self._plugins[tag] = plugin
        if simple is not None:
            return FindingKind.SCALAR, tag, _finite(simple), "", 0
        if histogram is not None:
            return FindingKind.HISTOGRAM, tag, None, _histogram(histogram), 0
        if image is not None:
            pictures = [as_bytes(value) for number, _, value in fields_of(image) if number == 4]
            return _picture(tag, pictures[0]) if pictures else None
        if tensor is not None:
            return _of_tensor(tag, self._plugins.get(tag, ""), tensor)
        return None


def _plugin_of(metadata: bytes) -> str:
    for number, _, value in fields_of(metadata):
        if number == 1:
            return next((as_text(inner) for field, _, inner in fields_of(as_bytes(value)) if field == 1), "")
    return ""


def _of_tensor(tag: str, plugin: str, tensor: bytes) -> tuple[FindingKind, str, float | None, str, int] | None:
    if plugin == "images":
        strings = [as_bytes(value) for number, _, value in fields_of(tensor) if number == 8]
        return _picture(tag, strings[2]) if len(strings) > 2 else None  # behind width and height
    if plugin not in ("scalars", "histograms"):
        return None
    numbers = _numbers(tensor)
    if plugin == "scalars":
        return (FindingKind.SCALAR, tag, _finite(numbers[0]), "", 0) if numbers else None
    rows = [(numbers[place], numbers[place + 1], numbers[place + 2]) for place in range(0, len(numbers) // 3 * 3, 3)]
    return FindingKind.HISTOGRAM, tag, None, _buckets(rows), 0


def _numbers(tensor: bytes) -> list[float]:
    """Return the numbers of a TensorProto of floats or integers."""
    form, content, listed = "", b"", []
    for number, wire_type, value in fields_of(tensor):
        if number == 1 and isinstance(value, int):
            form = _CONTENT.get(value, "")
        elif number == 4:
            content = as_bytes(value)
        elif number == 5:
            data = as_bytes(value)
            listed += [one for (one,) in struct.iter_unpack("<f", data[: len(data) // 4 * 4])]
        elif number == 6:
            listed += doubles(value, wire_type)
        elif number in (7, 10) and isinstance(value, int):
            listed.append(float(as_signed(value)))
    if content and form:
        size = struct.calcsize(f"<{form}")
        return [float(one) for (one,) in struct.iter_unpack(f"<{form}", content[: len(content) // size * size])]
    return listed


def _histogram(message: bytes) -> str:
    """Return the buckets of a HistogramProto."""
    least, limits, counts = 0.0, [], []
    for number, wire_type, value in fields_of(message):
        if number == 1:
            least = as_double(value)
        elif number == 6:
            limits += doubles(value, wire_type)
        elif number == 7:
            counts += doubles(value, wire_type)
    rows = []
    left = least
    for right, count in zip(limits, counts, strict=False):
        rows.append((min(left, right), right, count))
        left = right
    return _buckets(rows)


def _buckets(rows: list[tuple[float, float, float]]) -> str:
    """Return buckets that hold anything, as JSON; neighbours are joined until there are few enough."""
    held = [row for row in rows if row[2] > 0 and all(map(math.isfinite, row))]
    joined = -(-len(held) // MAX_BUCKETS) or 1
    groups = [held[place : place + joined] for place in range(0, len(held), joined)]
    joined_rows = [[group[0][0], group[-1][1], min(sum(row[2] for row in group), _MOST_COUNT)] for group in groups]
    return json.dumps(joined_rows)


def _picture(tag: str, data: bytes) -> tuple[FindingKind, str, float | None, str, int]:
    kept = base64.b64encode(data).decode() if len(data) <= MAX_IMAGE_BYTES else ""
    return FindingKind.IMAGE, tag, None, kept, len(data)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


__all__ = ["MAX_BUCKETS", "MAX_IMAGE_BYTES", "EventReader", "Malformed"]
