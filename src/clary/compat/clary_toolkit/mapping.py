"""Dictionaries as variables, as arguments of a command, and split by their keys; objects that act as dictionaries."""

from __future__ import annotations

import json
from typing import Any, Iterator, Mapping, NamedTuple  # those of collections.abc take no [] in Python 3.8


class SplitResultSpec(NamedTuple):
    """The two halves of a dictionary."""

    included: dict[str, Any]
    excluded: dict[str, Any]


def to_env_vars(mapping: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables `SM_KEY`: text as it is, None as "", other values as compact JSON with sorted keys."""
    return {f"SM_{key}".upper() if key else "": _variable(value) for key, value in mapping.items()}


def to_cmd_args(mapping: Mapping[str, Any]) -> list[str]:
    """Return `--key value` (`-k value` for keys of one letter) in the order of keys; dictionaries become `a=1,b=2`."""
    arguments = []
    for key in sorted(mapping):
        name, value = _text(key), mapping[key]
        arguments.append(f"{'--' if len(name) > 1 else '-'}{name}" if name else "")
        is_nested = hasattr(value, "items")
        arguments.append(",".join(f"{k}={v}" for k, v in sorted(value.items())) if is_nested else _text(value))
    return arguments


def split_by_criteria(dictionary: Mapping[str, Any], keys: Any = None, prefix: str | None = None) -> SplitResultSpec:
    """Split a dictionary.

    Args:
        dictionary: to split; it is not changed.
        keys: of the included half.
        prefix: keys that begin with it belong to the included half too.
    """
    named = set(keys or ())
    included = {key: value for key, value in dictionary.items() if key in named or (prefix and key.startswith(prefix))}
    return SplitResultSpec(included, {key: value for key, value in dictionary.items() if key not in included})


class MappingMixin(Mapping[str, Any]):
    """Makes the properties of an object readable as a dictionary too."""

    def properties(self) -> list[str]:
        """Return the names of the properties, sorted."""
        return [name for name in dir(type(self)) if self._is_property(name)]

    def __getitem__(self, name: str) -> Any:
        if not self._is_property(name):
            raise KeyError(f"{type(self).__name__} has no property {name!r}; it has {', '.join(self.properties())}")
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.properties())

    def __len__(self) -> int:
        return len(self.properties())

    def __str__(self) -> str:
        return str(dict(self))

    def _is_property(self, name: str) -> bool:
        return isinstance(getattr(type(self), name, None), property)


def _variable(value: Any) -> str:
    if value is None or isinstance(value, (str, bytes)):
        return _text(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
