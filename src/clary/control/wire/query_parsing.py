"""Form-encoded query requests to parameters.

Where: `parsing` calls the reader of an operation's input with the decoded form. `A.member.1.B=x` names a leaf of a
tree: the form is folded into nested dicts once, then the shapes walk them.
Source: Smithy, "AWS query protocol": lists as `.member.N` or flattened, maps as `.entry.N.key` and `.value`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote_to_bytes

from clary.control.wire.scalars import MisfitError, reader_of

MAX_FIELDS = 10_000  # maximum number of fields in a form
MAX_DEPTH = 64  # maximum number of parts of a name, which dots separate

Tree = dict[str, Any]  # name -> subtree; "" -> the text of the node itself
Reader = Callable[[Tree], Any]

_PROTOCOL_FIELDS = frozenset({"Action", "Version"})


def load_form(form: bytes) -> Tree:
    """Fold a form into a tree.

    Raises: MisfitError for duplicate names, bytes that are not UTF-8, U+0000, too many or too deep names.
    """
    tree: Tree = {}
    fields = form.split(b"&")
    if len(fields) > MAX_FIELDS:
        raise MisfitError(f"the form has {len(fields)} fields, at most {MAX_FIELDS} are accepted")
    for field in fields:
        if not field:
            continue
        raw_name, _, raw_value = field.partition(b"=")
        name, value = _decoded(raw_name), _decoded(raw_value)
        if name in _PROTOCOL_FIELDS or name.startswith("X-Amz-"):
            continue
        parts = name.split(".")
        if len(parts) > MAX_DEPTH:
            raise MisfitError(f"{name[:80]!r} is nested too deeply")
        if "" in parts:
            raise MisfitError(f"{name[:80]!r} has an empty part")
        node = tree
        for part in parts:
            node = node.setdefault(part, {})
        if "" in node:
            raise MisfitError(f"duplicate parameter {name[:80]!r}")
        node[""] = value
    return tree


def form_reader(shape: Any) -> Reader:
    """Return the function that turns a form's tree into a value of `shape`; it raises MisfitError."""
    return _Compiler().reader(shape)


class _Compiler:
    """Compiles one shape with its members; records the shapes in progress to avoid endless recursion."""

    def __init__(self) -> None:
        self._done: dict[tuple[str, str, bool], Reader | None] = {}

    def reader(self, shape: Any) -> Reader:
        traits = shape.serialization
        key = (shape.name, traits.get("timestampFormat", ""), bool(traits.get("flattened")))
        if key in self._done:
            found = self._done[key]
            return found if found is not None else lambda tree: self._done[key](tree)  # type: ignore[misc]
        self._done[key] = None
        found = self._done[key] = self._compile(shape)
        return found

    def _compile(self, shape: Any) -> Reader:
        if shape.type_name == "structure":
            return self._structure(shape)
        if shape.type_name == "list":
            return self._list(shape)
        if shape.type_name == "map":
            return self._map(shape)
        return _scalar(reader_of(shape))

    def _structure(self, shape: Any) -> Reader:
        members = {}
        for name, member in shape.members.items():
            for field_name in _field_names(member, name):
                members[field_name] = (name, self.reader(member))

        def read(tree: Tree) -> Any:
            if tree.get("", ""):
                raise MisfitError("a value stands where a structure is expected")
            result = {}
            for key, subtree in tree.items():
                member = members.get(key)
                if member is None:
                    continue
                try:
                    result[member[0]] = member[1](subtree)
                except MisfitError as error:
                    raise error.within(member[0])  # noqa: B904 - the same error, one level further out
            return result

        return read

    def _list(self, shape: Any) -> Reader:
        item_reader = self.reader(shape.member)
        member_name = None if shape.serialization.get("flattened") else _name(shape.member, "member")

        def read(tree: Tree) -> Any:
            result = []
            for index, subtree in _numbered(tree, member_name, "list"):
                try:
                    result.append(item_reader(subtree))
                except MisfitError as error:
                    raise error.within(str(index))  # noqa: B904 - the same error, one level further out
            return result

        return read

    def _map(self, shape: Any) -> Reader:
        key_reader, value_reader = self.reader(shape.key), self.reader(shape.value)
        key_name, value_name = _name(shape.key, "key"), _name(shape.value, "value")
        entry_name = None if shape.serialization.get("flattened") else "entry"

        def read(tree: Tree) -> Any:
            result: dict[str, Any] = {}
            for index, entry in _numbered(tree, entry_name, "map"):
                try:
                    if key_name not in entry:
                        raise MisfitError(f"an entry of a map has no '{key_name}'")
                    key = key_reader(entry[key_name])
                    if key in result:
                        raise MisfitError(f"duplicate key {key[:80]!r}")
                    result[key] = value_reader(entry[value_name]) if value_name in entry else None
                except MisfitError as error:
                    raise error.within(str(index))  # noqa: B904 - the same error, one level further out
            return result

        return read


def _numbered(tree: Tree, name: str | None, kind: str) -> list[tuple[int, Tree]]:
    """Return the numbered subtrees of a list or map in the order of their numbers."""
    if tree.get("", ""):
        raise MisfitError(f"a value stands where a {kind} is expected")
    if name is not None:
        # An empty list is written as `Names=` alone.
        if tree.keys() <= {""}:
            return []
        if name not in tree:
            raise MisfitError(
                f"elements of a {kind} must be named '{name}.N', got {next(iter(tree.keys() - {''}))[:40]!r}"
            )
        tree = tree[name]
    found = []
    for key, subtree in tree.items():
        if key == "":
            continue
        if not (key.isascii() and key.isdigit() and len(key) <= len(str(MAX_FIELDS)) + 1):
            raise MisfitError(f"elements of a {kind} must be numbered, got {key[:40]!r}")
        found.append((int(key), subtree))
    return sorted(found, key=lambda pair: pair[0])


def _scalar(read_text: Callable[[str], Any]) -> Reader:
    def read(tree: Tree) -> Any:
        if tree.keys() != {""}:
            raise MisfitError("a structure stands where a value is expected")
        return read_text(tree[""])

    return read


def _field_names(member: Any, name: str) -> set[str]:
    names = {_name(member, name)}
    if member.type_name == "list" and member.serialization.get("flattened") and member.member.serialization.get("name"):
        # A flattened list has the name of its elements if the model names them; an empty list has its own name.
        names.add(_name(member.member, name))
    return names


def _name(shape: Any, default: str) -> str:
    return str(shape.serialization.get("name", default))


def _decoded(raw: bytes) -> str:
    try:
        text = unquote_to_bytes(raw.replace(b"+", b" ")).decode("utf-8")
    except UnicodeDecodeError as error:
        raise MisfitError(f"the form is not UTF-8: {error.reason}") from error
    if "\0" in text:
        raise MisfitError("the form holds the character U+0000")
    return text
