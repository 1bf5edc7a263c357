"""Results to XML of the query protocol.

Where: `serializing` calls the writer of an operation's output and wraps the returned XML.
Source: Smithy, "AWS query protocol": lists as `<member>` or flattened, maps as `<entry><key/><value/></entry>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from clary.control.wire.scalars import MisfitError, writer_of

# Takes the element's name and its value, returns XML: one element, or several for flattened lists and maps.
Writer = Callable[[str, Any], str]

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#xD;"})


def xml_members_writer(shape: Any) -> Callable[[Any], str]:
    """Return the function that writes the members of a structure, without an enclosing element.

    That function raises MisfitError for members that the model lacks, and for values of other types.
    """
    return _Compiler().members(shape)


def xml_text(text: str) -> str:
    """Escape text for an element; characters that XML 1.0 cannot carry become U+FFFD."""
    return _FORBIDDEN.sub("\ufffd", text).translate(_MARKUP)


class _Compiler:
    """Compiles one shape with its members; records the shapes in progress to avoid endless recursion."""

    def __init__(self) -> None:
        self._done: dict[tuple[str, str, bool], Writer | None] = {}

    def writer(self, shape: Any) -> Writer:
        traits = shape.serialization
        key = (shape.name, traits.get("timestampFormat", ""), bool(traits.get("flattened")))
        if key in self._done:
            found = self._done[key]
            return found if found is not None else lambda name, value: self._done[key](name, value)  # type: ignore[misc]
        self._done[key] = None
        found = self._done[key] = self._compile(shape)
        return found

    def members(self, shape: Any) -> Callable[[Any], str]:
        members = {name: (_element_name(member, name), self.writer(member)) for name, member in shape.members.items()}
        shape_name = shape.name

        def write(value: Any) -> str:
            if not isinstance(value, Mapping):
                raise MisfitError(f"expected a mapping for {shape_name}, got {type(value).__name__}")
            pieces = []
            for name, item in value.items():
                if item is None:
                    continue
                member = members.get(name)
                if member is None:
                    raise MisfitError(f"{shape_name} has no such member").within(name)
                try:
                    pieces.append(member[1](member[0], item))
                except MisfitError as error:
                    raise error.within(name)  # noqa: B904 - the same error, one level further out
            return "".join(pieces)

        return write

    def _compile(self, shape: Any) -> Writer:
        if shape.type_name == "structure":
            write_members = self.members(shape)
            return lambda name, value: _element(name, write_members(value))
        if shape.type_name == "list":
            return self._list(shape)
        if shape.type_name == "map":
            return self._map(shape)
        write_text = writer_of(shape)
        return lambda name, value: _element(name, xml_text(write_text(value)))

    def _list(self, shape: Any) -> Writer:
        write_item = self.writer(shape.member)
        is_flattened = bool(shape.serialization.get("flattened"))
        member_name = shape.member.serialization.get("name", "member")

        def write(name: str, value: Any) -> str:
            if not isinstance(value, list | tuple):
                raise MisfitError(f"expected a list, got {type(value).__name__}")
            pieces = []
            for item in value:
                try:
                    pieces.append(write_item(name if is_flattened else member_name, item))
                except MisfitError as error:
                    raise error.within(str(len(pieces) + 1))  # noqa: B904 - the same error, one level further out
            return "".join(pieces) if is_flattened else _element(name, "".join(pieces))

        return write

    def _map(self, shape: Any) -> Writer:
        write_key, write_value = self.writer(shape.key), self.writer(shape.value)
        key_name, value_name = (
            shape.key.serialization.get("name", "key"),
            shape.value.serialization.get("name", "value"),
        )
        is_flattened = bool(shape.serialization.get("flattened"))

        def write(name: str, value: Any) -> str:
            if not isinstance(value, Mapping):
                raise MisfitError(f"expected a mapping, got {type(value).__name__}")
            pieces = []
            for key, item in value.items():
                try:
                    pair = write_key(key_name, key) + write_value(value_name, item)
                except MisfitError as error:
                    raise error.within(str(key))  # noqa: B904 - the same error, one level further out
                pieces.append(_element(name if is_flattened else "entry", pair))
            return "".join(pieces) if is_flattened else _element(name, "".join(pieces))

        return write


def _element(name: str, content: str) -> str:
    return f"<{name}>{content}</{name}>" if content else f"<{name}/>"


def _element_name(member: Any, name: str) -> str:
    if member.type_name == "list" and member.serialization.get("flattened"):
        # A flattened list has the name of its elements if the model names them (as in botocore).
        element_name = member.member.serialization.get("name")
        if element_name is not None:
            return str(element_name)
    return str(member.serialization.get("name", name))
