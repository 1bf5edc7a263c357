"""Tuning jobs and their trials: a document each, and columns for queries.

Where: `Store.tuning`. A trial is written in the transaction that stores its training job (`add_trial`), and only
while its tuning job is in progress; its number stays reserved after the training job was deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, text, true, update

from clary.base.errors import Fault, StoreError
from clary.base.plain import from_plain, to_plain
from clary.control.store import tokens
from clary.control.store.damage import readable
from clary.control.store.keyset import after_key
from clary.control.store.series_blocks import Runner
from clary.control.store.tables import tags, to_microseconds, tuning_jobs, tuning_trials
from clary.control.tuning.tuning_job import Trial, TuningJob, TuningStatus

T = TypeVar("T")

_INSERT_JOB = text(
    "INSERT INTO tuning_jobs (name, status, created_at, modified_at, is_terminal, document)"
    " VALUES (:name, :status, :created_at, :modified_at, :is_terminal, :document) ON CONFLICT (name) DO NOTHING"
)
_INSERT_TRIAL = text(
    "INSERT INTO tuning_trials (tuning_job, number, document) VALUES (:tuning_job, :number, :document)"
    " ON CONFLICT (tuning_job, number) DO NOTHING"
)
_CONTAINS = {"sqlite": func.instr, "postgresql": func.strpos}  # LIKE would ignore case in SQLite


class TuningJobExists(StoreError):
    """A tuning job of that name exists already."""

    def __init__(self, name: str) -> None:
        super().__init__(f"a tuning job {name!r} exists: choose another name", fault=Fault.USER)


class TuningJobNotFound(StoreError):
    """No tuning job of that name exists."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no tuning job {name!r}", fault=Fault.USER)


class TrialRefused(StoreError):
    """A trial was not stored: its number is taken, or its tuning job is not in progress."""


class TuningSort(StrEnum):
    """Sort order of tuning jobs; equal jobs are sorted by name."""

    NAME = "Name"
    STATUS = "Status"
    CREATION_TIME = "CreationTime"


@dataclass(frozen=True, kw_only=True)
class TuningQuery:
    """A query of tuning jobs: filters and order; every filter that is not None must hold.

    Bounds of times are exclusive.
    """

    name_contains: str | None = None
    status: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    modified_after: datetime | None = None
    modified_before: datetime | None = None
    sort: TuningSort = TuningSort.CREATION_TIME
    descending: bool = True

    def identity(self) -> list[Any]:
        """Return the identity of this query; a page token is bound to it."""
        moments = (self.created_after, self.created_before, self.modified_after, self.modified_before)
        times = [None if at is None else to_microseconds(at) for at in moments]
        return ["tuning", self.name_contains, self.status, *times, self.sort.value, self.descending]


def add_trial(connection: Connection, trial: Trial) -> None:
    """Store a trial in the caller's transaction. Raises: TrialRefused; then the caller must roll back."""
    at = tuning_jobs.c.name == trial.tuning_job
    status = connection.execute(select(tuning_jobs.c.status).where(at).with_for_update()).scalar()
    if status != TuningStatus.IN_PROGRESS.value:
        raise TrialRefused(f"tuning job {trial.tuning_job!r} can start no training job: its status is {status}")
    row = {"tuning_job": trial.tuning_job, "number": trial.number, "document": _document(trial)}
    if connection.execute(_INSERT_TRIAL, row).rowcount == 0:
        raise TrialRefused(f"tuning job {trial.tuning_job!r} already has a trial {trial.number}")


