"""CBOR documents from and to bytes: the part of CBOR that Smithy's RPC v2 protocol uses, and nothing else.

Where: `parsing` reads requests' bodies with `load_cbor`, `serializing` writes answers with `dump_cbor`.
Source: RFC 8949; Smithy, "Smithy RPC v2 CBOR protocol". Why it is our own: docs/adr/0078-readers-of-small-formats.md.

Values are maps with text as keys, lists, texts, byte strings, integers of 64 bits, floats, booleans and None; tag 1 is
an aware datetime. A length that a body claims is compared with its bytes and with the limits before anything is made.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from clary.control.wire.json_bounds import MAX_VALUES
from clary.control.wire.scalars import MisfitError, format_time, from_epoch

MAX_DEPTH = 64  # lists and maps within each other; the model's deepest request has a tenth of it
_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _LIST, _MAP, _TAG, _SIMPLE = range(8)  # major types
_EPOCH_TAG = 1
_INDEFINITE = 31  # additional information: the item ends at a break
_BREAK = b"\xff"
_FIRST_ARGUMENT = 24  # smaller numbers stand in the initial byte itself
_ARGUMENT_BYTES = {_FIRST_ARGUMENT: 1, 25: 2, 26: 4, 27: 8}
_SIMPLE_VALUES = {20: False, 21: True, 22: None, 23: None}  # 23, undefined, means null to Smithy
_FLOATS = {25: struct.Struct(">e"), 26: struct.Struct(">f"), 27: struct.Struct(">d")}
_DOUBLE = struct.Struct(">Bd")


def load_cbor(body: bytes) -> Any:
    """Read one CBOR document, strictly.

    Raises: MisfitError for everything that the protocol does not use (other tags, keys that are not text), for content
        that two parsers may read differently or that databases cannot store (duplicate keys, bytes after the document,
        text that is not UTF-8 or holds U+0000), and for a depth or a number of values beyond the limits.
    """
    reader = _Reader(body)
    document = reader.value(0)
    if reader.at != len(body):
        raise MisfitError(f"the body has {len(body) - reader.at} bytes after its CBOR document")
    return document


def dump_cbor(document: Any) -> bytes:
    """Write a document with definite lengths; aware datetimes become epoch seconds, to the millisecond.

    Raises: MisfitError for a value that CBOR's part for Smithy has no type for.
    """
    parts: list[bytes] = []
    _write(document, parts.append)
    return b"".join(parts)


class _Reader:
    """Reads values of a body, one after the other, from `at`."""

    def __init__(self, body: bytes) -> None:
        self.at = 0
        self._body = body
        self._num_left = MAX_VALUES

    def value(self, depth: int) -> Any:
        self._count(1)
        major, info = self._initial()
        if major == _SIMPLE:
            return self._simple(info)
        if major == _TAG:
            return self._tagged(self._argument(info), depth)
        if major in (_UNSIGNED, _NEGATIVE):
            number = self._argument(info)
            return number if major == _UNSIGNED else -1 - number
        if major in (_BYTES, _TEXT):
            return self._string(major, info)
        if depth >= MAX_DEPTH:
            raise MisfitError(f"the body is nested too deeply: more than {MAX_DEPTH} lists and maps in each other")
        return self._list(info, depth + 1) if major == _LIST else self._map(info, depth + 1)

    def _count(self, num_values: int) -> None:
        self._num_left -= num_values
        if self._num_left < 0:
            raise MisfitError(f"the body has more than {MAX_VALUES} values")

    def _initial(self) -> tuple[int, int]:
        try:
            initial = self._body[self.at]
        except IndexError:
            raise MisfitError(f"the body ends too early, after {len(self._body)} bytes") from None
        self.at += 1
        return initial >> 5, initial & 31

    def _argument(self, info: int) -> int:
        if info < _FIRST_ARGUMENT:
            return info
        num_bytes = _ARGUMENT_BYTES.get(info)
        if num_bytes is None:
            raise MisfitError(f"the body is not CBOR: byte {self.at - 1} has additional information {info}")
        return int.from_bytes(self._take(num_bytes), "big")

    def _take(self, num_bytes: int) -> bytes:
        end = self.at + num_bytes
        if end > len(self._body):
            raise MisfitError(f"the body ends too early: byte {self.at} promises {num_bytes} bytes more")
        taken = self._body[self.at : end]
        self.at = end
        return taken

    def _at_break(self) -> bool:
        if self._body[self.at : self.at + 1] != _BREAK:
            return False
        self.at += 1
        return True

    def _length(self, info: int, bytes_each: int) -> int:
        """Return the number of items that a list or map promises, after comparing it with the limits."""
        num_items = self._argument(info)
        if num_items * bytes_each > len(self._body) - self.at:
            raise MisfitError(f"the body ends too early: byte {self.at} promises {num_items} items")
        if num_items > self._num_left:
            raise MisfitError(f"the body has more than {MAX_VALUES} values")
        return num_items

    def _list(self, info: int, depth: int) -> list[Any]:
        if info != _INDEFINITE:
            return [self.value(depth) for _ in range(self._length(info, 1))]
        found = []
        while not self._at_break():
            found.append(self.value(depth))
        return found

    def _map(self, info: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if info != _INDEFINITE:
            for _ in range(self._length(info, 2)):
                self._pair(found, depth)
            return found
        while not self._at_break():
            self._pair(found, depth)
        return found

    def _pair(self, found: dict[str, Any], depth: int) -> None:
        major, info = self._initial()
        if major != _TEXT:
            raise MisfitError(f"a key is no text: byte {self.at - 1} has major type {major}")
        key = self._string(_TEXT, info)
        if key in found:
            raise MisfitError(f"duplicate key {key[:80]!r}")
        found[key] = self.value(depth)

    def _string(self, major: int, info: int) -> Any:
        if info != _INDEFINITE:
            return self._chunk(major, info)
        chunks = []
        while not self._at_break():
            self._count(1)
            inner, info = self._initial()
            if inner != major:
                raise MisfitError(f"a string has a piece of another type: byte {self.at - 1} has major type {inner}")
            chunks.append(self._chunk(major, info))
        return "".join(chunks) if major == _TEXT else b"".join(chunks)

    def _chunk(self, major: int, info: int) -> Any:
        content = self._take(self._argument(info))
        if major == _BYTES:
            return content
        if 0 in content:
            raise MisfitError("the body holds the character U+0000")
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            begin = self.at - len(content)
            raise MisfitError(f"a text is not UTF-8: {error.reason} at byte {begin + error.start}") from error

    def _tagged(self, tag: int, depth: int) -> datetime:
        if tag != _EPOCH_TAG:
            raise MisfitError(f"tag {tag} is not understood here: Smithy's protocol has tag 1, epoch seconds")
        major, info = self._initial()
        if major in (_UNSIGNED, _NEGATIVE):
            number = self._argument(info)
            return from_epoch(number if major == _UNSIGNED else -1 - number)
        if major == _SIMPLE and info in _FLOATS:
            return from_epoch(self._simple(info))
        raise MisfitError("a time (tag 1) must be a number of seconds")

    def _simple(self, info: int) -> Any:
        if info in _SIMPLE_VALUES:
            return _SIMPLE_VALUES[info]
        form = _FLOATS.get(info)
        if form is None:
            raise MisfitError(f"the body is not CBOR: byte {self.at - 1} has a simple value or break, {info}")
        return form.unpack(self._take(form.size))[0]


def _write(value: Any, put: Callable[[bytes], None]) -> None:
    # bool before int: it is one of Python's integers
    if value is None or isinstance(value, bool):
        put({None: b"\xf6", False: b"\xf4", True: b"\xf5"}[value])
    elif isinstance(value, int):
        put(_head(_UNSIGNED, value) if value >= 0 else _head(_NEGATIVE, -1 - value))
    elif isinstance(value, float):
        put(_DOUBLE.pack(_SIMPLE << 5 | 27, value))
    elif isinstance(value, str):
        content = value.encode("utf-8", "replace")  # no client reads half a surrogate pair
        put(_head(_TEXT, len(content)) + content)
    elif isinstance(value, bytes | bytearray | memoryview):
        content = bytes(value)
        put(_head(_BYTES, len(content)) + content)
    elif isinstance(value, datetime):
        # Always a double: some clients read no other number there.
        put(_head(_TAG, _EPOCH_TAG) + _DOUBLE.pack(_SIMPLE << 5 | 27, float(format_time(value, "unixtimestamp"))))
    elif isinstance(value, Mapping):
        put(_head(_MAP, len(value)))
        for key, item in value.items():
            if not isinstance(key, str):
                raise MisfitError(f"expected a text as key, got {type(key).__name__} {key!r:.80}")
            _write(key, put)
            _write(item, put)
    elif isinstance(value, list | tuple):
        put(_head(_LIST, len(value)))
        for item in value:
            _write(item, put)
    else:
        raise MisfitError(f"CBOR has no type for {type(value).__name__} {value!r:.80}")


def _head(major: int, argument: int) -> bytes:
    if argument < _FIRST_ARGUMENT:
        return bytes((major << 5 | argument,))
    for info, num_bytes in _ARGUMENT_BYTES.items():
        if argument < 1 << (8 * num_bytes):
            return bytes((major << 5 | info,)) + argument.to_bytes(num_bytes, "big")
    raise MisfitError(f"CBOR has no integer of more than 64 bits: {argument!r:.40}")
