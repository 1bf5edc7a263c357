"""Series of jobs in the database: stores rows exactly once, and answers queries.

Where: the sample gateway appends; CloudWatch's operations and the console's pages read; `series_joining` joins small
blocks. A block holds the rows of one host in one attempt for one stretch of time (`control.series.codec`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, bindparam, func, insert, select, text

from clary.control.series.codec import SeriesDamaged, names_in, pack, unpack
from clary.control.series.queries import (
    ROWS_MS,
    BlockChoice,
    BlockFacts,
    PointGatherer,
    SeriesAnswer,
    SeriesQuery,
    choose,
)
from clary.control.series.tables import SeriesTable, rows_from
from clary.control.store.errors import JobNotFound, SeriesMoved
from clary.control.store.tables import jobs, series_blocks, series_ends

T = TypeVar("T")
Item = TypeVar("Item")
Owner = tuple[str, int, str]  # job, attempt, host

READ_AT_ONCE = 32  # blocks; a large block has some hundred kilobytes
MOST_PACKED_HERE = 10_000  # values that the event loop may pack: a millisecond or two
MAX_LOOKS = 5  # attempts of a read that a joining of blocks may disturb; one more attempt follows

# Lock the jobs against deletion until the rows are written; SQLite has only one writer anyway.
_HOLD_JOBS = (
    select(jobs.c.name)
    .where(jobs.c.name.in_(bindparam("names", expanding=True)))
    .with_for_update(read=True, key_share=True)
)
_OWNER = (series_ends.c.job_name, series_ends.c.attempt, series_ends.c.host)
_READ_ENDS = (
    select(*_OWNER, series_ends.c.next_row, series_ends.c.num_dropped)
    # One condition per column, so that both databases use the key; for a list of triples SQLite would read all rows.
    # The conditions match few unwanted rows, since hosts of all jobs have the same names.
    .where(*(column.in_(bindparam(f"{column.name}s", expanding=True)) for column in _OWNER))
    .order_by(*_OWNER)  # all services lock rows in this order, whatever the order of batches
    .with_for_update()
)
_CLAIM_END = text(
    "INSERT INTO series_ends (job_name, attempt, host, next_row, num_dropped)"
    " VALUES (:job_name, :attempt, :host, 0, 0) ON CONFLICT (job_name, attempt, host) DO NOTHING"
)
_PUT_BLOCKS = insert(series_blocks).inline()  # does not return the blocks' ids
_SET_END = text(
    "INSERT INTO series_ends (job_name, attempt, host, next_row, num_dropped)"
    " VALUES (:job_name, :attempt, :host, :next_row, :num_dropped) ON CONFLICT (job_name, attempt, host)"
    " DO UPDATE SET next_row = excluded.next_row, num_dropped = excluded.num_dropped"
)

_log = logging.getLogger(__name__)


class Runner(Protocol):
    """Runs a function with a connection, on a thread of the store."""

    def __call__(self, act: Callable[[Connection], T], /) -> Coroutine[Any, Any, T]:
        """Return the result of `act`, after its writes are durable."""


class GroupRunner(Protocol):
    """Runs one function on the batched items of many callers, with a connection, on a thread of the store."""

    def __call__(
        self, act: Callable[[Connection, Sequence[Item]], Sequence[T]], item: Item, /
    ) -> Coroutine[Any, Any, T]:
        """Return the result of `act` for this item, after its writes are durable."""


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Rows to be stored together."""

    owner: Owner
    table: SeriesTable
    packed: bytes
    first_row: int
    num_dropped: int