class TuningRecords:
    """Tuning jobs and their trials in the database. Every call raises StoreError when the database fails."""

    def __init__(self, *, read: Runner, write: Runner, token_key: bytes) -> None:
        self._read = read
        self._write = write
        self._token_key = token_key

    async def create(self, job: TuningJob, new_tags: Mapping[str, str]) -> None:
        """Store a new tuning job with its tags. Raises: TuningJobExists."""

        def create(connection: Connection) -> None:
            if connection.execute(_INSERT_JOB, _row_of(job)).rowcount == 0:
                raise TuningJobExists(job.name)
            if new_tags:
                rows = [{"arn": job.arn, "tag_key": key, "tag_value": value} for key, value in new_tags.items()]
                connection.execute(insert(tags), rows)

        await self._write(create)

    async def get(self, name: str) -> TuningJob | None:
        """Return the tuning job of that name, or None."""
        found = await self._jobs(tuning_jobs.c.name == name)
        return found[0] if found else None

    async def all(self) -> list[TuningJob]:
        """Return all tuning jobs, the oldest first."""
        return await self._jobs(true())

    async def unfinished(self) -> list[TuningJob]:
        """Return the unfinished tuning jobs, the oldest first."""
        return await self._jobs(tuning_jobs.c.is_terminal == 0)

    async def change(self, name: str, change: Callable[[TuningJob], TuningJob]) -> TuningJob:
        """Read a tuning job, change it and write it back in one transaction; return the stored job.

        Args:
            name: name of the tuning job.
            change: a pure function, which may run again on a newer state.
        Raises: TuningJobNotFound; errors of `change`, and then nothing is written.
        """

        def read_modify_write(connection: Connection) -> TuningJob:
            rows = connection.execute(select(tuning_jobs).where(tuning_jobs.c.name == name).with_for_update()).all()
            if not rows:
                raise TuningJobNotFound(name)
            (current,) = _jobs_of(rows)
            changed = change(current)
            if changed is not current:
                connection.execute(update(tuning_jobs).where(tuning_jobs.c.name == name).values(**_row_of(changed)))
            return changed

        return await self._write(read_modify_write)

    async def remove(self, name: str) -> None:
        """Delete a tuning job with its trials and tags; its training jobs stay. Raises: TuningJobNotFound."""

        def remove(connection: Connection) -> None:
            rows = connection.execute(select(tuning_jobs).where(tuning_jobs.c.name == name)).all()
            if not rows:
                raise TuningJobNotFound(name)
            (job,) = _jobs_of(rows)
            connection.execute(delete(tags).where(tags.c.arn == job.arn))
            connection.execute(delete(tuning_trials).where(tuning_trials.c.tuning_job == name))
            connection.execute(delete(tuning_jobs).where(tuning_jobs.c.name == name))

        await self._write(remove)

    async def trials(self, name: str) -> list[Trial]:
        """Return the trials of a tuning job by number."""
        at = tuning_trials.c.tuning_job == name
        statement = select(tuning_trials).where(at).order_by(tuning_trials.c.number)

        def find(connection: Connection) -> list[Trial]:
            rows = connection.execute(statement)
            return readable(rows, _trial_of, table=tuning_trials, key=_key_of_trial)

        return await self._read(find)

    async def put_trial(self, trial: Trial) -> None:
        """Update a stored trial with its outcome or the reason why it is stopped."""
        at = (tuning_trials.c.tuning_job == trial.tuning_job) & (tuning_trials.c.number == trial.number)
        statement = update(tuning_trials).where(at).values(document=_document(trial))
        await self._write(lambda connection: connection.execute(statement))

    async def page(
        self, query: TuningQuery, *, max_results: int, next_token: str | None
    ) -> tuple[list[TuningJob], str | None]:
        """Return one page of tuning jobs, and the token of the next page or None.

        Args:
            query: filters and order.
            max_results: above 0.
            next_token: token returned with the previous page of the same query; None for the first page.
        Raises: BadToken.
        """
        identity = query.identity()
        after = None if next_token is None else tokens.read_token(self._token_key, next_token, query=identity)
        order: list[ColumnElement[Any]] = [tuning_jobs.c.name]
        first = {TuningSort.STATUS: tuning_jobs.c.status, TuningSort.CREATION_TIME: tuning_jobs.c.created_at}
        if query.sort in first:
            order.insert(0, first[query.sort])

        def find(connection: Connection) -> tuple[list[Row[Any]], list[TuningJob]]:
            statement = select(tuning_jobs).where(*_filters(query, connection.dialect.name))
            if after is not None:
                statement = statement.where(after_key(order, after, descending=query.descending))
            statement = statement.order_by(*(column.desc() if query.descending else column for column in order))
            rows = list(connection.execute(statement.limit(max_results + 1)).all())
            return rows, _jobs_of(rows[:max_results])

        rows, found = await self._read(find)
        if len(rows) <= max_results:
            return found, None
        last = rows[max_results - 1]
        position = [last._mapping[column.name] for column in order]
        return found, tokens.make_token(self._token_key, query=identity, position=position)

    def cut(
        self, items: Sequence[T], *, identity: list[Any], max_results: int, next_token: str | None
    ) -> tuple[Sequence[T], str | None]:
        """Return one page of a list in memory, and the token of the next page or None.

        Args:
            items: all items, in the order of the pages.
            identity: identity of the query; a token is bound to it.
            max_results: above 0.
            next_token: token returned with the previous page; None for the first page.
        Raises: BadToken.
        """
        start = 0
        if next_token is not None:
            (start,) = tokens.read_token(self._token_key, next_token, query=identity)
        page, end = items[start : start + max_results], start + max_results
        if end >= len(items):
            return page, None
        return page, tokens.make_token(self._token_key, query=identity, position=[end])

    async def _jobs(self, condition: ColumnElement[bool]) -> list[TuningJob]:
        statement = select(tuning_jobs).where(condition).order_by(tuning_jobs.c.created_at, tuning_jobs.c.name)

        def find(connection: Connection) -> list[TuningJob]:
            return _jobs_of(connection.execute(statement))

        return await self._read(find)


def _filters(query: TuningQuery, dialect: str) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if query.name_contains is not None:
        found.append(_CONTAINS[dialect](tuning_jobs.c.name, query.name_contains) > 0)
    if query.status is not None:
        found.append(tuning_jobs.c.status == query.status)
    created, modified = tuning_jobs.c.created_at, tuning_jobs.c.modified_at
    if query.created_after is not None:
        found.append(created > to_microseconds(query.created_after))
    if query.created_before is not None:
        found.append(created < to_microseconds(query.created_before))
    if query.modified_after is not None:
        found.append(modified > to_microseconds(query.modified_after))
    if query.modified_before is not None:
        found.append(modified < to_microseconds(query.modified_before))
    return found


def _row_of(job: TuningJob) -> dict[str, Any]:
    return {
        "name": job.name,
        "status": job.status.value,
        "created_at": to_microseconds(job.created_at),
        "modified_at": to_microseconds(job.modified_at),
        "is_terminal": int(job.is_terminal),
        "document": _document(job),
    }


def _document(record: TuningJob | Trial) -> str:
    return json.dumps(to_plain(record), separators=(",", ":"))


def _jobs_of(rows: Iterable[Row[Any]]) -> list[TuningJob]:
    """Return the tuning jobs of rows. Raises: RowsUnreadable."""
    return readable(rows, _job_of, table=tuning_jobs, key=lambda row: {"name": row.name})


def _job_of(row: Row[Any]) -> TuningJob:
    return from_plain(TuningJob, json.loads(row.document))


def _trial_of(row: Row[Any]) -> Trial:
    return from_plain(Trial, json.loads(row.document))


def _key_of_trial(row: Row[Any]) -> Mapping[str, Any]:
    return {"tuning_job": row.tuning_job, "number": row.number}
