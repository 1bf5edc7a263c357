"""Pages of rows that continue after the last row's sort key, so that inserts and deletes between pages shift no row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, or_


def after_key(order: Sequence[ColumnElement[Any]], after: Sequence[Any], *, descending: bool) -> ColumnElement[bool]:
    """Return the condition that a row comes after the key `after`.

    Args:
        order: columns by which rows are sorted; together they are unique.
        after: the last row's values of these columns.
        descending: whether all columns sort descending.
    """
    ways = []
    for index, (column, value) in enumerate(zip(order, after, strict=True)):
        same = [earlier == known for earlier, known in zip(order[:index], after[:index], strict=True)]
        ways.append(and_(*same, column < value if descending else column > value))
    return or_(*ways)
