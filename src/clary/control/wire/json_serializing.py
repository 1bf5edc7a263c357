"""Results to JSON values, by closures compiled once for each shape.

Where: `serializing` calls the writer of an operation's output; REST bodies use it too. None means absence at any
depth of a structure. A member that the model does not have, or a value of another type, is a bug of the service, and
raises an error.
Source: Smithy, "AWS JSON 1.1 protocol".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clary.control.wire.scalars import (
    INTEGER_BITS,
    MisfitError,
    encode_blob,
    float_text,
    format_time,
    timestamp_format,
)

Writer = Callable[[Any], Any]


def json_writer(shape: Any) -> Writer:
    """Return the function that turns a value of `shape` into a value for `json.dumps`, or raises MisfitError."""
    return Compiler().writer(shape)


class Compiler:
    """Compiles one shape with its members; records the shapes in progress to avoid endless recursion."""

    def __init__(self) -> None:
        self._done: dict[tuple[str, str], Writer | None] = {}

    def writer(self, shape: Any) -> Writer:
        """Return the function that writes values of a shape."""
        key = (shape.name, shape.serialization.get("timestampFormat", ""))
        if key in self._done:
            found = self._done[key]
            return found if found is not None else lambda value: self._done[key](value)  # type: ignore[misc]
        self._done[key] = None
        found = self._done[key] = self._compile(shape)
        return found

    def _compile(self, shape: Any) -> Writer:
        if shape.type_name == "structure":
            return self._structure(shape)
        if shape.type_name == "list":
            return _list(self.writer(shape.member))
        if shape.type_name == "map":
            return _map(self.writer(shape.value))
        return self.scalar(shape)

    def scalar(self, shape: Any) -> Writer:
        """Return the function that writes values of a shape without members; other formats than JSON override it."""
        type_name = shape.type_name
        if type_name == "timestamp":
            wanted = timestamp_format(shape, "unixtimestamp")
            return lambda value: format_time(value, wanted)
        if type_name in INTEGER_BITS:
            return _integer
        if type_name in ("float", "double"):
            return _float
        if type_name == "boolean":
            return _boolean
        return encode_blob if type_name == "blob" else _string

    def _structure(self, shape: Any) -> Writer:
        if shape.is_document_type:
            return lambda value: value
        members = {
            name: (member.serialization.get("name", name), self.writer(member))
            for name, member in shape.members.items()
        }
        shape_name = shape.name

        def write(value: Any) -> Any:
            if not isinstance(value, Mapping):
                raise MisfitError(f"expected a mapping for {shape_name}, got {type(value).__name__}")
            result = {}
            for name, item in value.items():
                if item is None:
                    continue
                try:
                    key, writer = members[name]
                except KeyError:
                    raise MisfitError(f"{shape_name} has no such member").within(name) from None
                try:
                    result[key] = writer(item)
                except MisfitError as error:
                    raise error.within(name)  # noqa: B904 - the same error, one level further out
            return result

        return write


def _list(item_writer: Writer) -> Writer:
    def write(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise MisfitError(f"expected a list, got {type(value).__name__}")
        result = []
        for item in value:
            try:
                result.append(None if item is None else item_writer(item))
            except MisfitError as error:
                raise error.within(str(len(result) + 1))  # noqa: B904 - the same error, one level further out
        return result

    return write


def _map(item_writer: Writer) -> Writer:
    def write(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise MisfitError(f"expected a mapping, got {type(value).__name__}")
        result = {}
        for key, item in value.items():
            try:
                result[_string(key)] = None if item is None else item_writer(item)
            except MisfitError as error:
                raise error.within(str(key))  # noqa: B904 - the same error, one level further out
        return result

    return write


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise MisfitError(f"expected a string, got {type(value).__name__} {value!r:.80}")


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise MisfitError(f"expected a bool, got {type(value).__name__} {value!r:.80}")


def _integer(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise MisfitError(f"expected an int, got {type(value).__name__} {value!r:.80}")


def _float(value: Any) -> float | str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float_text(value)
    raise MisfitError(f"expected a number, got {type(value).__name__} {value!r:.80}")
