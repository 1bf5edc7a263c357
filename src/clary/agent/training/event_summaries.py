"""Scalars, histograms and images of one record of an event file. Pure.

Where: `file_reading` keeps an `EventReader`, because a file names the plugin of each tag only once.
Source: event.proto, summary.proto, histogram.proto, tensor.proto of TensorBoard (numbers of fields); tensors of
TensorFlow 2 carry a plugin's name: scalars, histograms (rows of left, right, count), images (width, height, pictures).
"""

from __future__ import annotations

import base64
import math
import struct

from clary.agent.training.buckets import MAX_READ_BUCKETS, Row, buckets_text
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
from clary.contract.picture_files import picture_facts
from clary.contract.training_values import MAX_NAME_CHARACTERS, Finding, FindingKind

MAX_TAGS = 50_000  # tags of all files together whose plugin is remembered; of a host 5,000 names are kept
MAX_VALUES = 100_000  # of one record; writers put at most a few hundred into one
_MS_PER_S = 1000
_MOST_MS = 4_102_444_800_000  # the year 2100: later times are not plausible
_ROW_NUMBERS = 3  # left, right, count
_DT_FLOAT, _DT_DOUBLE, _DT_INT32, _DT_INT64 = 1, 2, 3, 9
_PLUGINS = ("scalars", "histograms", "images")
_CONTENT = {_DT_FLOAT: "f", _DT_DOUBLE: "d", _DT_INT32: "i", _DT_INT64: "q"}


class EventReader:
    """Reads the records of a host's files, those of each file in order."""

    def __init__(self) -> None:
        self._plugins: dict[tuple[str, str], str] = {}  # file, tag -> plugin

    def read(self, record: bytes, *, offset: int, file: str) -> list[Finding]:
        """Return the findings of a record; empty if no chart shows the record.

        Args:
            record: a message, without length and checksums.
            offset: offset of the record in its file; findings carry it.
            file: path below `/opt/ml`; findings carry it.
        Raises: Malformed.
        """
        at_ms, step, summaries = 0, 0, []
        for number, _, value in fields_of(record):
            if number == 1:
                seconds = as_double(value)
                at_ms = int(seconds * _MS_PER_S) if 0 <= seconds * _MS_PER_S < _MOST_MS else 0
            elif number == 2:
                step = as_signed(value)
            elif number == 5:
                summaries.append(as_bytes(value))
        found: list[Finding] = []
        for summary in summaries:
            for number, _, value in fields_of(summary):
                if len(found) > MAX_VALUES:
                    raise Malformed(f"more than {MAX_VALUES} values")
                if number == 1 and (one := self._value(as_bytes(value), file)) is not None:
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

    def _value(self, message: bytes, file: str) -> tuple[FindingKind, str, float | None, str, int] | None:
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
        if plugin in _PLUGINS and len(self._plugins) < MAX_TAGS:
            self._plugins[file, tag] = plugin
        if simple is not None:
            return FindingKind.SCALAR, tag, _finite(simple), "", 0
        if histogram is not None:
            return FindingKind.HISTOGRAM, tag, None, _histogram(histogram), 0
        if image is not None:
            pictures = [as_bytes(value) for number, _, value in fields_of(image) if number == 4]
            return _picture(tag, pictures[0]) if pictures else None
        if tensor is not None:
            known = plugin if plugin in _PLUGINS else self._plugins.get((file, tag), "")
            return _of_tensor(tag, known, tensor)
        return None


def _plugin_of(metadata: bytes) -> str:
    for number, _, value in fields_of(metadata):
        if number == 1:
            return next((as_text(inner) for field, _, inner in fields_of(as_bytes(value)) if field == 1), "")
    return ""


def _of_tensor(tag: str, plugin: str, tensor: bytes) -> tuple[FindingKind, str, float | None, str, int] | None:
    if plugin == "images":
        strings = [as_bytes(value) for number, _, value in fields_of(tensor) if number == 8]
        return _picture(tag, strings[2]) if len(strings) > 2 else None  # the pictures follow width and height
    if plugin not in ("scalars", "histograms"):
        return None
    numbers = _numbers(tensor)
    if plugin == "scalars":
        return (FindingKind.SCALAR, tag, _finite(numbers[0]), "", 0) if numbers else None
    rows = [(numbers[place], numbers[place + 1], numbers[place + 2]) for place in range(0, len(numbers) // 3 * 3, 3)]
    return FindingKind.HISTOGRAM, tag, None, buckets_text(rows), 0


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
            _require_few(len(data) // (4 * _ROW_NUMBERS))
            listed += [one for (one,) in struct.iter_unpack("<f", data[: len(data) // 4 * 4])]
        elif number == 6:
            listed += doubles(value, wire_type)
        elif number in (7, 10) and isinstance(value, int):
            listed.append(float(as_signed(value)))
        _require_few(len(listed) // _ROW_NUMBERS)
    if content and form:
        size = struct.calcsize(f"<{form}")
        _require_few(len(content) // (size * _ROW_NUMBERS))
        return [float(one) for (one,) in struct.iter_unpack(f"<{form}", content[: len(content) // size * size])]
    return listed


def _histogram(message: bytes) -> str:
    """Return the buckets of a HistogramProto. Writers omit fields that are 0."""
    least = greatest = 0.0
    limits: list[float] = []
    counts: list[float] = []
    for number, wire_type, value in fields_of(message):
        if number == 1:
            least = as_double(value)
        elif number == 2:
            greatest = as_double(value)
        elif number == 6:
            limits += doubles(value, wire_type)
        elif number == 7:
            counts += doubles(value, wire_type)
        _require_few(max(len(limits), len(counts)))
    rows: list[Row] = []
    left = least
    for right, count in zip(limits, counts, strict=False):
        rows.append((min(left, right), right, count))
        left = right
    return buckets_text(rows, least=least, greatest=greatest)


def _require_few(num_buckets: int) -> None:
    if num_buckets > MAX_READ_BUCKETS:
        raise Malformed(f"a histogram of {num_buckets} buckets, at most {MAX_READ_BUCKETS} are read")


def _picture(tag: str, data: bytes) -> tuple[FindingKind, str, float | None, str, int]:
    kept = "" if picture_facts(data) is None else base64.b64encode(data).decode()
    return FindingKind.IMAGE, tag, None, kept, len(data)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


__all__ = ["EventReader", "Malformed"]
