"""Execution of queries over log lines: their clients, their progress and their results.

Where: `services.log_queries` answers StartQuery and related operations with it. A query reads lines in short time
slices, in the threads of the log store. Each client has one running query at a time, and at most `MAX_RUNNING` queries
of all clients run, one slice at a time in turn; the other queries are Scheduled. Results stay in memory, bounded by
number, size and age, and are lost at a restart.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import partial
from uuid import uuid4

from clary.base.clock import Clock
from clary.base.errors import ClaryError, Fault
from clary.control.insights.evaluation import Evaluation, Row
from clary.control.insights.lines import LogLine
from clary.control.insights.planning import Plan
from clary.control.store.log_files.log_records import LogRecord
from clary.control.store.log_files.logs import LogStore

MAX_RUNNING = 4
MAX_UNFINISHED = 100  # unfinished queries of all clients, as in AWS
MAX_UNFINISHED_PER_CLIENT = 10
MAX_KEPT_PER_CLIENT = 50
MAX_KEPT_CHARACTERS = 64 << 20  # characters of the results of all clients
KEPT_S = 3600.0
SLICE_S = 0.05
WORK_S = 120.0  # limit of the total time of a query's slices, which read some millions of lines a minute
WAIT_S = 900.0  # limit from the start of a query to its end, waits for other queries included

_log = logging.getLogger(__name__)


class QueryStatus(StrEnum):
    """Status of a query, spelt as in GetQueryResults."""

    SCHEDULED = "Scheduled"
    RUNNING = "Running"
    COMPLETE = "Complete"
    FAILED = "Failed"
    CANCELLED = "Cancelled"
    TIMEOUT = "Timeout"


_UNFINISHED = (QueryStatus.SCHEDULED, QueryStatus.RUNNING)


class TooManyQueries(ClaryError):
    """Error for a query beyond the limit of unfinished queries."""

    default_fault = Fault.USER


class QueryNotFound(ClaryError):
    """Error for an id without a query that the client may see."""

    default_fault = Fault.USER


@dataclass(eq=False, kw_only=True)
class LogQuery:
    """One query and its result."""

    query_id: str
    client: str
    text: str
    created_at: datetime
    created_s: float  # monotonic time of creation, which decides when results are dropped
    evaluation: Evaluation
    status: QueryStatus = QueryStatus.SCHEDULED
    reason: str = ""  # why the query failed
    rows: list[Row] = field(default_factory=list)
    num_characters: int = 0
    duration_s: float = 0.0
    task: asyncio.Task[None] | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the query has ended."""
        return self.status not in _UNFINISHED


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A client's query: its text and plan, and which lines the query may read."""

    text: str
    plan: Plan
    prefix: str  # prefix of the names of streams that the client may see
    start_ms: int
    end_ms: int
    log: str  # value of @log


