"""Scalar values as text in forms, URLs, headers and XML, and the formats of times everywhere.

Where: query and REST parsing read scalars with `reader_of`; XML and REST serialising write them with `writer_of`;
JSON and CBOR use the time functions alone.
Source: Smithy, "Timestamp serialization" and "Floating-point numbers"; RFC 9110 section 5.6.7 for http-date.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INTEGER_BITS = {"integer": 32, "long": 64}
MAX_NUMBER_CHARACTERS = 400  # longer numbers would only serve to overload int() and float()

_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SPECIAL_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_HTTP_DATE = re.compile(
    r"[A-Z][a-z]{2}, (?P<day>[0-9]{2}) (?P<month>[A-Z][a-z]{2}) (?P<year>[0-9]{4}) "
    r"(?P<time>[0-9]{2}:[0-9]{2}:[0-9]{2})(?P<fraction>\.[0-9]{1,6})? GMT"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class MisfitError(Exception):
    """A value that does not fit its shape; `path` grows outwards as the error passes the enclosing shapes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.path: list[str] = []

    def within(self, name: str) -> MisfitError:
        """Return this error after adding the member, key or index that holds the value."""
        self.path.append(name)
        return self

    @property
    def location(self) -> str:
        """Path from the outermost member to the value, dotted."""
        return ".".join(reversed(self.path))


def timestamp_format(shape: Any, default: str) -> str:
    """Return the format of a timestamp shape in lower case: iso8601, unixtimestamp or rfc822."""
    return str(shape.serialization.get("timestampFormat", default)).lower()


def from_epoch(seconds: float) -> datetime:
    """Return the aware time that lies `seconds` after 1970; MisfitError if no datetime can hold it."""
    try:
        return EPOCH + timedelta(seconds=seconds)
    except (OverflowError, ValueError) as error:
        raise MisfitError(f"{seconds!r:.40} seconds can not be converted to a timestamp") from error


def parse_time(text: str, wanted: str) -> datetime:
    """Parse a time; where ISO 8601 or epoch seconds are expected, both are accepted, as AWS does in forms.

    Raises: MisfitError.
    """
    if wanted == "rfc822":
        return _parse_http_date(text)
    if _FLOAT.fullmatch(text) and len(text) <= MAX_NUMBER_CHARACTERS and not _looks_like_date(text):
        return from_epoch(float(text))
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise MisfitError(f"{text[:40]!r} can not be converted to a timestamp") from error


def format_time(value: Any, wanted: str) -> str | float:
    """Format an aware datetime: a number for unixtimestamp, else text; to the millisecond, rfc822 to the second.

    Raises: MisfitError for anything but an aware datetime.
    """
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise MisfitError(f"expected an aware datetime, got {type(value).__name__} {value!r:.80}")
    if wanted == "unixtimestamp":
        return round((value - EPOCH).total_seconds(), 3)
    utc = value.astimezone(UTC)
    if wanted == "rfc822":
        return format_datetime(utc.replace(microsecond=0), usegmt=True)
    # isoformat pads years below 1000; strftime does not on every platform.
    text = utc.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return text.removesuffix(".000") + "Z"


def decode_blob(value: Any) -> bytes:
    """Decode base64; raises MisfitError for other text."""
    if type(value) is not str:
        raise MisfitError(f"{token_of(value)} can not be converted to a Blob")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MisfitError(f"a Blob must be base64: {error}") from error


def encode_blob(value: Any) -> str:
    """Write bytes as base64; MisfitError for anything but bytes."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise MisfitError(f"expected bytes, got {type(value).__name__}")
    return base64.b64encode(value).decode("ascii")


def float_text(value: float) -> float | str:
    """Return a finite number unchanged; for NaN or an infinity, which JSON and XML cannot write, return its name."""
    if value != value:
        return "NaN"
    if value in (math.inf, -math.inf):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def special_float(text: str) -> float | None:
    """Return NaN or an infinity by its name; None for any other text."""
    return _SPECIAL_FLOATS.get(text)


def check_integer(value: int, type_name: str) -> int:
    """Return `value` if the shape's type can hold it; MisfitError otherwise."""
    bits = INTEGER_BITS[type_name]
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise MisfitError(f"NUMBER_VALUE {value!r:.40} can not be converted to {article_of(type_name)} ({bits} bits)")
    return value


