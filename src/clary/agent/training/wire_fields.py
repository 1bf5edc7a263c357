"""The fields of a protocol buffer message, parsed without its .proto description. Pure.

Source: "Encoding" in the documentation of protocol buffers: a tag of number and wire type, then a varint, eight bytes,
a length with that many bytes, or four bytes. Groups are not read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
MAX_FIELDS = 100_000  # of one message
_MAX_VARINT_BYTES = 10
_TYPE_BITS = 3
_SIGN_BIT = 1 << 63

Value = int | bytes


class Malformed(ValueError):
    """Bytes that are not a valid message."""


def fields_of(message: bytes) -> Iterator[tuple[int, int, Value]]:
    """Yield number, wire type and value of each field; values of fixed size are bytes. Raises: Malformed."""
    place = num_fields = 0
    while place < len(message):
        tag, place = _varint(message, place)
        num_fields += 1
        if num_fields > MAX_FIELDS:
            raise Malformed(f"more than {MAX_FIELDS} fields")
        number, wire_type = tag >> _TYPE_BITS, tag & 7
        value: Value
        if wire_type == VARINT:
            value, place = _varint(message, place)
            yield number, wire_type, value
            continue
        if wire_type == BYTES:
            size, place = _varint(message, place)
        elif wire_type in (FIXED64, FIXED32):
            size = 8 if wire_type == FIXED64 else 4
        else:
            raise Malformed(f"wire type {wire_type} at byte {place}")
        if place + size > len(message):
            raise Malformed(f"field {number} wants {size} bytes, {len(message) - place} are left")
        yield number, wire_type, message[place : place + size]
        place += size


def as_double(value: Value) -> float:
    """Return a field of eight bytes as a number. Raises: Malformed."""
    return _unpacked("<d", value)


def as_float(value: Value) -> float:
    """Return a field of four bytes as a number. Raises: Malformed."""
    return _unpacked("<f", value)


def as_bytes(value: Value) -> bytes:
    """Return a length-delimited field. Raises: Malformed."""
    if not isinstance(value, bytes):
        raise Malformed("a number stands where bytes were expected")
    return value


def as_text(value: Value) -> str:
    """Return a length-delimited field as text; bytes that are not UTF-8 are escaped. Raises: Malformed."""
    return as_bytes(value).decode("utf-8", "backslashreplace")


def as_signed(value: Value) -> int:
    """Return a varint as a number with a sign. Raises: Malformed."""
    if not isinstance(value, int):
        raise Malformed("bytes stand where a number was expected")
    return value - (_SIGN_BIT << 1) if value & _SIGN_BIT else value


def doubles(value: Value, wire_type: int) -> list[float]:
    """Return packed numbers, or a single unpacked number. Raises: Malformed."""
    if wire_type != BYTES:
        return [as_double(value)]
    data = as_bytes(value)
    return [number for (number,) in struct.iter_unpack("<d", data[: len(data) // 8 * 8])]


def _unpacked(form: str, value: Value) -> float:
    try:
        return float(struct.unpack(form, as_bytes(value))[0])
    except struct.error as error:
        raise Malformed(str(error)) from error


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if place + index >= len(message):
            raise Malformed(f"a number is cut off at byte {place}")
        byte = message[place + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, place + index + 1
    raise Malformed(f"a number of more than {_MAX_VARINT_BYTES} bytes at byte {place}")