class SeriesBlocks:
    """Blocks of series of a database, as `Store.series`."""

    def __init__(self, *, read: Runner, write: Runner, write_together: GroupRunner) -> None:
        self.read = read
        self.write = write
        self._write_together = write_together

    async def append(
        self, job_name: str, attempt: int, host: str, table: SeriesTable, *, first_row: int, num_dropped: int = 0
    ) -> int:
        """Store rows of a host, each once even if it is sent again; return the number of the next expected row.

        Args:
            job_name: job of the host.
            attempt: number of the attempt; the row numbers of each attempt begin at 0.
            host: algo-N.
            table: rows in order of their numbers.
            first_row: number of the first row; missing rows before it were dropped.
            num_dropped: number of rows that the agent has dropped.

        Raises: JobNotFound.
        """
        is_large = table.num_rows * len(table.columns) > MOST_PACKED_HERE
        packed = await asyncio.to_thread(pack, table) if is_large else pack(table)
        batch = _Batch(
            owner=(job_name, attempt, host), table=table, packed=packed, first_row=first_row, num_dropped=num_dropped
        )
        await asyncio.sleep(0)  # lets other received batches share the transaction
        return await self._write_together(_put, batch)

    async def query(self, query: SeriesQuery) -> SeriesAnswer:
        """Return the points of a query; the answer names damaged blocks and omits their points.

        Raises: ContractError if the answer would have too many points; SeriesMoved if blocks moved in every attempt.
        """

        def ask(connection: Connection) -> SeriesAnswer:
            for _ in range(MAX_LOOKS):
                try:
                    return _answer(connection, query)
                except SeriesMoved:
                    continue
            return _answer(connection, query)

        return await self.read(ask)

    async def names(self, job_name: str) -> dict[str, list[str]]:
        """Return for each host the names of the series in its newest block."""
        newest = (
            select(func.max(series_blocks.c.id))
            .where(series_blocks.c.job_name == job_name)
            .group_by(series_blocks.c.host)
        )
        statement = select(series_blocks.c.host, series_blocks.c.data).where(series_blocks.c.id.in_(newest))

        def ask(connection: Connection) -> dict[str, list[str]]:
            found = {}
            for host, data in connection.execute(statement):
                try:
                    found[host] = names_in(data)
                except SeriesDamaged as damage:
                    _log.warning("job %s, host %s: %s", job_name, host, damage.message)
            return found

        return await self.read(ask)

    async def num_dropped(self, job_name: str) -> int:
        """Return the number of rows that a job's agents have dropped, in all attempts."""
        statement = select(func.sum(series_ends.c.num_dropped)).where(series_ends.c.job_name == job_name)
        return await self.read(lambda connection: int(connection.execute(statement).scalar() or 0))


def _put(connection: Connection, batches: Sequence[_Batch]) -> list[int]:
    """Store the new rows of batches; return the next row number of each batch's host. Raises: JobNotFound."""
    names = {batch.owner[0] for batch in batches}
    missing = names.difference(connection.execute(_HOLD_JOBS, {"names": sorted(names)}).scalars())
    if missing:
        raise JobNotFound(min(missing))
    owners = {batch.owner for batch in batches}
    ends = _ends_of(connection, owners)
    if new := sorted(owners - ends.keys()):
        # Two services may store a host's first rows at once, when there is no row yet to lock: the second waits here
        # for the first, and then reads what that one stored.
        connection.execute(_CLAIM_END, [_named(owner) for owner in new])
        ends |= _ends_of(connection, new)
    changed: set[Owner] = set()
    blocks, next_rows = [], []
    for batch in batches:
        end = known_row, known_dropped = ends[batch.owner]
        next_row = max(known_row, batch.first_row + batch.table.num_rows)
        num_known = max(0, known_row - batch.first_row)  # skips rows that an earlier batch has stored
        if num_known < batch.table.num_rows:
            piece = rows_from(batch.table, num_known)
            data = batch.packed if not num_known else pack(piece)
            row = row_of(piece, step_ms=ROWS_MS, is_rolled=False, is_open=True, data=data)
            blocks.append({**_named(batch.owner), "first_row": batch.first_row + num_known, **row})
        ends[batch.owner] = next_row, max(known_dropped, batch.num_dropped)
        if ends[batch.owner] != end:
            changed.add(batch.owner)
        next_rows.append(next_row)
    if blocks:
        connection.execute(_PUT_BLOCKS, blocks)
    if changed:
        new_ends = [(owner, *ends[owner]) for owner in sorted(changed)]
        connection.execute(
            _SET_END, [{**_named(owner), "next_row": row, "num_dropped": dropped} for owner, row, dropped in new_ends]
        )
    return next_rows


