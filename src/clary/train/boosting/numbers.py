"""Parsers for one hyperparameter's text each. Pure."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Sequence
from typing import Any

Parse = Callable[[str], Any]  # raises ValueError with what is expected


def whole(least: int | None = None, most: int | None = None) -> Parse:
    """Return a parser of whole numbers from `least` to `most`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"a whole number{_range(least, most)}") from None
        if (least is not None and value < least) or (most is not None and value > most):
            raise ValueError(f"a whole number{_range(least, most)}")
        return value

    return parse


def real(least: float | None = None, most: float | None = None, *, above: float | None = None) -> Parse:
    """Return a parser of numbers from `least`, or above `above`, to `most`."""

    def parse(text: str) -> float:
        expected = f"a number{_range(least, most, above)}"
        try:
            value = float(text)
        except ValueError:
            raise ValueError(expected) from None
        is_low = (least is not None and not value >= least) or (above is not None and not value > above)
        if is_low or value != value or (most is not None and value > most):
            raise ValueError(expected)
        return value

    return parse


def one_of(*names: str) -> Parse:
    """Return a parser that accepts the given words only."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return text

    return parse


def words(text: str) -> tuple[str, ...]:
    """Return the words of `auc,error`, of `["auc", "error"]` or of `['auc', 'error']`."""
    text = text.strip()
    if text.startswith(("[", "(")):
        found = structure(text)
        items = found if isinstance(found, Sequence) and not isinstance(found, str) else [found]
    else:
        items = text.split(",")
    return tuple(dict.fromkeys(word for word in (str(item).strip() for item in items) if word))


def structure(text: str) -> Any:
    """Return a list or tuple in JSON's or Python's form, such as `(1,-1)` or `[[1,2],[3,4]]`.

    Raises: ValueError for any other text.
    """
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    raise ValueError("a list, such as [1, 2]")


def as_given(text: str) -> str:
    """Return the text itself, whose meaning xgboost checks."""
    return text


def _range(least: float | None, most: float | None, above: float | None = None) -> str:
    begin = f" from {least:g}" if least is not None else f" above {above:g}" if above is not None else ""
    return f"{begin} up to {most:g}" if most is not None else begin
