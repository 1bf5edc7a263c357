"""Series on SQLite: the contract."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import series_crash_program
from series_contract import STEP_MS, SeriesContract, ask, table
from sqlalchemy import Connection
from store_contract import make_job

from clary.control.store.series_blocks import _READ_ENDS
from clary.control.store.store import Store


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'clary.db'}"


class TestSeriesOnSqlite(SeriesContract):
    """Runs the contract against a database file."""


async def test_the_last_batch_of_each_host_is_found_by_the_index(database_url: str) -> None:
    """Each batch makes this query, so its cost must not grow with the number of jobs."""
    asked = {"job_names": ["a", "b"], "attempts": [1], "hosts": ["algo-1", "algo-2"]}
    store = await Store.open(database_url)
    try:

        def explain(connection: Connection) -> list[str]:
            how = {"literal_binds": True, "render_postcompile": True}
            words = _READ_ENDS.params(asked).compile(connection, compile_kwargs=how)
            return [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {words}")]

        plan = await store.series.read(explain)
    finally:
        await store.close()
    assert plan == [
        "SEARCH series_ends USING INDEX sqlite_autoindex_series_ends_1 (job_name=? AND attempt=? AND host=?)"
    ]


@pytest.mark.timeout(120)
async def test_every_acknowledged_row_survives_kill_9_exactly_once(database_url: str) -> None:
    store = await Store.open(database_url)
    await store.create_job(make_job("job"), {})
    await store.close()
    told: dict[str, int] = {}
    for num_answers in (1, 25, 90):  # the sender dies at this response, with batches of all hosts in progress
        sender = subprocess.Popen(
            [sys.executable, series_crash_program.__file__, database_url], stdout=subprocess.PIPE, text=True
        )
        number, watchdog = 0, threading.Timer(60, sender.kill)
        watchdog.start()
        try:
            assert sender.stdout is not None
            for number, line in enumerate(sender.stdout, start=1):
                if line.endswith("\n"):
                    host, next_row = line.split()
                    told[host] = int(next_row)
                if number == num_answers:
                    sender.kill()
        finally:
            watchdog.cancel()
            sender.kill()
            sender.wait()
            sender.stdout.close()
        assert number >= num_answers
        store = await Store.open(database_url)
        try:
            ends = {host: await store.series.append("job", 1, host, table(0), first_row=0) for host in told}
            assert all(ends[host] >= next_row for host, next_row in told.items())
            answer = await store.series.query(ask(step_ms=STEP_MS))
            for host, end in ends.items():
                (points,) = (one.points for one in answer.series if one.host == host)
                assert [(point.last, point.count) for point in points] == [(float(row), 1.0) for row in range(end)]
        finally:
            await store.close()
