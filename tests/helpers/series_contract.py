"""Contract of time series for every database of the store; run against SQLite and PostgreSQL.

A test class inherits `SeriesContract` and provides a `database_url` fixture: a fresh, empty database.
"""

import asyncio
import math
import time
from array import array
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import create_engine, select, update
from store_contract import make_job

from clary.base.errors import ContractError
from clary.control.series.queries import COARSE_MS, FINE_MS, ROWS_MS, SeriesQuery
from clary.control.series.tables import SeriesTable, between
from clary.control.store import series_blocks as series_blocks_module
from clary.control.store import series_joining
from clary.control.store.database import parse_url
from clary.control.store.errors import JobNotFound, SeriesMoved
from clary.control.store.series_joining import join_open_blocks, remove_old_blocks
from clary.control.store.store import Store
from clary.control.store.tables import series_blocks

START_MS = 1_767_225_600_000
HOUR_MS = 3_600_000
STEP_MS = 500
LONG_AFTER_MS = START_MS + 1000 * HOUR_MS


def table(num_rows: int, *, first: int = 0, names: tuple[str, ...] = ("host/x",)) -> SeriesTable:
    """Return rows at steps of 0.5 s; each value is the number of its row plus a quarter of the number of its column."""
    rows = range(first, first + num_rows)
    return SeriesTable(
        at_ms=array("q", (START_MS + STEP_MS * row for row in rows)),
        columns={name: (array("f", (row + column * 0.25 for row in rows)),) for column, name in enumerate(names)},
    )


def ask(**changes: object) -> SeriesQuery:
    asked = {"job_name": "job", "start_ms": START_MS, "end_ms": START_MS + HOUR_MS, "step_ms": 1_000} | changes
    return SeriesQuery(**asked)  # type: ignore[arg-type]


