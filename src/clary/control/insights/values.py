"""Values of fields: reading, comparison, order and text.

The value of a field is a text, a number, or None. Two values compare as numbers if both are numbers or texts that spell
numbers, else as texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Value = str | int | float | None

_NUMBER_STARTS = frozenset("0123456789-+.")
_MAX_NUMBER_LENGTH = 40
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

COMPARE: dict[str, Callable[[str | float, str | float], bool]] = {
    "=": lambda left, right: left == right,
    "<": lambda left, right: left < right,  # type: ignore[operator]  # both are texts, or both are numbers
    "<=": lambda left, right: left <= right,  # type: ignore[operator]  # as above
    ">": lambda left, right: left > right,  # type: ignore[operator]  # as above
    ">=": lambda left, right: left >= right,  # type: ignore[operator]  # as above
}


def number_of(value: Value) -> float | None:
    """Return the number that a value is or spells."""
    if value is None:
        return None
    if isinstance(value, str):
        if not value or value[0] not in _NUMBER_STARTS or len(value) > _MAX_NUMBER_LENGTH or "_" in value:
            return None
        try:
            number = float(value)
        except ValueError:
            return None
        return number if math.isfinite(number) else None
    return value


def compare(left: Value, operator: str, right: Value) -> bool:
    """Whether a comparison holds; false if either value is missing.

    Args:
        left: value of a field; None where the line lacks it.
        operator: a key of `COMPARE`.
        right: value to compare with; both compare as numbers only if both are numbers or spell them.
    """
    if left is None or right is None:
        return False
    left_number = number_of(left)
    right_number = number_of(right) if left_number is not None else None
    if left_number is not None and right_number is not None:
        return COMPARE[operator](left_number, right_number)
    return COMPARE[operator](text_of(left), text_of(right))


def sort_key(value: Value) -> tuple[int, float, str]:
    """Return the sort key of a value: missing values first, then numbers, then texts."""
    if value is None:
        return 0, 0.0, ""
    number = number_of(value)
    return (1, number, "") if number is not None else (2, 0.0, text_of(value))


def text_of(value: str | float) -> str:
    """Return a value as text; whole numbers have no fraction."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def time_text(at_ms: int) -> str:
    """Return a time as query results spell it: 2026-01-31 12:00:00.000, in UTC."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
