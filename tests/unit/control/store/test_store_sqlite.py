"""The store on SQLite: the contract, and failures that only SQLite has."""

import asyncio
import contextlib
import sqlite3
import stat
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from curve_contract import CurveContract
from sqlalchemy.exc import OperationalError
from store_contract import StoreContract, count_up, make_job

from clary.base.errors import NOTHING_CHANGED, StoreError
from clary.control.store import database, group_commit
from clary.control.store.store import Store


@pytest.fixture
def database_path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "clary.db"


@pytest.fixture
def database_url(database_path: Path) -> str:
    return f"sqlite:///{database_path}"


class TestStoreOnSqlite(CurveContract, StoreContract):
    """Runs the contract against a database file."""


async def test_commits_are_synced_to_disk_and_only_the_owner_may_read_the_file(
    database_url: str, database_path: Path
) -> None:
    store = await Store.open(database_url)
    try:
        pragmas = await store._writer.run(
            lambda connection: [
                connection.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            ]
        )
        assert pragmas == ["wal", 2, 1, int(database.BUSY_TIMEOUT_S * 1000)]
        for path in database_path.parent.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    finally:
        await store.close()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Run another process that holds the write lock."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.close()


async def test_a_write_lock_that_is_not_released_is_an_error_and_the_store_survives(
    database_url: str, database_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.05)
    store = await Store.open(database_url)
    try:
        with _locked(database_path):
            results = await asyncio.gather(
                *(store.create_job(make_job(f"j{number}"), {}) for number in range(3)), return_exceptions=True
            )
            assert await store.get_job("j0") is None  # readers are not blocked
        for result in results:
            assert isinstance(result, StoreError)
            assert result.retryable
            assert "database is locked" in str(result)
        await store.create_job(make_job("j0"), {})
    finally:
        await store.close()


async def test_a_full_disk_is_an_error_that_the_store_survives(database_url: str) -> None:
    store = await Store.open(database_url)

    def limit_pages(connection: Any, *, extra: int) -> None:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + extra}")

    try:
        await store.create_job(make_job("before"), {})
        await store._writer.run(lambda connection: limit_pages(connection, extra=4))
        large = make_job("large", pending_reason="x" * 100_000)
        results = await asyncio.gather(
            store.create_job(make_job("small"), {}), store.create_job(large, {}), return_exceptions=True
        )
        assert isinstance(results[1], StoreError)
        assert "disk is full" in str(results[1])
        # All acknowledged jobs are stored, and no others.
        assert (results[0] is None) == (await store.get_job("small") is not None)
        assert await store.get_job("large") is None
        await store._writer.run(lambda connection: limit_pages(connection, extra=1000))
        await store.create_job(large, {})
        assert await store.get_job("before") is not None
    finally:
        await store.close()


