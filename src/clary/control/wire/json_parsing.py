"""JSON documents to request parameters, by closures compiled once for each shape.

Where: `parsing` calls the closure of an operation's input; REST bodies use it too. Unknown members are ignored and
null members are absent, as on AWS, so that newer clients keep working; null elements of lists and maps become None, and
validation refuses them. Source: Smithy, "AWS JSON 1.1 protocol".
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from clary.control.wire.json_bounds import MAX_VALUES, has_more_values
from clary.control.wire.scalars import (
    INTEGER_BITS,
    MisfitError,
    article_of,
    check_integer,
    decode_blob,
    from_epoch,
    parse_time,
    special_float,
    timestamp_format,
    token_of,
)

Reader = Callable[[Any], Any]


def load_document(body: bytes) -> Any:
    """Read one JSON document, strictly.

    Raises: MisfitError for content that two parsers may read differently or that databases cannot store: bytes
        that are not UTF-8, duplicate keys, NaN and infinities, U+0000, lone surrogates, nesting, numbers or a
        number of values beyond the limits.
    """
    if has_more_values(body):
        raise MisfitError(f"the body has more than {MAX_VALUES} values")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MisfitError(f"the body is not UTF-8: {error.reason} at byte {error.start}") from error
    try:
        document = _DECODER.decode(text)
    except RecursionError as error:
        raise MisfitError("the body is nested too deeply") from error
    except ValueError as error:
        raise MisfitError(f"the body is not JSON: {error}") from error
    if "\\u" in text:
        _check_escapes(document)
    return document


def json_reader(shape: Any) -> Reader:
    """Return the function that turns a JSON value into a value of `shape`; that function raises MisfitError."""
    return Compiler().reader(shape)


class Compiler:
    """Compiles one shape with its members; records the shapes in progress to avoid endless recursion."""

    def __init__(self) -> None:
        self._done: dict[tuple[str, str, bool], Reader | None] = {}

    def reader(self, shape: Any) -> Reader:
        """Return the function that reads values of a shape."""
        key = (shape.name, shape.serialization.get("timestampFormat", ""), bool(shape.serialization.get("jsonvalue")))
        if key in self._done:
            found = self._done[key]
            return found if found is not None else lambda value: self._done[key](value)  # type: ignore[misc]
        self._done[key] = None
        found = self._done[key] = self._compile(shape)
        return found

    def _compile(self, shape: Any) -> Reader:
        if shape.type_name == "structure":
            return self._structure(shape)
        if shape.type_name == "list":
            return _list(self.reader(shape.member))
        if shape.type_name == "map":
            return _map(self.reader(shape.value))
        return self.scalar(shape)

    def scalar(self, shape: Any) -> Reader:
        """Return the function that reads values of a shape without members; other formats than JSON override it."""
        type_name = shape.type_name
        if type_name == "timestamp":
            return _timestamp(timestamp_format(shape, "unixtimestamp"))
        if type_name in INTEGER_BITS:
            return lambda value: _integer(value, type_name)
        if type_name in ("float", "double"):
            return _float
        if type_name == "boolean":
            return _boolean
        return decode_blob if type_name == "blob" else _string

    def _structure(self, shape: Any) -> Reader:
        if shape.is_document_type:
            return lambda value: value
        members = {
            member.serialization.get("name", name): (name, _plain_type(member), self.reader(member))
            for name, member in shape.members.items()
        }
        get = members.get

        def read(value: Any) -> Any:
            if type(value) is not dict:
                raise MisfitError(f"{token_of(value)} can not be converted to a structure")
            result = {}
            for key, item in value.items():
                member = get(key)
                if member is None or item is None:
                    continue
                name, plain_type, reader = member
                # The common case, a valid string or boolean, needs no call.
                if type(item) is plain_type:
                    result[name] = item
                    continue
                try:
                    result[name] = reader(item)
                except MisfitError as error:
                    raise error.within(name)  # noqa: B904 - the same error, one level further out
            return result

        return read


def _list(item_reader: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not list:
            raise MisfitError(f"{token_of(value)} can not be converted to a list")
        result = []
        for item in value:
            try:
                result.append(None if item is None else item_reader(item))
            except MisfitError as error:
                raise error.within(str(len(result) + 1))  # noqa: B904 - the same error, one level further out
        return result

    return read


def _map(item_reader: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise MisfitError(f"{token_of(value)} can not be converted to a map")
        result = {}
        for key, item in value.items():
            try:
                result[key] = None if item is None else item_reader(item)
            except MisfitError as error:
                raise error.within(key)  # noqa: B904 - the same error, one level further out
        return result

    return read


def _timestamp(wanted: str) -> Reader:
    def read(value: Any) -> Any:
        if wanted == "unixtimestamp":
            if type(value) not in (int, float):
                raise MisfitError(f"{token_of(value)} can not be converted to a timestamp: expected epoch seconds")
            return from_epoch(value)
        return parse_time(_string(value), wanted)

    return read


def _string(value: Any) -> str:
    if type(value) is not str:
        raise MisfitError(f"{token_of(value)} can not be converted to a String")
    return value


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise MisfitError(f"{token_of(value)} can not be converted to a Boolean")
    return value


def _integer(value: Any, type_name: str) -> int:
    if type(value) is int:
        return check_integer(value, type_name)
    # JSON has one kind of number: 1.0 and 1e2 are integers, 1.5 is not.
    if type(value) is float and value.is_integer():
        return check_integer(int(value), type_name)
    raise MisfitError(f"{token_of(value)} can not be converted to {article_of(type_name)}")


def _float(value: Any) -> float:
    if type(value) is str:
        special = special_float(value)
        if special is not None:
            return special
    if type(value) in (int, float):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
        raise MisfitError("NUMBER_VALUE is too large for a Double")
    raise MisfitError(f"{token_of(value)} can not be converted to a Double")


def _plain_type(shape: Any) -> type | None:
    return {"string": str, "boolean": bool}.get(shape.type_name)


def _check_escapes(document: Any) -> None:
    # JSON in valid UTF-8 can contain surrogates and U+0000 only as escapes; dumping finds them at any depth, at C
    # speed.
    dumped = json.dumps(document, ensure_ascii=False)
    try:
        dumped.encode("utf-8")
    except UnicodeEncodeError as error:
        raise MisfitError("the body holds half of a surrogate pair (\\ud800 to \\udfff)") from error
    if "\\u0000" in dumped and "\0" in _all_text(document):
        raise MisfitError("the body holds the character U+0000")


def _all_text(document: Any) -> str:
    found: list[str] = []
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            waiting.extend(value)
            waiting.extend(value.values())
    return "".join(found)


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"duplicate key {double[:80]!r}")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_object, parse_constant=_no_constant)
