"""Cards of jobs: the columns of job lists, in a narrow table that a search reads completely in milliseconds.

Where: `Store` writes a job's card in the transaction that writes the job, if the card has changed; `Store.cards`
reads pages of them. The documents of jobs have many kilobytes, and no index finds words within them.

A page begins after the sort key and name of the previous page's last row, so rows do not shift if jobs are created or
deleted between two pages. `skip` reaches a distant page without requests for the pages in between.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, case, func, literal, or_, select, text

from clary.base.errors import Fault, StoreError
from clary.base.plain import to_plain
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.job_state import JobState, job_state
from clary.control.jobs.training_job import TrainingJob
from clary.control.store import tokens
from clary.control.store.damage import readable
from clary.control.store.series_blocks import Runner
from clary.control.store.tables import from_microseconds, job_cards, tags, to_microseconds

MAX_CARDS = 500  # most cards of one page
MAX_CARD_METRICS = 8  # a row of the list has no room for more
MAX_NAMES_FOUND = 10_000  # most `also_found` names in a query; databases accept some 30,000
_MICROSECONDS = 1_000_000
_CONTAINS = {"sqlite": func.instr, "postgresql": func.strpos}  # LIKE has wildcards

_COLUMNS = (
    "name",
    "arn",
    "status",
    "secondary_status",
    "state",
    "created_at",
    "started_at",
    "ended_at",
    "num_hosts",
    "instance_type",
    "failure_reason",
    "metrics",
    "words",
)
UPSERT_CARD = text(
    f"INSERT INTO job_cards ({', '.join(_COLUMNS)}) VALUES ({', '.join(':' + name for name in _COLUMNS)})"  # noqa: S608 - names of columns
    f" ON CONFLICT (name) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _COLUMNS[1:])}"
)


class CardOrder(StrEnum):
    """Sort order of cards; equal cards are sorted by name."""

    NAME = "name"
    CREATED = "created"
    STATUS = "status"  # by state, in the order in which a job passes through the states
    DURATION = "duration"  # from start to end, or to now; 0 before the start


@dataclass(frozen=True, kw_only=True)
class CardQuery:
    """A query of cards: filters, order and page."""

    search: str = ""  # text in name, statuses, state, instance type or failure reason; case is ignored
    also_found: tuple[str, ...] = ()  # names of jobs whose reason for waiting matches; cards do not contain that reason
    status: TrainingJobStatus | None = None
    state: JobState | None = None  # finer than status: jobs in progress are queued, starting or running
    order: CardOrder = CardOrder.CREATED
    descending: bool = True
    limit: int = 100  # 1 to MAX_CARDS; may differ from page to page
    token: str | None = None  # of the previous page of the same query
    skip: int = 0  # cards to skip, from the first one or from the token's position

    def identity(self) -> dict[str, Any]:
        """Return the query's identity, to which page tokens are bound: its search, filters and order."""
        return {
            "list": "cards",
            "search": self.search,
            "status": self.status,
            "state": self.state,
            "order": self.order,
            "descending": self.descending,
        }


@dataclass(frozen=True, kw_only=True)
class JobCard:
    """One row of a list of jobs."""

    name: str
    status: str
    secondary_status: str
    state: JobState
    created_at: datetime
    started_at: datetime | None  # start of the training
    ended_at: datetime | None
    duration_s: float | None  # from start to end, or to now; None for a job that has not started
    num_hosts: int
    instance_type: str  # several, separated by commas, for a job with groups
    failure_reason: str
    metrics: tuple[Mapping[str, Any], ...]  # name and last value; NaN is possible
    tags: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class CardPage:
    """One page; `next_token` is None on the last one."""

    cards: tuple[JobCard, ...]
    counts: Mapping[str, int]  # status -> number of jobs that match the search alone
    states: Mapping[str, int]  # state -> number of jobs that match the search alone
    next_token: str | None


def card_row(job: TrainingJob) -> dict[str, Any]:
    """Return a job's card as a row of the table."""
    groups = JobRequest(job.request).instance_groups
    instance_type = _storable(", ".join(dict.fromkeys(group.instance_type for group in groups if group.instance_type)))
    reason = _storable(job.failure.reason if job.failure is not None else "")
    # A job that was stopped before its training began has no end of training; the time of its last change counts.
    ended_at = job.training_ended_at or (job.modified_at if job.is_terminal else None)
    state = job_state(job)
    told = [job.status.value, job.secondary_status.value, state.value]
    if state is JobState.QUEUED and job.secondary_status is SecondaryStatus.STARTING:
        told = [job.status.value, state.value]  # AWS's status says Starting, but the job still waits in the queue
    words = "\n".join((job.name, *told, instance_type, reason))
    last = [{"name": metric.name, "value": metric.value} for metric in job.final_metrics[:MAX_CARD_METRICS]]
    return {
        "name": job.name,
        "arn": job.arn,
        "status": job.status.value,
        "secondary_status": job.secondary_status.value,
        "state": state.value,
        "created_at": to_microseconds(job.created_at),
        "started_at": _microseconds(job.training_started_at),
        "ended_at": _microseconds(ended_at),
        "num_hosts": sum(group.instance_count for group in groups),
        "instance_type": instance_type,
        "failure_reason": reason,
        "metrics": json.dumps(to_plain(last), separators=(",", ":")),
        "words": words.lower(),
    }