async def test_a_commit_that_fails_fails_its_whole_batch(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await Store.open(database_url)
    dialect = type(store._write_engine.dialect)
    commit = dialect.do_commit
    try:

        def fail(self: Any, connection: Any) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        monkeypatch.setattr(dialect, "do_commit", fail)
        results = await asyncio.gather(
            *(store.create_job(make_job(f"j{number}"), {}) for number in range(5)), return_exceptions=True
        )
        monkeypatch.setattr(dialect, "do_commit", commit)
        assert all(isinstance(result, StoreError) and "disk I/O error" in str(result) for result in results)
        assert not any(NOTHING_CHANGED in result.details for result in results)  # it may have reached the disk
        assert [await store.get_job(f"j{number}") for number in range(5)] == [None] * 5
        await store.create_job(make_job("j0"), {})
    finally:
        await store.close()


async def test_a_transaction_that_fails_before_its_commit_may_be_repeated(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients repeat a refused request at once, and it must not be refused as a repetition: that would hide why."""
    store = await Store.open(database_url)
    try:

        def fail(_connection: Any) -> None:
            raise sqlite3.OperationalError("unable to open database file")

        monkeypatch.setattr(store._writer, "_fence", fail)
        with pytest.raises(StoreError) as refused:
            await store.create_job(make_job("j"), {})
        assert refused.value.details[NOTHING_CHANGED]
        assert "the change was not made" in refused.value.message
    finally:
        await store.close()


async def test_a_read_that_fails_may_be_repeated(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await Store.open(database_url)
    try:

        def fail(*_arguments: Any) -> None:
            raise OperationalError("SELECT", {}, sqlite3.OperationalError("disk I/O error"))

        monkeypatch.setattr(store._read_engine, "connect", fail)
        with pytest.raises(StoreError, match="cannot read from") as refused:
            await store.get_job("j")
        assert refused.value.details[NOTHING_CHANGED]
    finally:
        await store.close()


async def test_a_dead_writer_fails_every_write_at_once_and_names_the_first_cause(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await Store.open(database_url)
    try:
        await store.create_job(make_job("before"), {})

        def explode(*_arguments: Any) -> None:
            monkeypatch.undo()
            raise ZeroDivisionError("cosmic ray")

        monkeypatch.setattr(group_commit, "_deliver", explode)
        with pytest.raises(StoreError, match="died and this write was not confirmed"):
            await store.create_job(make_job("during"), {})
        for _ in range(2):
            with pytest.raises(StoreError, match=r"writer has died.*first cause: ZeroDivisionError: cosmic ray"):
                await store.create_job(make_job("after"), {})
        assert await store.get_job("before") is not None
    finally:
        await store.close()


async def test_waiting_writes_get_an_error_when_the_writer_dies(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await Store.open(database_url)
    try:

        def explode(*_arguments: Any) -> None:
            raise ZeroDivisionError("cosmic ray")

        monkeypatch.setattr(store._writer, "_commit", explode)
        results = await asyncio.gather(
            *(store.create_job(make_job(f"j{number}"), {}) for number in range(5)), return_exceptions=True
        )
        assert all(isinstance(result, StoreError) and "cosmic ray" in str(result) for result in results)
    finally:
        await store.close()


async def test_a_write_has_a_deadline_and_a_cancelled_write_is_dropped(database_url: str) -> None:
    store = await Store.open(database_url)
    go_on = threading.Event()
    try:
        await store.create_job(make_job("j"), {})
        slow = asyncio.create_task(store._writer.run(lambda _connection: go_on.wait(10)))
        await asyncio.sleep(0.01)  # the writer is busy now
        with pytest.raises(StoreError, match=r"not on disk after 0\.01 s.*may or may not happen"):
            await store._writer.run(lambda _connection: None, timeout_s=0.01)
        given_up = asyncio.create_task(store.update_job("j", count_up))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        go_on.set()
        assert await slow
        job = await store.get_job("j")
        assert job is not None
        assert job.attempt == 0
    finally:
        go_on.set()
        await store.close()


async def test_writes_beyond_the_limit_of_the_queue_are_refused(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "MAX_QUEUED", 3)
    store = await Store.open(database_url)
    go_on = threading.Event()
    try:
        slow = asyncio.create_task(store._writer.run(lambda _connection: go_on.wait(10)))
        await asyncio.sleep(0.01)
        writes = [asyncio.create_task(store.create_job(make_job(f"j{number}"), {})) for number in range(5)]
        await asyncio.sleep(0)
        go_on.set()
        results = await asyncio.gather(slow, *writes, return_exceptions=True)
        refused = [result for result in results if isinstance(result, StoreError)]
        assert len(refused) == 2
        assert "3 writes wait already" in str(refused[0])
    finally:
        go_on.set()
        await store.close()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite://", "in-memory"),
        ("sqlite:///:memory:", "in-memory"),
        ("mysql://localhost/x", "'mysql' is not supported"),
        ("nonsense", "is no database URL"),
        ("sqlite:////proc/nothing/here.db", "cannot open the database file"),
    ],
)
async def test_a_url_that_cannot_work_is_refused_with_a_message(url: str, words: str) -> None:
    with pytest.raises(StoreError, match=words):
        await Store.open(url)


@pytest.mark.parametrize("name", ["%41 state", "state?mode=memory"])
async def test_a_path_is_the_file_whatever_characters_it_has(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    store = await Store.open(tmp_path / name / "clary.db")
    await store.create_job(make_job("j"), {})
    await store.close()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name / "clary.db").stat().st_size > 0


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "clary.db"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreError, match="file is not a database"):
        await Store.open(f"sqlite:///{path}")


async def test_the_password_of_a_database_stays_out_of_errors() -> None:
    with pytest.raises(StoreError) as refusal:
        await Store.open("postgresql://somebody:very-secret@127.0.0.1:1/nothing")
    assert "very-secret" not in str(refusal.value)
    assert "somebody:***@" in str(refusal.value)


async def test_closing_leaves_no_thread_behind(database_url: str) -> None:
    before = set(threading.enumerate())
    store = await Store.open(database_url)
    await store.create_job(make_job("j"), {})
    await store.get_job("j")
    await store.close()
    left = {thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("clary-store")}
    assert left == set()


async def test_operations_of_one_kind_run_together_and_each_gets_its_own_result(database_url: str) -> None:
    store = await Store.open(database_url)
    calls: list[list[int]] = []

    def double(_connection: Any, items: Sequence[int]) -> list[int]:
        calls.append(list(items))
        return [2 * item for item in items]

    try:
        async with _busy(store):
            between = asyncio.create_task(store.create_job(make_job("between"), {}))
            tasks = [asyncio.create_task(store._writer.run_together(double, number)) for number in range(5)]
            await asyncio.sleep(0)
            tasks[3].cancel()
            await asyncio.gather(tasks[3], return_exceptions=True)
        assert await asyncio.gather(*tasks[:3], tasks[4]) == [0, 2, 4, 8]
        await between
        assert calls == [[0, 1, 2, 4]]  # the cancelled item is not among them
        assert await store.get_job("between") is not None
    finally:
        await store.close()


async def test_a_failing_item_fails_alone_and_the_other_items_are_repeated_one_by_one(database_url: str) -> None:
    store = await Store.open(database_url)

    def create(connection: Any, items: Sequence[str]) -> list[str]:
        for item in items:
            connection.exec_driver_sql("INSERT INTO properties VALUES (?, 'x')", (item,))
            if item == "bad":
                raise ValueError("not this one")
        return list(items)

    try:
        async with _busy(store):
            tasks = [
                asyncio.create_task(store._writer.run_together(create, item)) for item in ("a", "bad", "b", "a", "c")
            ]
            await asyncio.sleep(0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [results[0], results[2], results[4]] == ["a", "b", "c"]
        assert str(results[1]) == "not this one"
        assert isinstance(results[3], StoreError)  # its name is in use
        stored = await store._writer.run(
            lambda connection: (
                connection.exec_driver_sql("SELECT name FROM properties WHERE value = 'x'").scalars().all()
            )
        )
        assert sorted(stored) == ["a", "b", "c"]
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def _busy(store: Store) -> AsyncIterator[None]:
    """Block the writer, so that requests made in the meantime go into one transaction."""
    is_waiting, go_on = threading.Event(), threading.Event()

    def wait(_connection: Any) -> None:
        is_waiting.set()
        go_on.wait(30)

    waiting = asyncio.create_task(store._writer.run(wait))
    await asyncio.sleep(0)
    assert await asyncio.to_thread(is_waiting.wait, 30)
    try:
        yield
    finally:
        go_on.set()
        await waiting
