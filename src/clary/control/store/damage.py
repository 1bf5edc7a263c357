"""Rows that cannot be read: how they are recognised, and how a query names them.

Where: whatever turns rows into objects does it through `readable`. A question that meets damaged rows raises
`RowsUnreadable`; the store sets those rows aside (`quarantine`) and asks again. So one row spoils one answer at most,
never a start of the service and never its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Table

from clary.base.errors import ContractError, Fault, StoreError

T = TypeVar("T")

MAX_REASON_CHARACTERS = 400
# What parsing raises on bytes that nobody wrote: JSON and encodings (ValueError), types, members, numbers, depth.
DAMAGE = (ContractError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, kw_only=True)
class DamagedRow:
    """One row that cannot be read."""

    table: str
    key: Mapping[str, Any]  # column -> value, which finds the row; `rowid` in SQLite for a row whose key is damaged
    name: str  # what people call it: a job's name, or the key in words
    reason: str


class RowsUnreadable(StoreError):
    """A question met damaged rows; they are to be set aside before it is asked again."""

    def __init__(self, rows: Iterable[DamagedRow]) -> None:
        self.rows = tuple(rows)
        first = self.rows[0]
        super().__init__(
            f"{len(self.rows)} rows cannot be read, the first in {first.table} ({first.name}): {first.reason}",
            fault=Fault.INFRASTRUCTURE,
        )


class JobUnreadable(StoreError):
    """Error for a job whose record is set aside; the message names the time, the reason and the remedy."""

    def __init__(self, name: str, *, entry: int, reason: str, found_at: str) -> None:
        super().__init__(
            f"The record of training job {name!r} cannot be read and was set aside on {found_at}: {reason}. "
            f"See it with: clary quarantine show {entry}; mend it and take it back with: clary quarantine release "
            f"{entry}; give it up with: clary quarantine drop {entry}",
            fault=Fault.INFRASTRUCTURE,
        )
        self.job_name = name


def readable(
    rows: Iterable[Any],
    build: Callable[[Any], T],
    *,
    table: Table,
    key: Callable[[Any], Mapping[str, Any]],
) -> list[T]:
    """Return the result of `build` for each row.

    Args:
        rows: of one answer.
        build: raises one of `DAMAGE` for a row that no release can have written.
        table: where the rows stand.
        key: names the columns that find a row.

    Raises: RowsUnreadable with all rows that could not be read.
    """
    found: list[T] = []
    damaged: list[DamagedRow] = []
    for row in rows:
        try:
            found.append(build(row))
        except DAMAGE as error:
            where = dict(key(row))
            damaged.append(DamagedRow(table=table.name, key=where, name=words_of(where), reason=reason_of(error)))
    if damaged:
        raise RowsUnreadable(damaged)
    return found


def words_of(key: Mapping[str, Any]) -> str:
    """Return a key as people read it."""
    if set(key) == {"name"}:
        return storable(str(key["name"]))
    return storable(", ".join(f"{column} {value}" for column, value in key.items()))


def reason_of(error: BaseException) -> str:
    """Return in one line why a row could not be read."""
    words = error.message if isinstance(error, StoreError | ContractError) else f"{type(error).__name__}: {error}"
    return storable(" ".join(words.split()))[:MAX_REASON_CHARACTERS]


def storable(words: str) -> str:
    """Return a text in a form that every database takes: without NUL characters, with lone surrogates escaped."""
    return words.replace("\0", "").encode("utf-8", "backslashreplace").decode()