class QueryDesk:
    """Runs queries and keeps their results.

    Args:
        logs: store of the lines.
        clock: gives start times and ages of queries.
    """

    def __init__(self, logs: LogStore, clock: Clock) -> None:
        self._logs = logs
        self._clock = clock
        self._queries: dict[str, LogQuery] = {}  # query id -> query, in the order of their starts
        self._turns: dict[str, asyncio.Lock] = {}  # client with unfinished queries -> lock that lets one of them run
        self._places = asyncio.Semaphore(MAX_RUNNING)
        self._slice = asyncio.Lock()

    def start(self, client: str, asked: Asked) -> str:
        """Begin a query and return its id.

        Raises: TooManyQueries.
        """
        self._forget_old(client)
        unfinished = [query for query in self._queries.values() if not query.is_finished]
        own = sum(query.client == client for query in unfinished)
        if own >= MAX_UNFINISHED_PER_CLIENT or len(unfinished) >= MAX_UNFINISHED:
            raise TooManyQueries(
                f"{own} of your queries and {len(unfinished)} queries of all clients are unfinished; the "
                f"limits are {MAX_UNFINISHED_PER_CLIENT} and {MAX_UNFINISHED}: wait until some have ended, or "
                "stop them with StopQuery"
            )
        query = LogQuery(
            query_id=str(uuid4()),
            client=client,
            text=asked.text,
            created_at=self._clock.now(),
            created_s=self._clock.monotonic(),
            evaluation=Evaluation(asked.plan),
        )
        self._queries[query.query_id] = query
        turn = self._turns.setdefault(client, asyncio.Lock())
        query.task = asyncio.create_task(self._run(query, asked, turn), name=f"log-query:{query.query_id}")
        # As a callback and not within the task, because a task that is cancelled before its first step runs no code.
        query.task.add_done_callback(partial(self._ended, query))
        return query.query_id

    def find(self, client: str | None, query_id: str) -> LogQuery:
        """Return a query that a client may see; client None may see the queries of all clients.

        Raises: QueryNotFound.
        """
        query = self._queries.get(query_id)
        if query is None or client not in (None, query.client) or self._is_old(query):
            raise QueryNotFound(
                f"no query {query_id[:100]!r}: results are kept for {KEPT_S:g} s and {MAX_KEPT_PER_CLIENT} "
                "queries per client, and a restart of the service forgets them; start the query again"
            )
        return query

    def queries(self, client: str | None) -> list[LogQuery]:
        """Return the queries that a client may see, the newest first."""
        return [
            query
            for query in reversed(self._queries.values())
            if client in (None, query.client) and not self._is_old(query)
        ]

    def stop(self, query: LogQuery) -> bool:
        """End a query; return False if it has ended already."""
        if query.is_finished:
            return False
        query.status = QueryStatus.CANCELLED
        if query.task is not None:
            query.task.cancel()
        return True

    async def close(self) -> None:
        """Cancel every query and wait until all have ended."""
        tasks = [query.task for query in self._queries.values() if query.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, query: LogQuery, asked: Asked, turn: asyncio.Lock) -> None:
        started_s = self._clock.monotonic()
        try:
            async with asyncio.timeout(WAIT_S), turn, self._places:
                query.status = QueryStatus.RUNNING
                started_s = self._clock.monotonic()
                is_whole = await self._look(query, asked)
                query.rows = await asyncio.to_thread(query.evaluation.rows)
                query.status = QueryStatus.COMPLETE if is_whole else QueryStatus.TIMEOUT
        except asyncio.CancelledError:
            query.status = QueryStatus.CANCELLED
        except TimeoutError:
            query.status = QueryStatus.TIMEOUT
        except ClaryError as error:
            query.status, query.reason = QueryStatus.FAILED, error.message
            _log.info("query %s of log lines failed: %s", query.query_id, error.message)
        finally:
            query.duration_s = self._clock.monotonic() - started_s

    async def _look(self, query: LogQuery, asked: Asked) -> bool:
        """Pass lines to a query; return False if its time ran out first."""
        scan = self._logs.scan(asked.prefix, start_ms=asked.start_ms, end_ms=asked.end_ms)
        evaluation = query.evaluation

        def take(stream: str, record: LogRecord) -> None:
            line = LogLine(asked.log, stream, record.sequence, record.at_ms, record.ingestion_ms, record.message)
            evaluation.take(line, size_bytes=record.size_bytes)

        worked_s = 0.0
        while worked_s < WORK_S:
            async with self._slice:
                began_s = self._clock.monotonic()
                if await self._logs.advance(scan, take, budget_s=SLICE_S):
                    return True
                # A slice counts at least SLICE_S, because with a clock that stands still a query would never end.
                worked_s += max(self._clock.monotonic() - began_s, SLICE_S)
        return False

    def _ended(self, query: LogQuery, task: asyncio.Task[None]) -> None:
        """Drop the state of an ended query, and old results until all results fit into `MAX_KEPT_CHARACTERS`."""
        query.task = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # A defect of the service, after which the query must not stay Running for ever.
            query.status, query.reason = QueryStatus.FAILED, f"{type(error).__name__} within the service; see its log"
            _log.error("query %s of log lines failed", query.query_id, exc_info=error)
        query.evaluation.drop()
        query.num_characters = len(query.text) + sum(len(name) + len(text) for row in query.rows for name, text in row)
        if all(other.is_finished for other in self._queries.values() if other.client == query.client):
            self._turns.pop(query.client, None)
        taken = sum(other.num_characters for other in self._queries.values())
        for other in list(self._queries.values()):
            if taken <= MAX_KEPT_CHARACTERS:
                return
            if other.is_finished and other is not query:
                taken -= other.num_characters
                del self._queries[other.query_id]

    def _forget_old(self, client: str) -> None:
        for query in [query for query in self._queries.values() if self._is_old(query)]:
            del self._queries[query.query_id]
        own = [query for query in self._queries.values() if query.client == client and query.is_finished]
        for query in own[: max(0, len(own) - MAX_KEPT_PER_CLIENT + 1)]:
            del self._queries[query.query_id]

    def _is_old(self, query: LogQuery) -> bool:
        return query.is_finished and self._clock.monotonic() - query.created_s > KEPT_S
