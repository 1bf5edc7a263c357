"""Joins small blocks of series to large ones, rolls rows up, and removes expired blocks.

Where: the service that holds the database's lease runs this in the background (`reconcile.series_keeping`).

    rows as sent      -> gathered, and rolled up to 10 s -> joined to about an hour -> removed after a day
    roll-ups of 10 s  -> gathered, and rolled up to 5 min -> joined                 -> removed after a month
    roll-ups of 5 min -> joined                                                     -> removed with their job

A day and a month are the defaults of the settings `series_rows_kept_s` and `series_rollups_kept_s`.

Each step is one transaction that removes the old blocks and inserts the new ones: so neither a killed service nor two
concurrent services lose or duplicate a row. The blocks of several hosts are made one after the other and written
together, so that they share commits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from clary.control.series.codec import SeriesDamaged, pack, unpack
from clary.control.series.queries import COARSE_MS, FINE_MS, ROWS_MS
from clary.control.series.rollups import fold
from clary.control.series.tables import SeriesTable, joined
from clary.control.store.errors import SeriesMoved
from clary.control.store.series_blocks import SeriesBlocks, row_of
from clary.control.store.tables import series_blocks

MAX_BLOCKS_AT_ONCE = 1_000
JOINED_TOGETHER = 8  # hosts whose joined blocks share a commit; until then their bytes are in memory
MAX_NAMES = 1_024  # in a joined block; a host with new names in each batch keeps small blocks
REMOVE_AT_ONCE = 200
_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class JoinRule:
    """The condition for joining blocks of one step: their number of rows, or the age of the oldest."""

    rows: int
    patience_ms: int


# At two rows a second: 600 rows are five minutes, 7,200 an hour.
GATHER: Mapping[int, JoinRule] = {
    ROWS_MS: JoinRule(rows=600, patience_ms=15 * _MINUTE_MS),
    FINE_MS: JoinRule(rows=360, patience_ms=2 * _HOUR_MS),
}
FILL: Mapping[int, JoinRule] = {
    ROWS_MS: JoinRule(rows=7_200, patience_ms=6 * _HOUR_MS),
    FINE_MS: JoinRule(rows=2_160, patience_ms=24 * _HOUR_MS),
    COARSE_MS: JoinRule(rows=576, patience_ms=72 * _HOUR_MS),
}
COARSER: Mapping[int, int] = {ROWS_MS: FINE_MS, FINE_MS: COARSE_MS}


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Open blocks of one host, attempt and step, either all rolled up or all not yet rolled up."""

    job_name: str
    attempt: int
    host: str
    step_ms: int
    is_rolled: bool
    num_rows: int
    start_ms: int

    @property
    def owner(self) -> dict[str, Any]:
        return {"job_name": self.job_name, "attempt": self.attempt, "host": self.host}

    @property
    def rule(self) -> JoinRule:
        return FILL[self.step_ms] if self.is_rolled else GATHER[self.step_ms]

    def is_old(self, now_ms: int) -> bool:
        return now_ms - self.start_ms >= self.rule.patience_ms

    def is_due(self, num_rows: int, now_ms: int) -> bool:
        """Whether a group with this number of unjoined rows is due for joining."""
        return num_rows >= self.rule.rows or (num_rows > 0 and self.is_old(now_ms))


async def join_open_blocks(blocks: SeriesBlocks, *, now_ms: int) -> int:
    """Join the blocks that are due now; return the number of replaced blocks.

    Raises: StoreError; blocks joined before stay joined.
    """
    groups = await blocks.read(_open_groups)
    num_joined = 0
    for first in range(0, len(groups), JOINED_TOGETHER):
        num_left = {group: group.num_rows for group in groups[first : first + JOINED_TOGETHER]}
        while due := [group for group, num_rows in num_left.items() if group.is_due(num_rows, now_ms)]:
            joinings = [await _prepare(blocks, group, now_ms=now_ms) for group in due]
            swaps = (_swap(blocks, group, joining) for group, joining in zip(due, joinings, strict=True))
            done = await asyncio.gather(*swaps, return_exceptions=True)
            for group, joining in zip(due, done, strict=True):
                if isinstance(joining, BaseException):
                    raise joining
                num_joined += len(joining.gone)
                num_left[group] = num_left[group] - joining.num_rows if joining.gone else 0
    return num_joined