class SeriesContract:
    """Tests that need only the URL of an empty database."""

    @pytest.fixture
    async def store(self, database_url: str) -> AsyncIterator[Store]:
        store = await Store.open(database_url)
        await store.create_job(make_job("job"), {})
        yield store
        await store.close()

    async def _fill(self, store: Store, num_rows: int, *, batch: int = 10, host: str = "algo-1") -> None:
        for first in range(0, num_rows, batch):
            await store.series.append("job", 1, host, table(batch, first=first), first_row=first)

    async def _blocks(self, store: Store) -> dict[tuple[int, int], tuple[int, int]]:
        """Return (step, is rolled) -> number of blocks and of rows."""
        found: dict[tuple[int, int], tuple[int, int]] = {}
        columns = series_blocks.c
        statement = select(columns.step_ms, columns.is_rolled, columns.num_rows)
        for step, is_rolled, num_rows in await store.series.read(
            lambda connection: connection.execute(statement).all()
        ):
            blocks, rows = found.get((step, is_rolled), (0, 0))
            found[step, is_rolled] = (blocks + 1, rows + num_rows)
        return found

    # Rows

    async def test_rows_come_back_as_they_were_measured(self, store: Store) -> None:
        assert await store.series.append("job", 1, "algo-1", table(4), first_row=0) == 4
        (series,) = (await store.series.query(ask())).series
        assert [(p.at_ms - START_MS, p.least, p.greatest, p.mean, p.count, p.last) for p in series.points] == [
            (0, 0, 1, 0.5, 2, 1),
            (1_000, 2, 3, 2.5, 2, 3),
        ]

    async def test_a_batch_that_is_sent_twice_is_stored_once(self, store: Store) -> None:
        for _ in range(2):
            assert await store.series.append("job", 1, "algo-1", table(10), first_row=0) == 10
        assert await self._blocks(store) == {(ROWS_MS, 0): (1, 10)}

    async def test_batches_that_overlap_store_each_row_once(self, store: Store) -> None:
        await store.series.append("job", 1, "algo-1", table(6), first_row=0)
        assert await store.series.append("job", 1, "algo-1", table(6, first=3), first_row=3) == 9
        assert await store.series.append("job", 1, "algo-1", table(2, first=1), first_row=1) == 9
        (series,) = (await store.series.query(ask(step_ms=500))).series
        assert [(point.last, point.count) for point in series.points] == [(float(row), 1.0) for row in range(9)]

    async def test_the_same_batch_from_many_connections_is_stored_once(self, store: Store) -> None:
        sending = [store.series.append("job", 1, "algo-1", table(10), first_row=0) for _ in range(20)]
        assert await asyncio.gather(*sending) == [10] * 20
        assert await self._blocks(store) == {(ROWS_MS, 0): (1, 10)}

    async def test_a_first_batch_sent_to_two_services_at_once_is_stored_once(
        self, store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ends_of = series_blocks_module._ends_of

        def slowly(connection: Any, owners: Any) -> Any:
            found = ends_of(connection, owners)
            time.sleep(0.5)  # so that both read before either writes, unless a lock delays the second
            return found

        monkeypatch.setattr(series_blocks_module, "_ends_of", slowly)
        other = await Store.open(database_url)
        try:
            sending = [one.series.append("job", 1, "algo-1", table(10), first_row=0) for one in (store, other)]
            assert await asyncio.gather(*sending) == [10, 10]
        finally:
            await other.close()
        assert await self._blocks(store) == {(ROWS_MS, 0): (1, 10)}

    async def test_batches_of_many_hosts_share_statements_and_each_is_stored_once(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Several batches are sent twice concurrently, one of them with rows that are already stored."""
        put, sizes = series_blocks_module._put, []

        def counted(connection, batches):  # type: ignore[no-untyped-def]
            sizes.append(len(batches))
            return put(connection, batches)

        monkeypatch.setattr(series_blocks_module, "_put", counted)
        await store.series.append("job", 1, "algo-1", table(4), first_row=0)
        sizes.clear()
        hosts = [f"algo-{number % 8 + 1}" for number in range(16)]
        sending = [store.series.append("job", 1, host, table(10), first_row=0, num_dropped=3) for host in hosts]
        assert await asyncio.gather(*sending) == [10] * 16
        assert sum(sizes) == 16
        assert len(sizes) < 8  # nearly always 1; another process may delay the first
        assert await self._blocks(store) == {(ROWS_MS, 0): (9, 80)}
        answer = await store.series.query(ask(step_ms=3_600_000))
        assert {one.host: one.points[0].count for one in answer.series} == dict.fromkeys(hosts, 10.0)
        assert answer.num_dropped == 24

    async def test_batches_in_one_statement_with_those_of_missing_jobs_are_stored(self, store: Store) -> None:
        jobs = ["job", "other", "job", "another"]
        sending = [
            store.series.append(job, 1, f"algo-{number}", table(5), first_row=0) for number, job in enumerate(jobs)
        ]
        results = await asyncio.gather(*sending, return_exceptions=True)
        assert results[::2] == [5, 5]
        assert [str(error) for error in results[1::2]] == [str(JobNotFound("other")), str(JobNotFound("another"))]
        assert await self._blocks(store) == {(ROWS_MS, 0): (2, 10)}

    async def test_rows_dropped_by_an_agent_are_a_gap_and_are_counted(self, store: Store) -> None:
        await store.series.append("job", 1, "algo-1", table(4), first_row=0)
        next_row = await store.series.append("job", 1, "algo-1", table(2, first=40), first_row=40, num_dropped=36)
        assert next_row == 42
        answer = await store.series.query(ask())
        assert [(point.at_ms - START_MS) // 1000 for point in answer.series[0].points] == [0, 1, 20]
        assert (answer.num_dropped, await store.series.num_dropped("job")) == (36, 36)

    async def test_each_host_and_attempt_numbers_its_rows_separately(self, store: Store) -> None:
        for host, attempt in (("algo-1", 1), ("algo-2", 1), ("algo-1", 2)):
            assert await store.series.append("job", attempt, host, table(5), first_row=0) == 5
        both = await store.series.query(ask(step_ms=60_000))
        assert [(one.host, one.points[0].count) for one in both.series] == [("algo-1", 10), ("algo-2", 5)]
        (first,) = (await store.series.query(ask(host="algo-1", attempt=1, step_ms=60_000))).series
        assert first.points[0].count == 5

    async def test_a_batch_without_rows_returns_the_next_row_number(self, store: Store) -> None:
        await store.series.append("job", 1, "algo-1", table(5), first_row=0)
        empty = SeriesTable(at_ms=array("q"), columns={})
        assert await store.series.append("job", 1, "algo-1", empty, first_row=2) == 5

    async def test_rows_survive_a_restart_of_the_store(self, store: Store, database_url: str) -> None:
        await store.series.append("job", 1, "algo-1", table(5), first_row=0)
        await store.close()
        again = await Store.open(database_url)
        try:
            assert await again.series.append("job", 1, "algo-1", table(8), first_row=0) == 8
            (series,) = (await again.series.query(ask(step_ms=60_000))).series
            assert series.points[0].count == 8
        finally:
            await again.close()

    async def test_rows_of_a_job_that_does_not_exist_are_refused(self, store: Store) -> None:
        with pytest.raises(JobNotFound):
            await store.series.append("other", 1, "algo-1", table(5), first_row=0)

    async def test_series_are_deleted_with_their_job_and_a_new_job_of_the_name_starts_empty(self, store: Store) -> None:
        await self._fill(store, 1200)
        await join_open_blocks(store.series, now_ms=LONG_AFTER_MS)
        await store.delete_job("job")
        assert await self._blocks(store) == {}
        await store.create_job(make_job("job"), {})
        assert await store.series.append("job", 1, "algo-1", table(5), first_row=0) == 5

    async def test_a_query_returns_only_requested_series_and_names_lists_all(self, store: Store) -> None:
        names = ("host/x", "rank-0/x", "rank-1/x")
        await store.series.append("job", 1, "algo-1", table(4, names=names), first_row=0)
        assert [one.name for one in (await store.series.query(ask(names="rank-*/x"))).series] == [
            "rank-0/x",
            "rank-1/x",
        ]
        assert await store.series.names("job") == {"algo-1": list(names)}
        assert await store.series.names("other") == {}

    async def test_a_query_with_a_too_long_result_is_refused(self, store: Store) -> None:
        names = tuple(f"rank-{rank}/x" for rank in range(300))
        await store.series.append("job", 1, "algo-1", table(600, names=names), first_row=0)
        with pytest.raises(ContractError, match="more than 100000 points"):
            await store.series.query(ask(step_ms=500))

    # Joining

    async def test_queries_return_the_same_before_and_after_joining_blocks(self, store: Store) -> None:
        await self._fill(store, 3600, batch=60)
        questions = [ask(step_ms=step) for step in (500, 7_000, 10_000, 60_000, 300_000, 3_600_000)]
        before = [(await store.series.query(question)).series for question in questions]
        while await join_open_blocks(store.series, now_ms=START_MS):
            assert [(await store.series.query(question)).series for question in questions] == before
        blocks = await self._blocks(store)
        assert blocks[ROWS_MS, 1] == (6, 3600)
        assert blocks[FINE_MS, 0] == (6, 180)

    async def test_old_blocks_are_joined_even_if_they_are_small(self, store: Store) -> None:
        await self._fill(store, 50)
        assert await join_open_blocks(store.series, now_ms=START_MS + 60_000) == 0
        before = (await store.series.query(ask(step_ms=10_000))).series
        passes = 0
        while await join_open_blocks(store.series, now_ms=LONG_AFTER_MS):
            passes += 1
            assert passes < 10, "joining does not come to an end"
        assert await self._blocks(store) == {(ROWS_MS, 1): (1, 50), (FINE_MS, 1): (1, 3), (COARSE_MS, 1): (1, 1)}
        assert (await store.series.query(ask(step_ms=10_000))).series == before

    async def test_a_single_joined_block_is_closed_without_a_rewrite(self, store: Store) -> None:
        await self._fill(store, 50)
        await join_open_blocks(store.series, now_ms=LONG_AFTER_MS)
        numbers = select(series_blocks.c.id, series_blocks.c.is_open).where(series_blocks.c.step_ms == ROWS_MS)
        read = lambda connection: [tuple(row) for row in connection.execute(numbers)]  # noqa: E731 - for two calls
        ((number, is_open),) = await store.series.read(read)
        assert is_open
        await join_open_blocks(store.series, now_ms=LONG_AFTER_MS)
        assert await store.series.read(read) == [(number, 0)]

    async def test_blocks_of_many_hosts_are_joined_together(self, store: Store) -> None:
        hosts = [f"algo-{number}" for number in range(1, series_joining.JOINED_TOGETHER + 4)]
        for host in hosts:
            await self._fill(store, 600, batch=120, host=host)
        before = (await store.series.query(ask(step_ms=60_000))).series
        assert await join_open_blocks(store.series, now_ms=START_MS) == 5 * len(hosts)
        assert await self._blocks(store) == {
            (ROWS_MS, 1): (len(hosts), 600 * len(hosts)),
            (FINE_MS, 0): (len(hosts), 30 * len(hosts)),
        }
        assert (await store.series.query(ask(step_ms=60_000))).series == before

    async def test_blocks_joined_by_another_service_do_not_block_other_hosts(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for host in ("algo-1", "algo-2"):
            await self._fill(store, 600, batch=200, host=host)
        prepared = series_joining._prepared

        def outrun(connection, group, **how):  # type: ignore[no-untyped-def]
            if group.host == "algo-1":
                raise SeriesMoved("another service was quicker")
            return prepared(connection, group, **how)

        monkeypatch.setattr(series_joining, "_prepared", outrun)
        assert await join_open_blocks(store.series, now_ms=START_MS) == 3
        monkeypatch.undo()
        assert await join_open_blocks(store.series, now_ms=START_MS) == 3
        assert (await self._blocks(store))[ROWS_MS, 1] == (2, 1200)

    async def test_a_week_of_rows_is_joined_into_few_blocks(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The join rules are scaled to a hundredth, so that a few rows stand for a week."""
        for rules in (series_joining.GATHER, series_joining.FILL):
            for step, rule in list(rules.items()):
                small = series_joining.JoinRule(rows=max(2, rule.rows // 100), patience_ms=rule.patience_ms)
                monkeypatch.setitem(rules, step, small)  # type: ignore[arg-type]
        await self._fill(store, 2400, batch=40)
        whole = (await store.series.query(ask(step_ms=3_600_000))).series
        for _ in range(200):
            if not await join_open_blocks(store.series, now_ms=START_MS):
                break
        blocks = await self._blocks(store)
        assert blocks[ROWS_MS, 1][1] == 2400
        assert sum(count for count, _ in blocks.values()) < 100
        ((point,),) = (one.points for one in (await store.series.query(ask(step_ms=3_600_000))).series)
        ((before,),) = (one.points for one in whole)
        assert (point.least, point.greatest, point.count, point.last) == (0, 2399, 2400, 2399)
        assert point.mean == pytest.approx(before.mean, rel=1e-6)  # roll-ups are 32-bit floats

    async def test_two_services_that_join_the_same_blocks_duplicate_no_rows(
        self, store: Store, database_url: str
    ) -> None:
        await self._fill(store, 1200)
        before = (await store.series.query(ask(step_ms=10_000))).series
        other = await Store.open(database_url)
        try:
            await asyncio.gather(*(join_open_blocks(one.series, now_ms=LONG_AFTER_MS) for one in (store, other) * 3))
        finally:
            await other.close()
        assert (await store.series.query(ask(step_ms=10_000))).series == before

    async def test_a_query_is_retried_if_its_blocks_were_joined_meanwhile(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from clary.control.store import series_blocks as module

        await self._fill(store, 20)
        read, looks = module._data, []

        def moved_once(connection, choices):  # type: ignore[no-untyped-def]
            looks.append(len(choices))
            if len(looks) == 1:
                raise SeriesMoved("joined meanwhile")
            return read(connection, choices)

        monkeypatch.setattr(module, "_data", moved_once)
        (series,) = (await store.series.query(ask())).series
        assert (len(series.points), looks) == (10, [2, 2])

    # Age

    async def test_old_rows_are_pruned_and_queries_use_their_roll_ups(self, store: Store) -> None:
        await self._fill(store, 1200)
        while await join_open_blocks(store.series, now_ms=LONG_AFTER_MS):
            pass
        coarse = (await store.series.query(ask(step_ms=10_000))).series
        assert await remove_old_blocks(store.series, before_ms={ROWS_MS: LONG_AFTER_MS}) == 1
        assert (await store.series.query(ask(step_ms=10_000))).series == coarse
        (fine,) = (await store.series.query(ask(step_ms=1_000))).series
        assert [(point.at_ms - START_MS, point.count) for point in fine.points] == [
            (10_000 * number, 20.0) for number in range(60)
        ]
        assert await remove_old_blocks(store.series, before_ms={FINE_MS: LONG_AFTER_MS, ROWS_MS: LONG_AFTER_MS}) == 1
        (coarsest,) = (await store.series.query(ask(step_ms=1_000))).series
        assert [point.count for point in coarsest.points] == [600.0, 600.0]

    async def test_rows_without_a_roll_up_are_not_pruned(self, store: Store) -> None:
        await self._fill(store, 100)
        assert await remove_old_blocks(store.series, before_ms={ROWS_MS: LONG_AFTER_MS}) == 0
        (series,) = (await store.series.query(ask(step_ms=3_600_000))).series
        assert series.points[0].count == 100

    async def test_a_query_combines_rows_of_the_last_day_with_older_roll_ups(self, store: Store) -> None:
        whole = table(4000)
        for first in range(0, 4000, 800):
            end_ms = START_MS + (first + 800) * STEP_MS
            piece = between(whole, START_MS + first * STEP_MS, end_ms)
            await store.series.append("job", 1, "algo-1", piece, first_row=first)
            await join_open_blocks(store.series, now_ms=START_MS)
        await remove_old_blocks(store.series, before_ms={ROWS_MS: START_MS + 1600 * STEP_MS})
        (series,) = (await store.series.query(ask(step_ms=1_000))).series
        by_start = {(point.at_ms - START_MS) // 1000: point.count for point in series.points}
        assert by_start == dict.fromkeys(range(0, 800, 10), 20.0) | dict.fromkeys(range(800, 2000), 2.0)
        assert sum(by_start.values()) == 4000

    # Damage

    async def test_a_damaged_block_is_named_and_only_its_time_is_missing(self, store: Store, database_url: str) -> None:
        await self._fill(store, 40)
        self._damage(database_url, first_ms=START_MS + 10 * STEP_MS)
        answer = await store.series.query(ask(step_ms=5_000))
        assert [(point.at_ms - START_MS) // 5000 for point in answer.series[0].points] == [0, 2, 3]
        (words,) = answer.damaged
        assert "of host algo-1 of series is damaged" in words

    async def test_joining_leaves_a_damaged_block_where_it_is(self, store: Store, database_url: str) -> None:
        await self._fill(store, 40)
        self._damage(database_url, first_ms=START_MS + 10 * STEP_MS)
        while await join_open_blocks(store.series, now_ms=LONG_AFTER_MS):
            pass
        blocks = await self._blocks(store)
        assert blocks[ROWS_MS, 1] == (2, 40)  # the damaged block, and the other blocks
        answer = await store.series.query(ask(step_ms=5_000))
        assert [point.count for point in answer.series[0].points] == [10, 10, 10]
        assert len(answer.damaged) == 1

    def _damage(self, database_url: str, *, first_ms: int) -> None:
        engine = create_engine(parse_url(database_url))
        with engine.begin() as connection:
            chosen = series_blocks.c.start_ms == first_ms
            data = bytearray(connection.execute(select(series_blocks.c.data).where(chosen)).scalar_one())
            data[-3] ^= 0xFF
            connection.execute(update(series_blocks).where(chosen).values(data=bytes(data)))
        engine.dispose()

    async def test_gaps_stay_gaps_in_roll_ups(self, store: Store) -> None:
        rows = table(4)
        rows.columns["host/x"][0][1] = math.nan
        await store.series.append("job", 1, "algo-1", rows, first_row=0)
        (series,) = (await store.series.query(ask(step_ms=500))).series
        assert [(point.at_ms - START_MS) // 500 for point in series.points] == [0, 2, 3]
