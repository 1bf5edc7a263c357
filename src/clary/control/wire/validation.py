"""Checks of the model's constraints, with AWS's error texts.

Where: after parsing, before services see the parameters. Checkers are closures compiled once for each operation; a
valid request costs one walk and builds no message. Source: texts as the real service writes them: `2 validation errors
detected: Value 'a_b' at 'trainingJobName' failed to satisfy constraint: Member must satisfy regular expression pattern:
...; Value null at 'roleArn' failed to satisfy constraint: Member must not be null`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from clary.base.errors import WireError
from clary.control.wire.models import Operation
from clary.control.wire.patterns import compile_pattern

# Shapes whose enumeration is not enforced: the catalogue of instance types later decides on the name.
LENIENT_ENUMS = frozenset({"TrainingInstanceType"})
LENIENT_MAX_LENGTH = 128  # maximum length of a value of an enumeration that is not enforced
PATTERN_MAX_LENGTH = 4096  # longer values are accepted without matching: see `patterns`
MAX_SHOWN_ERRORS = 20
MAX_SHOWN_CHARACTERS = 1024  # characters of a refused value in the error text

_NOT_NULL = "Member must not be null"


class Violation:
    """One broken constraint; `path` grows from the inside out."""

    __slots__ = ("constraint", "path", "shown")

    def __init__(self, constraint: str, shown: str, path: str = "") -> None:
        self.constraint = constraint
        self.shown = shown  # " 'value'", " null", or empty for a secret
        self.path = path

    def within(self, name: str) -> Violation:
        """Return this violation after adding the enclosing member, key or index."""
        self.path = f"{name}.{self.path}" if self.path else name
        return self

    def __str__(self) -> str:
        return f"Value{self.shown} at '{self.path}' failed to satisfy constraint: {self.constraint}"


# Returns None or an empty list for a valid value.
Checker = Callable[[Any], "list[Violation] | None"]


def validate(operation: Operation, params: dict[str, Any], *, lenient_enums: frozenset[str] = LENIENT_ENUMS) -> None:
    """Check parameters against the model's constraints.

    Args:
        lenient_enums: names of shapes whose enumerations are not enforced.
    Raises: WireError with ValidationException (ValidationError for query services) that counts the broken constraints
        and lists the first `MAX_SHOWN_ERRORS`.
    """
    checker = _checker(operation, lenient_enums)
    if checker is None:
        return
    try:
        violations = checker(params)
    except RecursionError as error:
        raise WireError(
            operation.validation_code, "1 validation error detected: the request is nested too deeply"
        ) from error
    if violations:
        raise WireError(operation.validation_code, _message(violations))


def _message(violations: list[Violation]) -> str:
    count = len(violations)
    shown = "; ".join(str(violation) for violation in violations[:MAX_SHOWN_ERRORS])
    more = f"; and {count - MAX_SHOWN_ERRORS} more" if count > MAX_SHOWN_ERRORS else ""
    return f"{count} validation error{'s' if count > 1 else ''} detected: {shown}{more}"


@cache
def _checker(operation: Operation, lenient_enums: frozenset[str]) -> Checker | None:
    shape = operation.model.input_shape
    return None if shape is None else _Compiler(lenient_enums).checker(shape)


class _Compiler:
    """Compiles one shape with its members; records the shapes in progress to avoid endless recursion."""

    def __init__(self, lenient_enums: frozenset[str]) -> None:
        self._lenient_enums = lenient_enums
        self._done: dict[str, Checker | None] = {}
        self._under_way: set[str] = set()

    def checker(self, shape: Any) -> Checker | None:
        """Return the checker of a shape; None if every value is valid."""
        name = shape.name
        if name in self._under_way:
            return lambda value: found(value) if (found := self._done[name]) is not None else None
        if name not in self._done:
            self._under_way.add(name)
            self._done[name] = self._compile(shape)
            self._under_way.remove(name)
        return self._done[name]

    def _compile(self, shape: Any) -> Checker | None:
        if shape.type_name == "structure":
            return None if shape.is_document_type else self._structure(shape)
        if shape.type_name == "list":
            return self._list(shape)
        if shape.type_name == "map":
            return self._map(shape)
        return _scalar(shape, self._lenient_enums)

    def _structure(self, shape: Any) -> Checker | None:
        required = tuple((name, _lower_camel(name)) for name in shape.required_members)
        members = {}
        for name, member in shape.members.items():
            checker = self.checker(member)
            if checker is not None:
                members[name] = (checker, _lower_camel(name))
        is_union = shape.is_tagged_union
        if not (required or members or is_union):
            return None
        get = members.get

        def check(value: Any) -> list[Violation] | None:
            violations: list[Violation] | None = None
            for name, shown_name in required:
                if name not in value:
                    violations = violations or []
                    violations.append(Violation(_NOT_NULL, " null", shown_name))
            if is_union and len(value) != 1:
                violations = violations or []
                violations.append(Violation("Member must have exactly one member set", _shown(value)))
            for name, item in value.items():
                member = get(name)
                if member is None:
                    continue
                found = member[0](item)
                if found:
                    violations = violations or []
                    violations.extend(violation.within(member[1]) for violation in found)
            return violations

        return check

    def _list(self, shape: Any) -> Checker | None:
        check_size = _size_checker(shape)
        check_item = self.checker(shape.member)
        is_nested = shape.member.type_name in ("structure", "list", "map")
        constraints = f"Member must satisfy constraint: [{_all_constraints(shape.member, self._lenient_enums)}]"
        hides = _is_sensitive(shape) or _is_sensitive(shape.member)

        def check(value: Any) -> list[Violation] | None:
            violations = check_size(value)
            for index, item in enumerate(value, 1):
                if item is None:
                    violations.append(Violation(_NOT_NULL, " null", f"{index}.member"))
                    continue
                found = check_item(item) if check_item is not None else None
                if not found:
                    continue
                if is_nested:
                    violations.extend(violation.within(f"{index}.member") for violation in found)
                else:
                    violations.append(Violation(constraints, "" if hides else _shown([item])))
            return violations

        return check

    def _map(self, shape: Any) -> Checker | None:
        check_size = _size_checker(shape)
        check_key, check_value = self.checker(shape.key), self.checker(shape.value)
        is_nested = shape.value.type_name in ("structure", "list", "map")
        key_constraints = f"Map keys must satisfy constraint: [{_all_constraints(shape.key, self._lenient_enums)}]"
        value_constraints = f"Map value must satisfy constraint: [{_all_constraints(shape.value, self._lenient_enums)}]"
        hides = any(_is_sensitive(part) for part in (shape, shape.key, shape.value))

        def check(value: Any) -> list[Violation] | None:
            violations = check_size(value)
            for key, item in value.items():
                if check_key is not None and check_key(key):
                    violations.append(Violation(key_constraints, "" if hides else _shown({key: item})))
                if item is None:
                    violations.append(Violation(_NOT_NULL, " null", f"{key}.member"))
                    continue
                found = check_value(item) if check_value is not None else None
                if not found:
                    continue
                if is_nested:
                    violations.extend(violation.within(f"{key}.member") for violation in found)
                else:
                    # The real service shows the whole map; only the invalid pair is shown here, to identify it.
                    violations.append(Violation(value_constraints, "" if hides else _shown({key: item})))
            return violations

        return check


def _scalar(shape: Any, lenient_enums: frozenset[str]) -> Checker | None:
    type_name = shape.type_name
    if type_name in ("float", "double"):
        return _number_checker(shape, is_float=True)
    if type_name in ("integer", "long"):
        return _number_checker(shape, is_float=False)
    if type_name == "blob":
        check_size = _size_checker(shape)
        return check_size if "min" in shape.metadata or "max" in shape.metadata else None
    return _string_checker(shape, lenient_enums) if type_name == "string" else None


def _string_checker(shape: Any, lenient_enums: frozenset[str]) -> Checker | None:
    traits = shape.metadata
    is_lenient = shape.name in lenient_enums
    least: float = traits.get("min", 1 if is_lenient else 0)
    most: float = traits.get("max", LENIENT_MAX_LENGTH if is_lenient else math.inf)
    enum = frozenset() if is_lenient else frozenset(traits.get("enum", ()))
    compiled = compile_pattern(traits["pattern"]) if "pattern" in traits else None
    matches = compiled.fullmatch if compiled is not None else None
    if least <= 0 and most == math.inf and not enum and matches is None:
        return None
    hides = _is_sensitive(shape)

    def check(value: Any) -> list[Violation] | None:
        length = len(value)
        fits = least <= length <= most
        # A value of invalid length is not matched, which bounds the time that a pattern can take.
        is_matched = matches is None or not fits or length > PATTERN_MAX_LENGTH or matches(value) is not None
        is_known = not enum or value in enum
        if fits and is_matched and is_known:
            return None
        violations = []
        shown = "" if hides else _shown(value)
        if not is_known:
            violations.append(Violation(_enum_text(traits["enum"]), shown))
        if length > most:
            violations.append(Violation(f"Member must have length less than or equal to {most}", shown))
        if length < least:
            violations.append(Violation(f"Member must have length greater than or equal to {least}", shown))
        if not is_matched:
            violations.append(Violation(_pattern_text(traits["pattern"]), shown))
        return violations

    return check


def _number_checker(shape: Any, *, is_float: bool) -> Checker | None:
    traits = shape.metadata
    least, most = traits.get("min", -math.inf), traits.get("max", math.inf)
    if not is_float and least == -math.inf and most == math.inf:
        return None

    def check(value: Any) -> list[Violation] | None:
        if value > most:
            return [Violation(f"Member must have value less than or equal to {most}", _shown(value))]
        if value < least:
            return [Violation(f"Member must have value greater than or equal to {least}", _shown(value))]
        if is_float and not math.isfinite(value):
            return [Violation("Member must be a finite number", _shown(value))]
        return None

    return check


def _size_checker(shape: Any) -> Callable[[Any], list[Violation]]:
    traits = shape.metadata
    least, most = traits.get("min", 0), traits.get("max", math.inf)
    hides = _is_sensitive(shape)

    def check(value: Any) -> list[Violation]:
        if len(value) > most:
            shown = "" if hides else _shown(value)
            return [Violation(f"Member must have length less than or equal to {most}", shown)]
        if len(value) < least:
            shown = "" if hides else _shown(value)
            return [Violation(f"Member must have length greater than or equal to {least}", shown)]
        return []

    return check


def _all_constraints(shape: Any, lenient_enums: frozenset[str]) -> str:
    """Return every constraint of a scalar shape, as AWS lists them for the elements of lists and maps."""
    traits = shape.metadata
    noun = "length" if shape.type_name in ("string", "blob") else "value"
    parts = []
    if "max" in traits:
        parts.append(f"Member must have {noun} less than or equal to {traits['max']}")
    if "min" in traits:
        parts.append(f"Member must have {noun} greater than or equal to {traits['min']}")
    if "enum" in traits and shape.name not in lenient_enums:
        parts.append(_enum_text(traits["enum"]))
    if "pattern" in traits:
        parts.append(_pattern_text(traits["pattern"]))
    return ", ".join(parts)


def _enum_text(values: list[str]) -> str:
    return f"Member must satisfy enum value set: [{', '.join(values)}]"


def _pattern_text(pattern: str) -> str:
    return f"Member must satisfy regular expression pattern: {pattern}"


def _is_sensitive(shape: Any) -> bool:
    return bool(shape.metadata.get("sensitive"))


def _lower_camel(name: str) -> str:
    return name[:1].lower() + name[1:]


def _shown(value: Any) -> str:
    text = _java_text(value)
    if len(text) > MAX_SHOWN_CHARACTERS:
        text = text[:MAX_SHOWN_CHARACTERS] + "..."
    return f" '{text}'"


def _java_text(value: Any) -> str:
    """Return a value as Java prints it: [a, b] and {key=value}."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}={_java_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_java_text(item) for item in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{len(value)} bytes" if isinstance(value, bytes) else str(value)
