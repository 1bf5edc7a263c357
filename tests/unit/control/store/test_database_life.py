"""A missing, empty, foreign or damaged database: no new database is created by accident, and backups are restored."""

import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from store_contract import make_job

from clary.base.errors import StoreError
from clary.control.store import backups
from clary.control.store.backups import Backups
from clary.control.store.database_life import MARK_FILE, DatabaseLife
from clary.control.store.store import Store

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "clary.db"


async def open_store(database: Path, **options: bool) -> Store:
    return await Store.open(f"sqlite:///{database}", life=DatabaseLife(database.parent, keep=3, **options))


def backups_of(database: Path) -> Backups:
    return DatabaseLife(database.parent, keep=3).backups(database)


async def lived_in(database: Path, *, makes_backup: bool = True) -> None:
    """Create a database with a job, and if asked a backup of it."""
    store = await open_store(database)
    await store.create_job(make_job("kept"), {})
    await store.close()
    if makes_backup:
        backups_of(database).make(NOW)


def remove(database: Path) -> None:
    database.unlink()


def empty(database: Path) -> None:
    database.write_bytes(b"")


def without_tables(database: Path) -> None:
    database.unlink()
    sqlite3.connect(database).execute("PRAGMA user_version = 1").connection.close()
    connection = sqlite3.connect(database)
    connection.execute("CREATE TABLE other (x)")
    connection.close()


def no_database(database: Path) -> None:
    database.write_bytes(b"hello, this is text\n" * 500)


def malformed(database: Path) -> None:
    data = bytearray(database.read_bytes())
    for page in range(1, len(data) // 4096):
        data[page * 4096 : page * 4096 + 200] = b"\xa5" * 200
    database.write_bytes(data)


def one_page(database: Path) -> None:
    with database.open("r+b") as file:
        file.truncate(4096)


def of_another_life(database: Path) -> None:
    connection = sqlite3.connect(database)
    connection.execute("UPDATE properties SET value = 'other' WHERE name = 'database_id'")
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "ruin",
    [remove, empty, without_tables, no_database, malformed, one_page, of_another_life],
    ids=lambda ruin: ruin.__name__,
)
async def test_a_lost_database_is_an_error_and_its_backup_restores_it(
    database: Path, ruin: Callable[[Path], None]
) -> None:
    await lived_in(database)
    ruin(database)
    before = database.read_bytes() if database.exists() else None
    with pytest.raises(StoreError, match=r"clary backup restore.*clary up --new-database") as told:
        await open_store(database)
    assert str(backups_of(database).all()[0].path) in str(told.value)
    assert (database.read_bytes() if database.exists() else None) == before  # no new database was created

    backups_of(database).bring_back(None, NOW)
    store = await open_store(database)
    try:
        assert await store.get_job("kept") == make_job("kept")
    finally:
        await store.close()


@pytest.mark.parametrize("ruin", [remove, malformed], ids=lambda ruin: ruin.__name__)
async def test_a_new_database_is_created_on_request(database: Path, ruin: Callable[[Path], None]) -> None:
    await lived_in(database, makes_backup=False)
    ruin(database)
    damaged = database.read_bytes() if database.exists() else b""
    store = await open_store(database, begins_anew=True)
    assert await store.get_job("kept") is None
    await store.close()
    store = await open_store(database)  # the folder's database from now on
    await store.close()
    aside = list(database.parent.glob("clary.db.set-aside-*Z"))
    assert [path.read_bytes() for path in aside] == ([damaged] if damaged else [])


async def test_log_files_alone_prove_that_a_database_existed(database: Path) -> None:
    logs = database.parent / "logs"
    logs.mkdir()
    (logs / "job%2Falgo-1-1.log").write_bytes(b"lines")
    with pytest.raises(StoreError, match=r"it holds logs \(1\)"):
        await open_store(database)
    assert not database.exists()


async def test_a_folder_whose_first_start_failed_may_start_again(database: Path) -> None:
    for name in ("logs", "jobs", "objects", "secrets"):
        (database.parent / name).mkdir()
    (database.parent / "secrets" / "root.json").write_text("{}")
    store = await open_store(database)
    await store.close()
    (database.parent / MARK_FILE).write_text("no JSON")
    store = await open_store(database)  # the database itself holds its identity
    await store.close()


async def test_few_backups_are_kept_and_a_damaged_backup_is_not_restored(database: Path) -> None:
    await lived_in(database, makes_backup=False)
    kept = backups_of(database)
    for minute in range(5):
        kept.make(NOW + timedelta(minutes=minute))
    assert [item.made_at for item in kept.all()] == [NOW + timedelta(minutes=minute) for minute in (4, 3, 2)]
    malformed(kept.all()[0].path)
    with pytest.raises(StoreError, match="is damaged"):
        kept.bring_back(None, NOW)
    older = kept.all()[1].path.name
    kept.bring_back(older, NOW)
    assert backups.check(database, monotonic=time.monotonic) == ""


async def test_the_newest_backup_stays_the_newest_when_the_clock_is_set_back(database: Path) -> None:
    await lived_in(database, makes_backup=False)
    kept = backups_of(database)
    made = [kept.make(NOW + timedelta(days=days)).path for days in (0, 1, 2, -30, -30)]
    assert [item.path for item in kept.all()] == made[:1:-1]
    assert str(made[-1]) in kept.way_out()
    assert kept.bring_back(None, NOW)[0].path == made[-1]


async def test_a_backup_never_fills_the_disk(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await lived_in(database)
    usage = backups.shutil.disk_usage(database.parent)
    monkeypatch.setattr(backups.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(StoreError, match="free space there"):
        backups_of(database).make(NOW)
    assert len(backups_of(database).all()) == 1


@pytest.mark.parametrize("how", ["deleted", "replaced", "without its journal", "without its locks", "all three files"])
async def test_a_database_that_is_deleted_under_the_service_is_put_back(database: Path, how: str) -> None:
    store = await open_store(database)
    await store.create_job(make_job("before"), {})
    wal = Path(f"{database}-wal")
    if how in ("deleted", "all three files"):
        database.unlink()
    if how in ("without its journal", "all three files"):
        wal.unlink()
    if how in ("without its locks", "all three files"):
        Path(f"{database}-shm").unlink()
    if how == "replaced":
        other = database.with_name("other")
        other.write_bytes(b"")
        other.replace(database)
    await store.create_job(make_job("during"), {})
    await store.create_job(make_job("after"), {})
    assert [job.name for job in await store.unfinished_jobs()] == ["after", "before", "during"]
    await store.close()
    store = await open_store(database)
    try:
        assert [job.name for job in await store.unfinished_jobs()] == ["after", "before", "during"]
        assert backups.check(database, monotonic=time.monotonic) == ""
    finally:
        await store.close()