def _ends_of(connection: Connection, owners: Iterable[Owner]) -> dict[Owner, tuple[int, int]]:
    """Return each host's next row number and number of dropped rows; hosts without rows are left out."""
    job_names, attempts, hosts = (sorted(set(column)) for column in zip(*owners, strict=True))
    rows = connection.execute(_READ_ENDS, {"job_names": job_names, "attempts": attempts, "hosts": hosts})
    return {(job_name, attempt, host): (row, dropped) for job_name, attempt, host, row, dropped in rows}


def _named(owner: Owner) -> dict[str, Any]:
    return dict(zip(("job_name", "attempt", "host"), owner, strict=True))


def row_of(table: SeriesTable, *, step_ms: int, is_rolled: bool, is_open: bool, data: bytes) -> dict[str, Any]:
    """Return a block's columns, except its owner and first row.

    Args:
        table: the block's rows, at least one.
        step_ms: time that a row covers; `ROWS_MS` for rows as measured.
        is_rolled: whether its rows are in a coarser block already, or need no such block.
        is_open: whether it may be joined with others.
        data: the table, packed.
    """
    return {
        "step_ms": step_ms,
        "start_ms": table.at_ms[0],
        "end_ms": table.at_ms[-1],
        "num_rows": table.num_rows,
        "is_rolled": int(is_rolled),
        "is_open": int(is_open),
        "data": data,
    }


def _answer(connection: Connection, query: SeriesQuery) -> SeriesAnswer:
    gatherer = PointGatherer(query)
    damaged: list[str] = []
    choices = choose(_facts(connection, query), query)
    for first in range(0, len(choices), READ_AT_ONCE):
        some = choices[first : first + READ_AT_ONCE]
        data = _data(connection, some)
        for choice in some:
            block = choice.block
            place = f"block {block.number} of host {block.host}"
            try:
                table = unpack(data[block.number], wanted=query.wants, place=place)
            except SeriesDamaged as damage:
                damaged.append(damage.message)
                continue
            gatherer.add(block.host, table, until_ms=choice.until_ms)
    dropped = select(func.sum(series_ends.c.num_dropped)).where(series_ends.c.job_name == query.job_name)
    num_dropped = int(connection.execute(dropped).scalar() or 0)
    return SeriesAnswer(series=gatherer.result(), num_dropped=num_dropped, damaged=tuple(damaged))


def _facts(connection: Connection, query: SeriesQuery) -> list[BlockFacts]:
    columns = series_blocks.c
    statement = select(
        columns.id,
        columns.attempt,
        columns.host,
        columns.step_ms,
        columns.is_rolled,
        columns.first_row,
        columns.start_ms,
        columns.end_ms,
    ).where(columns.job_name == query.job_name, columns.end_ms >= query.first_ms, columns.start_ms < query.end_ms)
    if query.host is not None:
        statement = statement.where(columns.host == query.host)
    if query.attempt is not None:
        statement = statement.where(columns.attempt == query.attempt)
    return [
        BlockFacts(
            number=row.id,
            attempt=row.attempt,
            host=row.host,
            step_ms=row.step_ms,
            is_rolled=bool(row.is_rolled),
            first_row=row.first_row,
            start_ms=row.start_ms,
            end_ms=row.end_ms,
        )
        for row in connection.execute(statement)
    ]


def _data(connection: Connection, choices: Sequence[BlockChoice]) -> Mapping[int, bytes]:
    numbers = [choice.block.number for choice in choices]
    statement = select(series_blocks.c.id, series_blocks.c.data).where(series_blocks.c.id.in_(numbers))
    found = {row.id: bytes(row.data) for row in connection.execute(statement)}
    if len(found) != len(numbers):
        raise SeriesMoved(f"{len(numbers) - len(found)} blocks of series were joined or removed while they were read")
    return found