class JobCards:
    """Reads pages of cards from the database.

    Args:
        read: runs queries on the database.
        token_key: signs page tokens.
    """

    def __init__(self, *, read: Runner, token_key: bytes) -> None:
        self._read = read
        self._token_key = token_key

    async def page(self, query: CardQuery, *, now: datetime) -> CardPage:
        """Return one page, with the numbers of jobs by status and by state.

        Args:
            query: filters, order and page.
            now: time up to which the durations of running jobs are counted.

        Raises: BadToken for a token that is forged or belongs to another query; StoreError for a bad limit.
        """
        if not 1 <= query.limit <= MAX_CARDS:
            raise StoreError(f"limit must be 1 to {MAX_CARDS}, got {query.limit}", fault=Fault.USER)
        after, now_us, identity = None, to_microseconds(now), query.identity()
        key_us = now_us
        if query.token is not None:
            key_us, *after = tokens.read_token(self._token_key, query.token, query=identity)

        def find(connection: Connection) -> CardPage:
            dialect = connection.dialect.name
            rows = connection.execute(_page_statement(query, after=after, now_us=key_us, dialect=dialect)).all()
            next_token = None
            if len(rows) > query.limit:
                rows = rows[: query.limit]
                position = [key_us, rows[-1].sort_key, rows[-1].name]
                next_token = tokens.make_token(self._token_key, query=identity, position=position)
            own_tags = _tags_of(connection, [row.arn for row in rows])
            cards = readable(
                rows,
                lambda row: _card_of(row, own_tags.get(row.arn, {}), now_us=now_us),
                table=job_cards,
                key=lambda row: {"name": row.name},
            )
            by_status, by_state = _counts_of(connection, query)
            return CardPage(cards=tuple(cards), counts=by_status, states=by_state, next_token=next_token)

        return await self._read(find)


def _page_statement(query: CardQuery, *, after: list[Any] | None, now_us: int, dialect: str) -> Select[Any]:
    """Return the statement for one page and one more row; its column `sort_key` has the value to sort by."""
    key = _sort_key(query.order, now_us)
    statement = select(*job_cards.c, key.label("sort_key")).where(*_filters(query, dialect=dialect))
    if query.status is not None:
        statement = statement.where(job_cards.c.status == query.status.value)
    if query.state is not None:
        statement = statement.where(job_cards.c.state == query.state.value)
    if after is not None:
        last_key, last_name = after
        columns = ((key, last_key), (job_cards.c.name, last_name))
        beyond = [column < value if query.descending else column > value for column, value in columns]
        statement = statement.where(or_(beyond[0], and_(key == last_key, beyond[1])))
    order = (key, job_cards.c.name)
    statement = statement.order_by(*(part.desc() if query.descending else part.asc() for part in order))
    return statement.limit(query.limit + 1).offset(query.skip or None)


def _counts_of(connection: Connection, query: CardQuery) -> tuple[dict[str, int], dict[str, int]]:
    """Return the numbers of jobs that match the search, by status and by state."""
    both = (job_cards.c.status, job_cards.c.state)
    statement = select(*both, func.count()).where(*_filters(query, dialect=connection.dialect.name))
    by_status, by_state = Counter[str](), Counter[str]()
    for status, state, number in connection.execute(statement.group_by(*both)):
        by_status[status] += number
        by_state[state] += number
    return dict(by_status), dict(by_state)


def _tags_of(connection: Connection, arns: list[str]) -> dict[str, dict[str, str]]:
    """Return the tags of resources by ARN."""
    found: dict[str, dict[str, str]] = {}
    statement = select(tags.c.arn, tags.c.tag_key, tags.c.tag_value).where(tags.c.arn.in_(arns))
    for row in connection.execute(statement.order_by(tags.c.tag_key)):
        found.setdefault(row.arn, {})[row.tag_key] = row.tag_value
    return found


def _card_of(row: Row[Any], own_tags: Mapping[str, str], *, now_us: int) -> JobCard:
    """Return a row of `_page_statement` as a card."""
    duration_us = None if row.started_at is None else (row.ended_at or now_us) - row.started_at
    return JobCard(
        name=row.name,
        status=row.status,
        secondary_status=row.secondary_status,
        state=JobState(row.state),
        created_at=from_microseconds(row.created_at),
        started_at=_moment(row.started_at),
        ended_at=_moment(row.ended_at),
        duration_s=None if duration_us is None else max(0.0, duration_us / _MICROSECONDS),
        num_hosts=row.num_hosts,
        instance_type=row.instance_type,
        failure_reason=row.failure_reason,
        metrics=tuple(json.loads(row.metrics)),
        tags=own_tags,
    )


def _sort_key(order: CardOrder, now_us: int) -> ColumnElement[Any]:
    match order:
        case CardOrder.NAME:
            return job_cards.c.name
        case CardOrder.STATUS:
            return case({state.value: number for number, state in enumerate(JobState)}, value=job_cards.c.state)
        case CardOrder.DURATION:
            # A running job's duration ends at the time of the first page; requests for later pages repeat that time, so
            # that no row moves.
            end = func.coalesce(job_cards.c.ended_at, literal(now_us))
            return end - func.coalesce(job_cards.c.started_at, end)
    return job_cards.c.created_at


def _filters(query: CardQuery, *, dialect: str) -> list[ColumnElement[bool]]:
    if not query.search:
        return []
    contains = _CONTAINS[dialect](job_cards.c.words, query.search.lower()) > 0
    names = query.also_found[:MAX_NAMES_FOUND]
    return [or_(contains, job_cards.c.name.in_(names)) if names else contains]


def _storable(words: str) -> str:
    """Return a text that every database accepts, so that a program's last output cannot prevent its job's end."""
    return words.replace("\0", "").encode("utf-8", "backslashreplace").decode()


def _microseconds(moment: datetime | None) -> int | None:
    return None if moment is None else to_microseconds(moment)


def _moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else from_microseconds(microseconds)
