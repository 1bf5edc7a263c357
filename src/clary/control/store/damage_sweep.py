"""Finds rows with values that their columns cannot have, such as another type; SQLite stores any value anywhere.

Where: `Store.open` sweeps the table of jobs, since queries would silently skip a job with damaged status columns;
`Store` sweeps every table if a query failed for a reason that names no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlalchemy import Column, Connection, Double, Integer, LargeBinary, Table, text

from clary.base.string_enum import StrEnum
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs.job_state import JobState
from clary.control.jobs.soundness import LATEST
from clary.control.store.damage import DamagedRow, storable
from clary.control.store.tables import job_cards, jobs, metadata, to_microseconds

_NOT_SWEPT = frozenset({"quarantine", "schema_version", "properties", "leases"})
_MOST_ROWS = 1000  # rows found per table in one sweep; the next sweep finds more
_LEAST_TIME = 0
_MOST_TIME = to_microseconds(LATEST)


def sweep_jobs(connection: Connection) -> list[DamagedRow]:
    """Return the damaged rows of the table of jobs; checks columns, not documents; in PostgreSQL, returns no rows."""
    return [] if connection.dialect.name != "sqlite" else list(_sweep(connection, jobs))


def sweep_all(connection: Connection) -> list[DamagedRow]:
    """Return the damaged rows of all tables except `_NOT_SWEPT`; in PostgreSQL, no rows."""
    if connection.dialect.name != "sqlite":  # PostgreSQL refuses values of another type
        return []
    swept = [table for name, table in metadata.tables.items() if name not in _NOT_SWEPT]
    return [row for table in swept for row in _sweep(connection, table)]


def _sweep(connection: Connection, table: Table) -> Iterator[DamagedRow]:
    complaints = {column.name: _sound(column) for column in table.c}
    if table is jobs:
        complaints["status"] += f" AND status IN ({_words(TrainingJobStatus)})"
        complaints["secondary_status"] += f" AND secondary_status IN ({_words(SecondaryStatus)})"
    if table is job_cards:
        complaints["state"] += f" AND state IN ({_words(JobState)})"
    key = [column.name for column in table.primary_key.columns]
    checks = [f"coalesce(NOT ({sound}), 1)" for sound in complaints.values()]
    shown = ", ".join([*key, "rowid AS row_number", *checks])
    passed_over = " AND is_quarantined = 0" if table is jobs else ""
    statement = f"SELECT {shown} FROM {table.name} WHERE ({' OR '.join(checks)}){passed_over} LIMIT {_MOST_ROWS}"  # noqa: S608
    for row in connection.execute(text(statement)):
        wrong = [name for name, is_wrong in zip(complaints, row[len(key) + 1 :], strict=True) if is_wrong]
        words = str(row[0]) if key == ["name"] else ", ".join(f"{name} {row[at]}" for at, name in enumerate(key))
        yield DamagedRow(
            table=table.name,
            key={"rowid": row[len(key)]},
            name=storable(words),
            reason=f"damaged values in {', '.join(wrong)}",
        )


def _sound(column: Column[object]) -> str:
    """Return the condition that holds for every undamaged value of a column."""
    name = column.name
    if isinstance(column.type, Integer):
        condition = f"typeof({name}) = 'integer'"
        if name == "at" or name.endswith("_at"):
            condition += f" AND {name} BETWEEN {_LEAST_TIME} AND {_MOST_TIME}"
        elif name.startswith("is_"):
            condition += f" AND {name} IN (0, 1)"
    elif isinstance(column.type, Double):
        condition = f"typeof({name}) IN ('real', 'integer')"
    elif isinstance(column.type, LargeBinary):
        condition = f"typeof({name}) = 'blob'"
    else:
        condition = f"typeof({name}) = 'text'"
    return f"({name} IS NULL OR ({condition}))" if column.nullable else f"({condition})"


def _words(members: Iterable[StrEnum]) -> str:
    return ", ".join(f"'{member.value}'" for member in members)