async def remove_old_blocks(blocks: SeriesBlocks, *, before_ms: Mapping[int, int]) -> int:
    """Remove blocks whose values are also in coarser blocks; return the number of removed blocks.

    Args:
        blocks: blocks of the database.
        before_ms: step -> time in ms since 1970; blocks of the step that end before it are removed.
    """
    num_removed = 0
    for step_ms, cut_ms in before_ms.items():
        old = (
            select(series_blocks.c.id)
            .where(series_blocks.c.step_ms == step_ms, series_blocks.c.is_rolled == 1, series_blocks.c.end_ms < cut_ms)
            .limit(REMOVE_AT_ONCE)
        )

        def remove(connection: Connection, old: Any = old) -> int:
            numbers = list(connection.execute(old).scalars())
            connection.execute(delete(series_blocks).where(series_blocks.c.id.in_(numbers)))
            return len(numbers)

        while num := await blocks.write(remove):
            num_removed += num
            if num < REMOVE_AT_ONCE:
                break
    return num_removed


def _open_groups(connection: Connection) -> list[_Group]:
    columns = series_blocks.c
    keys = (columns.job_name, columns.attempt, columns.host, columns.step_ms, columns.is_rolled)
    statement = (
        select(
            *keys,
            func.sum(columns.num_rows).label("num_rows"),
            func.min(columns.start_ms).label("start_ms"),
        )
        .where(columns.is_open == 1)
        .group_by(*keys)
    )
    return [
        _Group(
            job_name=row.job_name,
            attempt=row.attempt,
            host=row.host,
            step_ms=row.step_ms,
            is_rolled=bool(row.is_rolled),
            num_rows=int(row.num_rows),
            start_ms=row.start_ms,
        )
        for row in connection.execute(statement)
    ]


@dataclass(frozen=True, kw_only=True)
class _Joining:
    """Old blocks and the new blocks that replace them."""

    gone: Sequence[int] = ()
    closed: Sequence[int] = ()  # they stay, and are not joined again
    damaged: Sequence[int] = ()  # they stay, and are not read again here
    new: Sequence[Mapping[str, Any]] = ()
    num_rows: int = 0  # number of rows in the replaced blocks


async def _prepare(blocks: SeriesBlocks, group: _Group, *, now_ms: int) -> _Joining:
    """Join a group's oldest blocks up to its rule's number of rows; return no changes if another service was faster."""
    try:
        return await blocks.read(lambda connection: _prepared(connection, group, is_last=group.is_old(now_ms)))
    except SeriesMoved as error:
        _note(group, error)
        return _Joining()


async def _swap(blocks: SeriesBlocks, group: _Group, joining: _Joining) -> _Joining:
    """Replace old blocks by new ones; return the changes, or no changes if another service made them."""

    def swap(connection: Connection) -> None:
        columns = series_blocks.c
        if joining.damaged:
            connection.execute(
                update(series_blocks).where(columns.id.in_(joining.damaged)).values(is_open=0, is_rolled=1)
            )
        if joining.closed:
            connection.execute(update(series_blocks).where(columns.id.in_(joining.closed)).values(is_open=0))
        if joining.gone:
            num_gone = connection.execute(delete(series_blocks).where(columns.id.in_(joining.gone))).rowcount
            if num_gone != len(joining.gone):
                raise SeriesMoved(f"{len(joining.gone) - num_gone} of {len(joining.gone)} blocks to join had gone")
            connection.execute(insert(series_blocks), [{**group.owner, **row} for row in joining.new])

    if not (joining.gone or joining.closed or joining.damaged):
        return joining
    try:
        await blocks.write(swap)
    except SeriesMoved as error:
        _note(group, error)
        return _Joining()
    return joining


