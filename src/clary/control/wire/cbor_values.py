"""CBOR documents to request parameters and results to CBOR documents, by closures compiled once for each shape.

Where: `parsing` and `serializing` call these closures for operations with the protocol RPC v2 CBOR. Structures, lists
and maps are treated as in JSON: unknown members are ignored, null members are absent. Only times, numbers with a point
and blobs have types of their own in CBOR. Source: Smithy, "Smithy RPC v2 CBOR protocol".
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from clary.control.wire import json_parsing, json_serializing
from clary.control.wire.scalars import MisfitError, format_time, token_of


def cbor_reader(shape: Any) -> json_parsing.Reader:
    """Return the function that turns a document of `load_cbor` into a value of `shape`, or raises MisfitError."""
    return _Readers().reader(shape)


def cbor_writer(shape: Any) -> json_serializing.Writer:
    """Return the function that turns a value of `shape` into a document for `dump_cbor`, or raises MisfitError."""
    return _Writers().writer(shape)


class _Readers(json_parsing.Compiler):
    def scalar(self, shape: Any) -> json_parsing.Reader:
        return _READERS.get(shape.type_name) or super().scalar(shape)


class _Writers(json_serializing.Compiler):
    def scalar(self, shape: Any) -> json_serializing.Writer:
        return _WRITERS.get(shape.type_name) or super().scalar(shape)


def _read_time(value: Any) -> datetime:
    # Formats that a model names for times hold in text alone.
    if isinstance(value, datetime):
        return value
    raise MisfitError(f"{token_of(value)} can not be converted to a timestamp: expected tag 1 with epoch seconds")


def _read_float(value: Any) -> float:
    if type(value) in (int, float):
        return float(value)
    raise MisfitError(f"{token_of(value)} can not be converted to a Double")


def _read_blob(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    raise MisfitError(f"{token_of(value)} can not be converted to a Blob")


def _write_time(value: Any) -> datetime:
    format_time(value, "unixtimestamp")  # refuses anything but an aware datetime
    written: datetime = value
    return written


def _write_float(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise MisfitError(f"expected a number, got {type(value).__name__} {value!r:.80}")


def _write_blob(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise MisfitError(f"expected bytes, got {type(value).__name__}")


_READERS: dict[str, json_parsing.Reader] = {
    "timestamp": _read_time,
    "float": _read_float,
    "double": _read_float,
    "blob": _read_blob,
}
_WRITERS: dict[str, json_serializing.Writer] = {
    "timestamp": _write_time,
    "float": _write_float,
    "double": _write_float,
    "blob": _write_blob,
}
