"""Rows that cannot be read: their detection, and the errors that name them.

Where: code that turns rows into objects uses `readable`. A query that meets damaged rows raises `RowsUnreadable`;
the store sets those rows aside (`quarantine`) and repeats the query. So a damaged row blocks neither the start of the
service nor the reading of other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Table

from clary.base.errors import ContractError, Fault, StoreError

T = TypeVar("T")

MAX_REASON_CHARACTERS = 400
# Errors of parsing on damaged bytes: JSON and encodings (ValueError), types, members, numbers, depth.
DAMAGE = (ContractError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, kw_only=True)
class DamagedRow:
    """One row that cannot be read."""

    table: str
    key: Mapping[str, Any]  # column -> value, to find the row; in SQLite `rowid` for a row whose key is damaged
    name: str  # name for users: the job's name, or the key in words
    reason: str


class RowsUnreadable(StoreError):
    """A query met damaged rows; they have to be set aside before it is repeated."""

    def __init__(self, rows: Iterable[DamagedRow]) -> None:
        self.rows = tuple(rows)
        first = self.rows[0]
        super().__init__(
            f"{len(self.rows)} rows cannot be read, the first in {first.table} ({first.name}): {first.reason}",
            fault=Fault.INFRASTRUCTURE,
        )


class JobUnreadable(StoreError):
    """Error for a job whose record was set aside; the message names the time, the reason and the remedy."""

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
        rows: rows of one answer of the database.
        build: makes the result; raises one of `DAMAGE` for a damaged row.
        table: table of the rows.
        key: returns the columns that identify a row.

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
    """Return a key in words, for users."""
    if set(key) == {"name"}:
        return storable(str(key["name"]))
    return storable(", ".join(f"{column} {value}" for column, value in key.items()))


def reason_of(error: BaseException) -> str:
    """Return the reason why a row could not be read, in one line."""
    words = error.message if isinstance(error, StoreError | ContractError) else f"{type(error).__name__}: {error}"
    return storable(" ".join(words.split()))[:MAX_REASON_CHARACTERS]


def storable(words: str) -> str:
    """Return a text in a form that every database takes: without NUL characters, with lone surrogates escaped."""
    return words.replace("\0", "").encode("utf-8", "backslashreplace").decode()
