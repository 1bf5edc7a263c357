"""Search expressions over records that have the members of the API's descriptions. Pure.

Where: `search_calls` evaluates them; tests compare them with an oracle. A property is a path of member names, in upper
or lower case: `Metrics.loss.Last`, `Tags.team`, `HyperParameters.lr`. A path through a list may lead to many values: a
filter holds if one of the values matches. NotEquals and NotExists hold if no value matches the opposite filter.
Source: Filter, NestedFilters and SearchExpression of the API reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from clary.base.errors import WireError

Record = Mapping[str, Any]
ORDERS = {
    "GreaterThan": lambda left, right: left > right,
    "GreaterThanOrEqualTo": lambda left, right: left >= right,
    "LessThan": lambda left, right: left < right,
    "LessThanOrEqualTo": lambda left, right: left <= right,
}
PRESENCE = ("Exists", "NotExists")
MAX_DEPTH = 5  # depth of nested expressions
_PARAMETER = ({"NumberValue"}, {"StringValue"})


def check(expression: Mapping[str, Any] | None, *, depth: int = 1) -> None:
    """Refuse an invalid expression; raises WireError(ValidationException)."""
    if expression is None:
        return
    if depth > MAX_DEPTH:
        raise _invalid(f"SubExpressions are nested deeper than {MAX_DEPTH} levels.")
    for item in expression.get("Filters") or ():
        _check_filter(item)
    for nested in expression.get("NestedFilters") or ():
        prefix = nested["NestedPropertyName"].lower() + "."
        for item in nested["Filters"]:
            _check_filter(item)
            if not item["Name"].lower().startswith(prefix):
                raise _invalid(f"a filter of NestedFilters must begin with {prefix}, got {item['Name']}.")
    for inner in expression.get("SubExpressions") or ():
        check(inner, depth=depth + 1)


def matches(record: Record, expression: Mapping[str, Any] | None) -> bool:
    """Return whether a checked expression holds; an empty expression always holds."""
    if not expression:
        return True
    found = [_filter_holds(record, item["Name"], item) for item in expression.get("Filters") or ()]
    found += [_nested_holds(record, nested) for nested in expression.get("NestedFilters") or ()]
    found += [matches(record, inner) for inner in expression.get("SubExpressions") or ()]
    if not found:
        return True
    return any(found) if expression.get("Operator", "And") == "Or" else all(found)


def is_visible(record: Record, conditions: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether VisibilityConditions show a record: it has each key's wanted value, or lacks the key."""
    for condition in conditions:
        found = list(values_at(record, condition.get("Key", "")))
        if found and condition.get("Value", "") not in found:
            return False
    return True


def sort_value(record: Record, path: str) -> tuple[int, Any] | None:
    """Return the sort key of a record: (0, number) or (1, text); None if it lacks the property."""
    for value in values_at(record, path):
        if isinstance(value, datetime):
            return 0, value.timestamp()
        number = as_number(value)
        if number is not None:
            return 0, number
        if isinstance(value, str):
            return 1, value
    return None


def values_at(record: Record, path: str) -> Iterator[Any]:
    """Return the values at a path; a value may be a structure."""
    yield from _walk(record, path.lower())


def as_number(value: Any) -> float | None:
    """Return a number, or the number that a text contains; None for other values."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if number == number else None


def _walk(value: Any, rest: str) -> Iterator[Any]:
    if isinstance(value, Mapping):
        if not rest:
            yield _plain(value)
            return
        for name, inner in value.items():
            lowered = name.lower()
            if rest == lowered:
                yield from _walk(inner, "")
            elif rest.startswith(lowered + "."):
                yield from _walk(inner, rest[len(lowered) + 1 :])
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _walk(_named(item, rest), rest)
    elif not rest and value is not None:
        yield value


def _named(item: Any, rest: str) -> Any:
    """Return an item of a list under its own name, if it has one: a tag under its key, a metric under its name."""
    if not rest or not isinstance(item, Mapping):
        return item
    if item.keys() == {"Key", "Value"}:
        return {**item, item["Key"]: item["Value"]}
    return {**item, item["MetricName"]: item} if "MetricName" in item else item


def _plain(value: Mapping[str, Any]) -> Any:
    """Return the value that a small structure represents; any other structure is returned unchanged."""
    if value.keys() in _PARAMETER:
        return next(iter(value.values()))
    for name in ("Last", "Value"):  # `Last` of a metric's summary; `Value` of a metric, an artifact and a tag
        if name in value:
            return value[name]
    return value


def _nested_holds(record: Record, nested: Mapping[str, Any]) -> bool:
    """Whether a single item of a list matches all filters."""
    name = nested["NestedPropertyName"]
    return any(
        all(_filter_holds(member, item["Name"][len(name) + 1 :], item) for item in nested["Filters"])
        for member in _members(record, name.lower())
    )


def _members(value: Any, rest: str) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        if not rest:
            yield value
            return
        for name, inner in value.items():
            lowered = name.lower()
            if rest == lowered:
                yield from _members(inner, "")
            elif rest.startswith(lowered + "."):
                yield from _members(inner, rest[len(lowered) + 1 :])
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _members(item, rest)


def _filter_holds(record: Record, path: str, item: Mapping[str, Any]) -> bool:
    operator, wanted = item.get("Operator", "Equals"), item.get("Value", "")
    found = list(values_at(record, path))
    match operator:
        case "Exists":
            return bool(found)
        case "NotExists":
            return not found
        case "Equals":
            return any(_equals(value, wanted) for value in found)
        case "NotEquals":
            return not any(_equals(value, wanted) for value in found)
        case "Contains":
            return any(isinstance(value, str) and wanted in value for value in found)
        case "In":
            choices = [choice.strip() for choice in wanted.split(",")]
            return any(_equals(value, choice) for value in found for choice in choices)
        case _:
            return any(_is_ordered(value, operator, wanted) for value in found)


def _equals(value: Any, wanted: str) -> bool:
    if isinstance(value, bool):
        return wanted.lower() == str(value).lower()
    if isinstance(value, str):
        return value == wanted
    if isinstance(value, datetime):
        return value == _as_time(wanted)
    if isinstance(value, int | float):
        return as_number(wanted) == float(value)
    return False


def _is_ordered(value: Any, operator: str, wanted: str) -> bool:
    left: Any
    right: Any
    if isinstance(value, datetime):
        left, right = value, _as_time(wanted)
    else:
        left, right = as_number(value), as_number(wanted)
    if left is None or right is None:
        return False
    return bool(ORDERS[operator](left, right))


def _as_time(text: str) -> datetime | None:
    """Parse a time in ISO 8601, or in seconds since 1970."""
    try:
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except ValueError:
        pass
    number = as_number(text)
    try:
        return None if number is None else datetime.fromtimestamp(number, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _check_filter(item: Mapping[str, Any]) -> None:
    operator, wanted = item.get("Operator", "Equals"), item.get("Value")
    name = item["Name"]
    if operator in PRESENCE:
        if wanted is not None:
            raise _invalid(f"filter on {name}: {operator} takes no Value, got {wanted!r}.")
        return
    if wanted is None:
        raise _invalid(f"filter on {name}: {operator} needs a Value.")
    if operator in ORDERS and as_number(wanted) is None and _as_time(wanted) is None:
        raise _invalid(f"filter on {name}: {operator} compares numbers and ISO 8601 times, got {wanted!r}.")


def _invalid(message: str) -> WireError:
    return WireError("ValidationException", f"Invalid SearchExpression: {message}")
