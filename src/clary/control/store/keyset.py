"""Pages of rows; each begins after the previous page's last sort key, so inserts and deletes shift no row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, or_


def after_key(order: Sequence[ColumnElement[Any]], after: Sequence[Any], *, descending: bool) -> ColumnElement[bool]:
    """Return the SQL condition that a row follows the key `after` in the sort order.

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
