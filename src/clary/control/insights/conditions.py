"""Conditions of `filter` as functions.

A comparison with a field that a line does not have is false, and its opposite true: `loss != 1` holds for lines
without `loss`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from clary.control.insights import syntax
from clary.control.insights.automaton import Automaton
from clary.control.insights.values import Value, compare, number_of, text_of

R = TypeVar("R")  # subject of a condition: a line, or a row of groups

Read = Callable[[R], Value]
Resolve = Callable[[syntax.Field], Read[R]]
Holds = Callable[[R], bool]


def holds(condition: syntax.Condition, resolve: Resolve[R]) -> Holds[R]:
    """Return the function that decides whether a condition holds.

    Args:
        condition: condition of a filter.
        resolve: returns the function that reads a field; raises MalformedQuery for an unknown field.
    """
    match condition:
        case syntax.Not(inner):
            opposite = holds(inner, resolve)
            return lambda record: not opposite(record)
        case syntax.All(conditions):
            all_of = [holds(each, resolve) for each in conditions]
            return lambda record: all(each(record) for each in all_of)
        case syntax.Any(conditions):
            any_of = [holds(each, resolve) for each in conditions]
            return lambda record: any(each(record) for each in any_of)
        case syntax.IsPresent(field):
            read = resolve(field)
            return lambda record: read(record) is not None
        case syntax.Like(field, pattern):
            return _like(resolve(field), pattern)
        case syntax.In(field, values):
            return _in(resolve(field), values)
        case syntax.Comparison(left, operator, right):
            return _comparison(_reader(left, resolve), operator, _reader(right, resolve))


def _reader(operand: syntax.Operand, resolve: Resolve[R]) -> Read[R]:
    if isinstance(operand, syntax.Field):
        return resolve(operand)
    value = operand.value
    return lambda _record: value


def _comparison(left: Read[R], operator: str, right: Read[R]) -> Holds[R]:
    if operator == "!=":
        return lambda record: not compare(left(record), "=", right(record))
    return lambda record: compare(left(record), operator, right(record))


def _like(read: Read[R], pattern: str | Automaton) -> Holds[R]:
    if isinstance(pattern, Automaton):
        matches = pattern.matches

        def is_matched(record: R) -> bool:
            value = read(record)
            return value is not None and matches(text_of(value))

        return is_matched

    def has_text(record: R) -> bool:
        value = read(record)
        return value is not None and pattern in text_of(value)

    return has_text


def _in(read: Read[R], values: tuple[str | syntax.Number, ...]) -> Holds[R]:
    texts = frozenset(text_of(value) for value in values)
    numbers = frozenset(number for value in values if (number := number_of(value)) is not None)

    def is_one(record: R) -> bool:
        value = read(record)
        if value is None:
            return False
        return text_of(value) in texts or (bool(numbers) and number_of(value) in numbers)

    return is_one
