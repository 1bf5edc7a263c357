"""The guard of an open database file: faults of the file system around it, and a repair that fails half-way."""

import errno
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from store_contract import make_job

from clary.base.errors import StoreError
from clary.control.store import backups, file_guard
from clary.control.store.store import Store


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "clary.db"


@pytest.fixture
async def store(database: Path) -> AsyncIterator[Store]:
    store = await Store.open(f"sqlite:///{database}")
    yield store
    await store.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ENOTDIR, errno.EMFILE])
async def test_a_look_that_the_file_system_refuses_fails_one_write_and_no_later_one(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    await store.create_job(make_job("before"), {})

    def refused(_path: Any) -> os.stat_result:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(file_guard.os, "stat", refused)
    with pytest.raises(StoreError, match=os.strerror(number)) as refusal:
        await store.create_job(make_job("during"), {})
    monkeypatch.undo()
    assert refusal.value.retryable
    await store.create_job(make_job("after"), {})
    assert await store.get_job("during") is None


@pytest.mark.parametrize("step", ["replace", "fsync"])
async def test_a_repair_that_fails_half_way_loses_nothing_and_the_next_write_repeats_it(
    store: Store, database: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    await store.create_job(make_job("before"), {})
    database.unlink()

    def broken(*_arguments: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(*{"replace": (Path, "replace"), "fsync": (file_guard.os, "fsync")}[step], broken)
    with pytest.raises(StoreError, match="Input/output error"):
        await store.create_job(make_job("during"), {})
    monkeypatch.undo()
    await store.create_job(make_job("after"), {})
    assert await store.get_job("before") == make_job("before")
    with sqlite3.connect(database) as connection:
        assert sorted(row[0] for row in connection.execute("SELECT name FROM jobs")) == ["after", "before"]
    connection.close()


async def test_a_repaired_file_survives_a_power_cut_because_its_folder_is_synced(
    store: Store, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.create_job(make_job("before"), {})
    database.unlink()
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(f"{os.readlink(f'/proc/self/fd/{descriptor}')} {database.exists()}")
        fsync(descriptor)

    monkeypatch.setattr(backups.os, "fsync", noted)
    await store.create_job(make_job("after"), {})
    assert f"{database.parent} True" in synced


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), ZeroDivisionError("cosmic ray")])
async def test_an_error_that_no_guard_announces_fails_one_write_and_not_the_thread(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken() -> None:
        raise error

    monkeypatch.setattr(store._writer, "_before_commit", broken)
    with pytest.raises(StoreError, match=r"Input/output error|cosmic ray"):
        await store.create_job(make_job("during"), {})
    monkeypatch.undo()
    await store.create_job(make_job("after"), {})


async def test_a_file_that_cannot_be_looked_at_is_named_when_the_store_is_opened(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_path: Any) -> os.stat_result:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(file_guard, "_identity", refused)
    with pytest.raises(StoreError, match="cannot open the database"):
        await Store.open(f"sqlite:///{database}")
