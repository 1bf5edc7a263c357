"""ListTrainingJobs as a query of the database: filters, order, and pages that continue after a key.

Where: `Store.list_jobs` passes a `JobQuery` and the key in its page token, and gets the statement for one page. A page
begins after the sort key and name of the previous page's last row, so rows do not shift if jobs are created or deleted
between two pages.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, func, or_, select

from clary.base.errors import Fault, StoreError
from clary.base.plain import from_plain
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus, WarmPoolStatus
from clary.control.jobs.training_job import WarmPool
from clary.control.store.tables import from_microseconds, jobs, to_microseconds

MAX_RESULTS = 100  # ListTrainingJobs, MaxResults


class SortBy(StrEnum):
    """Sort order of jobs; equal jobs are sorted by name."""

    NAME = "Name"
    CREATION_TIME = "CreationTime"
    STATUS = "Status"


@dataclass(frozen=True, kw_only=True)
class JobQuery:
    """A query of jobs: filters, order and page; every filter that is not None must hold. Time bounds are exclusive."""

    name_contains: str | None = None  # case-sensitive
    status_equals: TrainingJobStatus | None = None
    warm_pool_status_equals: WarmPoolStatus | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    modified_after: datetime | None = None
    modified_before: datetime | None = None
    sort_by: SortBy = SortBy.CREATION_TIME
    descending: bool = False
    max_results: int = MAX_RESULTS  # 1 to 100; may differ from page to page
    next_token: str | None = None  # of the previous page of the same query

    def identity(self) -> dict[str, Any]:
        """Return the query's identity, to which page tokens are bound: all members except those for one page."""
        times = {
            name: None if moment is None else to_microseconds(moment)
            for name, moment in (
                ("created_after", self.created_after),
                ("created_before", self.created_before),
                ("modified_after", self.modified_after),
                ("modified_before", self.modified_before),
            )
        }
        return {
            "list": "jobs",
            "name_contains": self.name_contains,
            "status_equals": self.status_equals,
            "warm_pool_status_equals": self.warm_pool_status_equals,
            "sort_by": self.sort_by,
            "descending": self.descending,
            **times,
        }


@dataclass(frozen=True, kw_only=True)
class JobSummary:
    """One row of ListTrainingJobs."""

    name: str
    arn: str
    status: TrainingJobStatus
    secondary_status: SecondaryStatus
    created_at: datetime
    modified_at: datetime
    training_ended_at: datetime | None
    warm_pool: WarmPool | None


@dataclass(frozen=True, kw_only=True)
class JobPage:
    """One page; `next_token` is None on the last one."""

    summaries: tuple[JobSummary, ...]
    next_token: str | None


_NOT_SHOWN = frozenset({"document", "version", "is_terminal", "is_released", "is_quarantined"})
_SORT_COLUMNS: dict[SortBy, ColumnElement[Any] | None] = {
    SortBy.NAME: None,  # no further key: the name is the last key of every order
    SortBy.CREATION_TIME: jobs.c.created_at,
    SortBy.STATUS: jobs.c.status,
}
_CONTAINS = {"sqlite": func.instr, "postgresql": func.strpos}  # LIKE would ignore case in SQLite


def page_statement(query: JobQuery, *, after: list[Any] | None, dialect: str) -> Select[Any]:
    """Return the statement for one page and one row more, which shows whether another page follows.

    Args:
        query: filters, order and page.
        after: `key_of` the last row of the previous page; None for the first page.
        dialect: sqlite or postgresql.

    Raises: StoreError if `max_results` is out of range.
    """
    if not 1 <= query.max_results <= MAX_RESULTS:
        raise StoreError(
            f"max_results must be 1 to {MAX_RESULTS}, got {query.max_results}: ask for less and use the page token",
            fault=Fault.USER,
        )
    sort_column = _SORT_COLUMNS[query.sort_by]
    order: list[ColumnElement[Any]] = [jobs.c.name] if sort_column is None else [sort_column, jobs.c.name]
    columns = [column for column in jobs.c if column.name not in _NOT_SHOWN]
    statement = select(*columns).where(jobs.c.is_quarantined == 0, *_filters(query, dialect=dialect))
    if after is not None:
        statement = statement.where(_follows(order, after, descending=query.descending))
    statement = statement.order_by(*(column.desc() if query.descending else column.asc() for column in order))
    return statement.limit(query.max_results + 1)


def key_of(row: Row[Any], query: JobQuery) -> list[Any]:
    """Return the sort key of a row, for a page token."""
    sort_column = _SORT_COLUMNS[query.sort_by]
    return [row.name] if sort_column is None else [row._mapping[sort_column], row.name]


def summary_of(row: Row[Any]) -> JobSummary:
    """Return a row of `page_statement` as a summary."""
    return JobSummary(
        name=row.name,
        arn=row.arn,
        status=TrainingJobStatus(row.status),
        secondary_status=SecondaryStatus(row.secondary_status),
        created_at=from_microseconds(row.created_at),
        modified_at=from_microseconds(row.modified_at),
        training_ended_at=None if row.training_ended_at is None else from_microseconds(row.training_ended_at),
        warm_pool=None if row.warm_pool is None else from_plain(WarmPool, json.loads(row.warm_pool)),
    )


def _filters(query: JobQuery, *, dialect: str) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if query.name_contains is not None:
        found.append(_CONTAINS[dialect](jobs.c.name, query.name_contains) > 0)
    if query.status_equals is not None:
        found.append(jobs.c.status == query.status_equals.value)
    if query.warm_pool_status_equals is not None:
        found.append(jobs.c.warm_pool_status == query.warm_pool_status_equals.value)
    if query.created_after is not None:
        found.append(jobs.c.created_at > to_microseconds(query.created_after))
    if query.created_before is not None:
        found.append(jobs.c.created_at < to_microseconds(query.created_before))
    if query.modified_after is not None:
        found.append(jobs.c.modified_at > to_microseconds(query.modified_after))
    if query.modified_before is not None:
        found.append(jobs.c.modified_at < to_microseconds(query.modified_before))
    return found


def _follows(order: list[ColumnElement[Any]], after: list[Any], *, descending: bool) -> ColumnElement[bool]:
    """Return the SQL condition that a row follows the key `after` in `order`."""
    beyond: list[ColumnElement[bool]] = [
        column < value if descending else column > value for column, value in zip(order, after, strict=True)
    ]
    if len(order) == 1:
        return beyond[0]
    return or_(beyond[0], and_(order[0] == after[0], beyond[1]))