def reader_of(shape: Any, *, time_format: str = "iso8601") -> Callable[[str], Any]:
    """Return the function that turns text into a scalar shape's value; that function raises MisfitError."""
    type_name = shape.type_name
    if type_name == "timestamp":
        wanted = timestamp_format(shape, time_format)
        return lambda text: parse_time(text, wanted)
    if type_name in INTEGER_BITS:
        return lambda text: _read_integer(text, type_name)
    return _READERS.get(type_name, str)


def writer_of(shape: Any, *, time_format: str = "iso8601") -> Callable[[Any], str]:
    """Return the function that turns a scalar shape's value into text; that function raises MisfitError."""
    type_name = shape.type_name
    if type_name == "timestamp":
        wanted = timestamp_format(shape, time_format)
        return lambda value: _number_text(format_time(value, wanted))
    return _WRITERS.get(type_name, write_string)


def write_string(value: Any) -> str:
    """Return `value` if it is a string; MisfitError otherwise."""
    if not isinstance(value, str):
        raise MisfitError(f"expected a string, got {type(value).__name__} {value!r:.80}")
    return str(value)


def token_of(value: Any) -> str:
    """Return AWS's name for the kind of a JSON or CBOR value, as SerializationException uses it."""
    if value is None:
        return "NULL_VALUE"
    if isinstance(value, bool):
        return "TRUE_VALUE" if value else "FALSE_VALUE"
    if isinstance(value, int | float):
        return "NUMBER_VALUE"
    if isinstance(value, str):
        return "STRING_VALUE"
    if isinstance(value, bytes):
        return "BYTES_VALUE"
    if isinstance(value, datetime):
        return "TIMESTAMP_VALUE"
    return "START_OBJECT" if isinstance(value, dict) else "START_ARRAY"


def article_of(type_name: str) -> str:
    """Return a type's name with its article: `an Integer`."""
    return f"{'an' if type_name[0] in 'aeiou' else 'a'} {type_name.capitalize()}"


def _read_integer(text: str, type_name: str) -> int:
    if not _INTEGER.fullmatch(text) or len(text) > MAX_NUMBER_CHARACTERS:
        raise MisfitError(f"STRING_VALUE {text[:40]!r} can not be converted to {article_of(type_name)}")
    return check_integer(int(text), type_name)


def _read_float(text: str) -> float:
    special = _SPECIAL_FLOATS.get(text)
    if special is not None:
        return special
    if not _FLOAT.fullmatch(text) or len(text) > MAX_NUMBER_CHARACTERS or math.isinf(float(text)):
        raise MisfitError(f"STRING_VALUE {text[:40]!r} can not be converted to a Double")
    return float(text)


def _read_boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise MisfitError(f"STRING_VALUE {text[:40]!r} can not be converted to a Boolean")
    return lowered == "true"


def _write_boolean(value: Any) -> str:
    if not isinstance(value, bool):
        raise MisfitError(f"expected a bool, got {type(value).__name__} {value!r:.80}")
    return "true" if value else "false"


def _write_integer(value: Any) -> str:
    if not isinstance(value, int) or isinstance(value, bool):
        raise MisfitError(f"expected an int, got {type(value).__name__} {value!r:.80}")
    return str(value)


def _write_float(value: Any) -> str:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise MisfitError(f"expected a number, got {type(value).__name__} {value!r:.80}")
    return str(float_text(value))


def _number_text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.3f}".rstrip("0").rstrip(".")


def _parse_http_date(text: str) -> datetime:
    match = _HTTP_DATE.fullmatch(text)
    if match is None or match["month"] not in _MONTHS:
        raise MisfitError(f"{text[:40]!r} can not be converted to a timestamp: expected an HTTP date")
    month = _MONTHS.index(match["month"]) + 1
    fraction = match["fraction"] or ""
    try:
        return datetime.fromisoformat(f"{match['year']}-{month:02d}-{match['day']}T{match['time']}{fraction}+00:00")
    except ValueError as error:
        raise MisfitError(f"{text[:40]!r} can not be converted to a timestamp: {error}") from error


def _looks_like_date(text: str) -> bool:
    # 20260131 is an ISO 8601 basic date; as epoch seconds it would be a day in 1970, which no client means.
    return len(text) == len("20260131") and text.isdigit() and text.startswith(("19", "20"))


_READERS: dict[str, Callable[[str], Any]] = {
    "boolean": _read_boolean,
    "blob": decode_blob,
    "float": _read_float,
    "double": _read_float,
}
_WRITERS: dict[str, Callable[[Any], str]] = {
    "boolean": _write_boolean,
    "blob": encode_blob,
    "integer": _write_integer,
    "long": _write_integer,
    "float": _write_float,
    "double": _write_float,
}
