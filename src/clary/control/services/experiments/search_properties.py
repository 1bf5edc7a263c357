"""Check of the properties that a search names: properties of the resource's structure in SearchRecord. Pure.

Where: `search_calls` checks a request with this before it reads records. A filter on an unknown property would match no
record, or with NotEquals and NotExists every record, without an error.
Source: Filter ("You must specify a valid property for the resource"), VisibilityConditions and SearchRecord (API
reference).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from clary.base.errors import WireError
from clary.control.wire.models import service

OPEN = ("metrics",)  # structure whose members have names that programs choose; training jobs have it, too
TAGS = "tags."
MAX_SHOWN = 100  # maximum number of characters of a property quoted in a refusal
_NAMES = ({"Key", "Value"}, {"MetricName"})  # members of list items that `search_filters` finds by name


def check_properties(
    member: str,
    expression: Mapping[str, Any] | None,
    *,
    sort_by: str | None = None,
    conditions: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Refuse properties that records of a resource never have. Raises: WireError(ValidationException).

    Args:
        member: member of SearchRecord that holds the records.
        expression: SearchExpression.
        sort_by: SortBy.
        conditions: VisibilityConditions.
    """
    shape = service("sagemaker").model.shape_for("SearchRecord").members[member]
    for name in _named(expression or {}):
        _check(shape, name, "SearchExpression")
    if sort_by is not None:
        _check(shape, sort_by, "SortBy")
    for condition in conditions:
        key = condition.get("Key", "")
        if not key.lower().startswith(TAGS):
            raise WireError(
                "ValidationException", f"VisibilityConditions: Key must be Tags.<key>, got {key[:MAX_SHOWN]!r}."
            )


def _named(expression: Mapping[str, Any]) -> Iterator[str]:
    for item in expression.get("Filters") or ():
        yield item["Name"]
    for nested in expression.get("NestedFilters") or ():
        yield nested["NestedPropertyName"]
        for item in nested["Filters"]:
            yield item["Name"]
    for inner in expression.get("SubExpressions") or ():
        yield from _named(inner)


def _check(shape: Any, name: str, where: str) -> None:
    path = name.lower()
    if path.partition(".")[0] in OPEN or _leads_somewhere(shape, path):
        return
    known = {one.lower(): one for one in shape.members}
    near = get_close_matches(path, known, n=1)
    hint = f"; did you mean {known[near[0]]}?" if near else ""
    raise WireError(
        "ValidationException",
        f"Invalid {where}: {shape.name} has no property {name[:MAX_SHOWN]!r}{hint}",
    )


def _leads_somewhere(shape: Any, rest: str) -> bool:
    """Whether records of a shape may have a value at a path, which is given in lower case."""
    if not rest or shape.type_name == "map":
        return True
    if shape.type_name == "list":
        is_named = any(names <= set(getattr(shape.member, "members", ())) for names in _NAMES)
        return is_named or _leads_somewhere(shape.member, rest)
    if shape.type_name != "structure":
        return False
    return any(
        _leads_somewhere(inner, rest[len(name) + 1 :])
        for name, inner in shape.members.items()
        if rest == name.lower() or rest.startswith(f"{name.lower()}.")
    )