def _note(group: _Group, error: SeriesMoved) -> None:
    _log.info("series of job %s, host %s: %s", group.job_name, group.host, error.message)


def _prepared(connection: Connection, group: _Group, *, is_last: bool) -> _Joining:
    """Join a group's oldest blocks in memory. Raises: SeriesMoved if another service has replaced them already."""
    blocks = _oldest_of(connection, group)
    if group.is_rolled and len(blocks) == 1:
        return _Joining(closed=[number for number, _ in blocks])  # the group gets no further blocks
    data_of = _data_of(connection, [number for number, _ in blocks])
    gone: list[int] = []
    tables: list[SeriesTable] = []
    damaged: list[int] = []
    names: set[str] = set()
    for number, _ in blocks:
        try:
            table = unpack(data_of[number], place=f"block {number} of host {group.host} of job {group.job_name}")
        except SeriesDamaged as damage:
            _log.warning("%s", damage.message)
            damaged.append(number)
            continue
        names |= table.columns.keys()
        if tables and len(names) > MAX_NAMES:
            is_last = True  # the next blocks form another joined block
            break
        gone.append(number)
        tables.append(table)
    if not tables:
        return _Joining(damaged=damaged)
    whole = joined(tables)
    is_open = not group.is_rolled or not (is_last or whole.num_rows >= group.rule.rows)
    first_row = next(first_row for number, first_row in blocks if number == gone[0])
    new = [{"first_row": first_row, **row} for row in _rows(whole, group, is_open=is_open)]
    return _Joining(gone=gone, damaged=damaged, new=new, num_rows=whole.num_rows)


def _oldest_of(connection: Connection, group: _Group) -> list[tuple[int, int]]:
    """Return the ids and first row numbers of a group's oldest blocks, up to the number of rows in its rule."""
    columns = series_blocks.c
    statement = (
        select(columns.id, columns.first_row, columns.num_rows)
        .where(
            columns.job_name == group.job_name,
            columns.attempt == group.attempt,
            columns.host == group.host,
            columns.step_ms == group.step_ms,
            columns.is_rolled == int(group.is_rolled),
            columns.is_open == 1,
        )
        .order_by(columns.first_row)
        .limit(MAX_BLOCKS_AT_ONCE)
    )
    found: list[tuple[int, int]] = []
    num_rows = 0
    for row in connection.execute(statement).all():
        found.append((row.id, row.first_row))
        num_rows += row.num_rows
        if num_rows >= group.rule.rows:
            break
    return found


def _data_of(connection: Connection, numbers: Sequence[int]) -> dict[int, bytes]:
    """Return blocks by number. Raises: SeriesMoved if another service has replaced them already."""
    statement = select(series_blocks.c.id, series_blocks.c.data).where(series_blocks.c.id.in_(numbers))
    found = {row.id: bytes(row.data) for row in connection.execute(statement)}
    if len(found) != len(numbers):
        raise SeriesMoved(f"{len(numbers) - len(found)} of {len(numbers)} blocks to join had gone")
    return found


def _rows(whole: SeriesTable, group: _Group, *, is_open: bool) -> list[dict[str, Any]]:
    """Return the joined block and, unless it is rolled up already, its roll-ups."""
    rows = [row_of(whole, step_ms=group.step_ms, is_rolled=True, is_open=is_open, data=pack(whole))]
    if not group.is_rolled:
        step_ms = COARSER[group.step_ms]
        roll_ups = fold(whole, step_ms)
        is_coarsest = step_ms not in COARSER
        rows.append(row_of(roll_ups, step_ms=step_ms, is_rolled=is_coarsest, is_open=True, data=pack(roll_ups)))
    return rows
