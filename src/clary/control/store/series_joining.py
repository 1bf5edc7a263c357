"""Joins small blocks of series to large ones, makes roll-ups of rows, and removes what is too old.

Where: the service that holds the database's lease runs this in the background (`reconcile.series_keeping`).

    rows as they came -> gathered, and rolled up to 10 s -> joined to about an hour -> removed after a day
    roll-ups of 10 s  -> gathered, and rolled up to 5 min -> joined                 -> removed after a month
    roll-ups of 5 min -> joined                                                     -> go with their job

Each step is one transaction that takes the old blocks away and puts the new ones in: a service that is killed, or two
that do the same, lose and double nothing.
"""

from __future__ import annotations

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
MAX_NAMES = 1_024  # of a joined block: hosts that name their series anew in each batch stay in small ones
REMOVE_AT_ONCE = 200
_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class JoinRule:
    """When blocks of one step are joined: once they have so many rows, or the oldest is so old."""

    rows: int
    patience_ms: int


# At two rows a second: five minutes, and an hour.
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
    """Open blocks of one host, attempt and step, those that are rolled up or the others."""

    job_name: str
    attempt: int
    host: str
    step_ms: int
    is_rolled: bool
    num_blocks: int
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


async def join_open_blocks(blocks: SeriesBlocks, *, now_ms: int) -> int:
    """Join what is due now; return how many blocks went into others."""
    num_joined = 0
    for group in await blocks.read(_open_groups):
        num_left = group.num_rows
        try:
            while num_left >= group.rule.rows or (num_left > 0 and group.is_old(now_ms)):
                joining = await _join(blocks, group, now_ms=now_ms)
                if not joining.gone:
                    break
                num_joined += len(joining.gone)
                num_left -= joining.num_rows
        except SeriesMoved as error:
            _log.info("series of job %s, host %s: %s", group.job_name, group.host, error.message)
    return num_joined


async def remove_old_blocks(blocks: SeriesBlocks, *, before_ms: Mapping[int, int]) -> int:
    """Remove blocks that coarser ones stand for; return how many.

    Args:
        blocks: of the database.
        before_ms: step -> blocks of it that end before this time go.
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
            func.count().label("num_blocks"),
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
            num_blocks=row.num_blocks,
            num_rows=int(row.num_rows),
            start_ms=row.start_ms,
        )
        for row in connection.execute(statement)
    ]


@dataclass(frozen=True, kw_only=True)
class _Joining:
    """What goes and what comes in its place."""

    gone: Sequence[int] = ()
    damaged: Sequence[int] = ()  # stay, and are not looked at again
    new: Sequence[Mapping[str, Any]] = ()
    num_rows: int = 0  # of those that go


async def _join(blocks: SeriesBlocks, group: _Group, *, now_ms: int) -> _Joining:
    """Join the oldest of a group, as many as its rule says.

    Raises: SeriesMoved when another was quicker; nothing is changed then.
    """
    joining = await blocks.read(lambda connection: _prepared(connection, group, is_last=group.is_old(now_ms)))

    def swap(connection: Connection) -> None:
        columns = series_blocks.c
        if joining.damaged:
            connection.execute(
                update(series_blocks).where(columns.id.in_(joining.damaged)).values(is_open=0, is_rolled=1)
            )
        if joining.gone:
            num_gone = connection.execute(delete(series_blocks).where(columns.id.in_(joining.gone))).rowcount
            if num_gone != len(joining.gone):
                raise SeriesMoved(f"{len(joining.gone) - num_gone} of {len(joining.gone)} blocks to join had gone")
            connection.execute(insert(series_blocks), [{**group.owner, **row} for row in joining.new])

    await blocks.write(swap)
    return joining


def _prepared(connection: Connection, group: _Group, *, is_last: bool) -> _Joining:
    gone: list[int] = []
    tables: list[SeriesTable] = []
    damaged: list[int] = []
    num_rows = 0
    names: set[str] = set()
    blocks = _blocks_of(connection, group)
    for number, _, data in blocks:
        try:
            table = unpack(data, place=f"block {number} of host {group.host} of job {group.job_name}")
        except SeriesDamaged as damage:
            _log.warning("%s", damage.message)
            damaged.append(number)
            continue
        names |= table.columns.keys()
        if tables and len(names) > MAX_NAMES:
            is_last = True  # the next ones go on alone
            break
        gone.append(number)
        tables.append(table)
        num_rows += table.num_rows
        if num_rows >= group.rule.rows:
            break
    if not tables:
        return _Joining(damaged=damaged)
    whole = joined(tables)
    is_open = not group.is_rolled or not (is_last or whole.num_rows >= group.rule.rows)
    first_row = next(first_row for number, first_row, _ in blocks if number == gone[0])
    new = [{"first_row": first_row, **row} for row in _rows(whole, group, is_open=is_open)]
    return _Joining(gone=gone, damaged=damaged, new=new, num_rows=whole.num_rows)


def _blocks_of(connection: Connection, group: _Group) -> list[tuple[int, int, bytes]]:
    columns = series_blocks.c
    statement = (
        select(columns.id, columns.first_row, columns.data)
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
    return [(row.id, row.first_row, bytes(row.data)) for row in connection.execute(statement)]


def _rows(whole: SeriesTable, group: _Group, *, is_open: bool) -> list[dict[str, Any]]:
    """Return the joined block and, of one that was not rolled up yet, its roll-ups."""
    rows = [row_of(whole, step_ms=group.step_ms, is_rolled=True, is_open=is_open, data=pack(whole))]
    if not group.is_rolled:
        step_ms = COARSER[group.step_ms]
        roll_ups = fold(whole, step_ms)
        is_coarsest = step_ms not in COARSER
        rows.append(row_of(roll_ups, step_ms=step_ms, is_rolled=is_coarsest, is_open=True, data=pack(roll_ups)))
    return rows
