"""Dataclasses to JSON-ready values and back, driven by their annotations.

Where: launch plans, agent messages and stored jobs cross process borders as JSON through these two functions.
Supported annotations: bool, int, float, str, None, Any, datetime (ISO 8601, UTC), StrEnum, Optional, tuple[X, ...],
list[X], dict[str, X], Mapping[str, X] and dataclasses of these.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from clary.contract.errors import ContractError

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Return `value` as dicts, lists, strings, numbers and None.

    Raises: ContractError for a type that has no plain form.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | frozenset | set):
        return [to_plain(item) for item in value]
    raise ContractError(f"{type(value).__name__} has no plain form: pass a dataclass, mapping, sequence or scalar")


def from_plain(cls: type[T], data: Any) -> T:
    """Build a `cls` from what `to_plain` returned.

    Unknown keys are ignored, so that an older reader accepts a newer writer; absent keys take the field's default.

    Raises: ContractError naming the path of the first value that does not fit.
    """
    return _build(cls, data, cls.__name__)  # type: ignore[no-any-return]


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _build(annotation: Any, data: Any, path: str) -> Any:
    if annotation is Any:
        return data
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return _build_union(annotation, data, path)
    if origin in (tuple, list):
        _expect(isinstance(data, list), path, "a list", data)
        item_type = get_args(annotation)[0]
        return origin(_build(item_type, item, f"{path}[{index}]") for index, item in enumerate(data))
    if origin in (dict, Mapping):
        _expect(isinstance(data, dict), path, "an object", data)
        value_type = get_args(annotation)[1]
        return {key: _build(value_type, item, f"{path}.{key}") for key, item in data.items()}
    if is_dataclass(annotation):
        return _build_dataclass(annotation, data, path)
    return _build_scalar(annotation, data, path)


def _build_union(annotation: Any, data: Any, path: str) -> Any:
    options = [option for option in get_args(annotation) if option is not type(None)]
    if data is None:
        _expect(len(options) < len(get_args(annotation)), path, "a value", data)
        return None
    _expect(len(options) == 1, path, "an annotation with one type besides None", data)
    return _build(options[0], data, path)


def _build_dataclass(cls: Any, data: Any, path: str) -> Any:
    _expect(isinstance(data, dict), path, "an object", data)
    hints = _hints(cls)
    values = {}
    for field in fields(cls):
        if field.name in data:
            values[field.name] = _build(hints[field.name], data[field.name], f"{path}.{field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ContractError(f"{path}.{field.name} is missing")
    return cls(**values)


def _build_scalar(annotation: Any, data: Any, path: str) -> Any:
    if annotation is datetime:
        _expect(isinstance(data, str), path, "an ISO 8601 time", data)
        return datetime.fromisoformat(data)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        try:
            return annotation(data)
        except ValueError as error:
            raise ContractError(f"{path}: {error}") from error
    if annotation is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    _expect(isinstance(data, annotation), path, annotation.__name__, data)
    return data


def _expect(fits: bool, path: str, wanted: str, got: Any) -> None:
    if not fits:
        raise ContractError(f"{path}: expected {wanted}, got {type(got).__name__} {str(got)[:80]!r}")
