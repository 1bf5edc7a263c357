"""Configuration keys: their readers, the known keys, and the keys that are accepted without effect.

Where: `configuration` declares the keys of SMP v1 with these functions, `fsdp.configuration` those of v2. This module
does not import torch.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import field, fields
from typing import Any

Reader = Callable[[str, Any], Any]


def key(default: Any, read: Reader, *, effect: bool = True) -> Any:
    """Declare one key as a field of a dataclass.

    Args:
        effect: False for keys that are accepted from scripts but have no effect.
    """
    return field(default=default, metadata={"read": read, "effect": effect})


def read_keys(kind: type, given: Mapping[str, Any], what: str, *, near: Collection[str] = ()) -> dict[str, Any]:
    """Parse given values into the keys of a dataclass.

    Keys that begin with an underscore are not documented: public scripts pass some, which tune the original library,
    SMP. Undeclared underscore keys are collected under `undocumented`.

    Args:
        what: the owner of the keys, for error texts.
        near: further names that errors may suggest for a misspelt key.

    Raises: ValueError for an unknown key, or a value of the wrong kind.
    """
    read = {one.name: one.metadata["read"] for one in fields(kind) if "read" in one.metadata}
    values: dict[str, Any] = {}
    undocumented: dict[str, Any] = {}
    for name, value in given.items():
        if name in read:
            values[name] = read[name](name, value)
        elif name.startswith("_"):
            undocumented[name] = value
        else:
            close = difflib.get_close_matches(name, [*read, *near], n=1)
            raise ValueError(f"{name} is not a key of {what}" + (f"; did you mean {close[0]}?" if close else ""))
    return {**values, "undocumented": undocumented}


def names_without_effect(configuration: Any) -> tuple[str, ...]:
    """Return the keys without effect that differ from their defaults, for a warning to the user."""
    declared = (one for one in fields(configuration) if not one.metadata.get("effect", True))
    changed = (one.name for one in declared if getattr(configuration, one.name) != one.default)
    return (*changed, *configuration.undocumented)


def integer(least: int) -> Reader:
    """Return a reader of whole numbers of at least `least`."""

    def read(name: str, value: Any) -> int:
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())  # False for infinity
        if isinstance(value, bool) or not is_whole or value < least:
            raise ValueError(f"{name} is {value!r}; expected a whole number, {least} or more")
        return int(value)

    return read


def switch(name: str, value: Any) -> bool:
    """Parse a boolean: a JSON boolean, or 0 or 1. Raises: ValueError."""
    if not isinstance(value, bool | int) or value not in (0, 1):
        raise ValueError(f"{name} is {value!r}; expected true or false")
    return bool(value)


def one_of(*words: str) -> Reader:
    """Return a reader that accepts any of the given words."""

    def read(name: str, value: Any) -> str:
        if value not in words:
            raise ValueError(f"{name} is {value!r}; expected one of {', '.join(words)}")
        return str(value)

    return read


def number(least: float, most: float) -> Reader:
    """Return a reader of numbers from `least` to `most`."""

    def read(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise ValueError(f"{name} is {value!r}; expected a number from {least:g} to {most:g}")
        return float(value)

    return read


def text(name: str, value: Any) -> str:
    """Accept text. Raises: ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}; expected text")
    return value
