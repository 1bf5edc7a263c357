"""Converts dataclasses to JSON-ready values and back, driven by their annotations.

Where: launch plans, agent messages and stored jobs cross process borders as JSON through `to_plain` and `from_plain`.
Supported annotations: bool, int, float, str, None, Any, datetime (ISO 8601, UTC), StrEnum, Optional, tuple[X, ...],
list[X], dict[str, X], Mapping[str, X] and dataclasses of these.

Both directions run for every stored job and every agent message, so each annotation is evaluated once per type:
`_writer` and `_builder` return a function for a type, kept for the life of the process.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime, timezone
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from clary.base.errors import ContractError

T = TypeVar("T")
Convert = Callable[[Any], Any]

_SCALARS = frozenset({bool, int, float, str, type(None)})  # types whose instances are JSON-ready already


def to_plain(value: Any) -> Any:
    """Return `value` as dicts, lists, strings, numbers and None.

    Raises: ContractError for a type that has no plain form.
    """
    return _writer(type(value))(value)


def from_plain(cls: type[T], data: Any) -> T:
    """Build a `cls` from the plain data that `to_plain` returned.

    Unknown keys are ignored, so that an older reader accepts a newer writer; absent keys take the field's default.

    Raises: ContractError naming the path of the first value that does not fit.
    """
    try:
        return _builder(cls)(data)  # type: ignore[no-any-return]
    except _MisfitError as misfit:
        raise ContractError(f"{cls.__name__}{''.join(reversed(misfit.steps))}{misfit.complaint}") from misfit.__cause__


class _MisfitError(Exception):
    """A value that does not fit; each enclosing container adds its step to the path of the value."""

    def __init__(self, complaint: str) -> None:
        super().__init__(complaint)
        self.complaint = complaint
        self.steps: list[str] = []


def _make_writer(cls: type) -> Convert:
    """Return the function that converts instances of exactly `cls` to plain form."""
    if cls is type(None) or (issubclass(cls, bool | int | float) and not issubclass(cls, Enum)):
        return _itself
    if issubclass(cls, Enum):
        return _enum_value
    if issubclass(cls, str):
        return _itself
    if issubclass(cls, datetime):
        return _time_text
    if is_dataclass(cls):
        return _dataclass_writer(cls)
    if issubclass(cls, Mapping):
        return _mapping_to_plain
    if issubclass(cls, Sequence | frozenset | set):
        return _sequence_to_plain
    raise ContractError(f"{cls.__name__} has no plain form: pass a dataclass, mapping, sequence or scalar")


_writer: Callable[[Any], Convert] = cache(_make_writer)


def _itself(value: Any) -> Any:
    return value


def _enum_value(value: Any) -> Any:
    return value.value


def _time_text(value: datetime) -> str:
    return value.astimezone(timezone.utc).isoformat()


def _dataclass_writer(cls: Any) -> Convert:
    names = tuple(field.name for field in fields(cls))

    def write(value: Any) -> dict[str, Any]:
        return {name: _writer(type(item))(item) for name in names for item in (getattr(value, name),)}

    return write


def _mapping_to_plain(value: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): _writer(type(item))(item) for key, item in value.items()}


def _sequence_to_plain(value: Any) -> list[Any]:
    if _SCALARS.issuperset(map(type, value)):  # a long list of numbers is copied at once
        return list(value)
    return [_writer(type(item))(item) for item in value]


def _make_builder(annotation: Any) -> Convert:
    """Return the function that builds a value of `annotation` from plain data; it raises _MisfitError."""
    if annotation is Any:
        return _itself
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return _union_builder(annotation)
    if origin in (tuple, list):
        return _list_builder(origin, get_args(annotation)[0])
    if origin in (dict, Mapping):
        return _mapping_builder(get_args(annotation)[1])
    if is_dataclass(annotation) and isinstance(annotation, type):
        return _dataclass_builder(annotation)
    if annotation is datetime:
        return _build_time
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _enum_builder(annotation)
    if annotation is float:
        return _build_float
    return _scalar_builder(annotation)


_builder: Callable[[Any], Convert] = cache(_make_builder)


def _union_builder(annotation: Any) -> Convert:
    options = [option for option in get_args(annotation) if option is not type(None)]
    may_be_none = len(options) < len(get_args(annotation))
    build_option = _builder(options[0]) if len(options) == 1 else None

    def build(data: Any) -> Any:
        if data is None:
            _expect(may_be_none, "a value", data)
            return None
        if build_option is None:
            raise _MisfitError(f": expected an annotation with one type besides None, got {annotation}")
        return build_option(data)

    return build


def _list_builder(container: Callable[[Any], Any], item_type: Any) -> Convert:
    build_item = _builder(item_type)
    taken_types = _taken_types(item_type)

    def build(data: Any) -> Any:
        _expect(isinstance(data, list), "a list", data)
        if taken_types.issuperset(map(type, data)):  # a long list of numbers is accepted at once
            return container(data)
        items = []
        try:
            for item in data:
                items.append(build_item(item))  # noqa: PERF401 - the number of built items tells which failed
        except _MisfitError as misfit:
            misfit.steps.append(f"[{len(items)}]")
            raise
        return container(items)

    return build


def _taken_types(annotation: Any) -> frozenset[type]:
    """Return the types whose instances an annotation accepts unchanged."""
    options = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    others = [option for option in options if option is not type(None)]
    return frozenset(options) if len(others) == 1 and others[0] in _SCALARS else frozenset()


def _mapping_builder(value_type: Any) -> Convert:
    if value_type is Any:
        return _build_object
    build_item = _builder(value_type)

    def build(data: Any) -> Any:
        _expect(isinstance(data, dict), "an object", data)
        items = {}
        key = None
        try:
            for key, item in data.items():
                items[key] = build_item(item)
        except _MisfitError as misfit:
            misfit.steps.append(f".{key}")
            raise
        return items

    return build


def _build_object(data: Any) -> Any:
    _expect(isinstance(data, dict), "an object", data)
    return dict(data)


def _dataclass_builder(cls: type) -> Convert:
    def build(data: Any) -> Any:
        _expect(isinstance(data, dict), "an object", data)
        values = {}
        name = ""
        try:
            # Looked up at the first call, when a class whose annotations refer to itself is already in the cache.
            for name, build_value, is_required in _field_plan(cls):
                if name in data:
                    values[name] = build_value(data[name])
                elif is_required:
                    raise _MisfitError(" is missing")
        except _MisfitError as misfit:
            misfit.steps.append(f".{name}")
            raise
        return cls(**values)

    return build


@cache
def _field_plan(cls: Any) -> tuple[tuple[str, Convert, bool], ...]:
    """Return for each field of a dataclass its name, its builder and whether a value is required."""
    hints = get_type_hints(cls)
    return tuple(
        (field.name, _builder(hints[field.name]), field.default is MISSING and field.default_factory is MISSING)
        for field in fields(cls)
    )


def _build_time(data: Any) -> datetime:
    try:
        found = datetime.fromisoformat(data)
        # Times are converted to UTC; the conversion overflows for some times near the ends of the calendar.
        has_form, has_zone = True, found.tzinfo is not None
        found = found.astimezone(timezone.utc) if has_zone else found
    except (TypeError, ValueError, OverflowError):
        has_form = has_zone = False
    _expect(has_form, "an ISO 8601 time", data)
    _expect(has_zone, "an ISO 8601 time with its zone", data)
    return found


def _enum_builder(cls: type[Enum]) -> Convert:
    def build(data: Any) -> Enum:
        try:
            if isinstance(data, str):
                return cls(data)
        except ValueError:
            pass
        raise _MisfitError(f": {_shown(data)} is not a valid {cls.__name__}")

    return build


def _build_float(data: Any) -> float:
    if isinstance(data, float):
        return data
    _expect(isinstance(data, int) and not isinstance(data, bool), "float", data)
    try:
        return float(data)
    except OverflowError:
        raise _MisfitError(f": expected float, got a whole number with {data.bit_length()} bits") from None


def _scalar_builder(cls: type) -> Convert:
    def build(data: Any) -> Any:
        if not isinstance(data, cls):
            _expect(False, cls.__name__, data)
        return data

    return build


def _expect(fits: bool, wanted: str, got: Any) -> None:
    if not fits:
        raise _MisfitError(f": expected {wanted}, got {type(got).__name__} {_shown(got)}")


def _shown(got: Any) -> str:
    """Return the beginning of a value for a message; a received value may be nested too deeply for `repr`."""
    try:
        return repr(str(got)[:80])
    except RecursionError:
        return "(nested too deeply to be shown)"
