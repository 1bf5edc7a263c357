"""Automatic backups go on after every failure, and tell why the last one failed."""

import asyncio
import errno
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from clary.base.clock import SystemClock
from clary.base.errors import StoreError
from clary.control.server import backup_keeping
from clary.control.server.backup_keeping import BackupKeeper
from clary.control.store import backups
from clary.control.store.database_life import BACKUP_FOLDER, DatabaseLife


class OneFile:
    """A store that is only a file."""

    def __init__(self, file: Path) -> None:
        self.file = file


@pytest.fixture
def keeper(tmp_path: Path) -> BackupKeeper:
    database = tmp_path / "clary.db"
    connection = sqlite3.connect(database)
    connection.execute("CREATE TABLE some (thing)")
    connection.close()
    life = DatabaseLife(tmp_path, keep=2)
    return BackupKeeper(OneFile(database), life, SystemClock(), interval_s=0.01)


def broken(*_arguments: Any, **_options: Any) -> None:
    raise OSError(errno.EIO, "Input/output error")


STEPS = {
    "make the folder": (Path, "mkdir"),
    "list the folder": (Path, "iterdir"),
    "find leftovers": (Path, "glob"),
    "measure": (backups.shutil, "disk_usage"),
    "rename": (Path, "replace"),
    "remove": (Path, "unlink"),
}


@pytest.mark.parametrize("step", STEPS)
async def test_a_step_that_the_file_system_refuses_is_told_as_the_stores_error(
    keeper: BackupKeeper, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    await keeper.make()
    monkeypatch.setattr(*STEPS[step], broken)
    with pytest.raises(StoreError, match="Input/output error"):
        await keeper.make()
    assert "Input/output error" in keeper.failure
    monkeypatch.undo()
    await keeper.make()
    assert keeper.failure == ""


async def test_backups_go_on_after_an_error_that_nobody_foresaw(
    keeper: BackupKeeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(backup_keeping, "FIRST_AFTER_S", 0.0)
    monkeypatch.setattr(backup_keeping, "REST_FACTOR", 0)
    make, failures = backups.Backups.make, [ZeroDivisionError("cosmic ray")]

    def sometimes(self: backups.Backups, *arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return make(self, *arguments)

    monkeypatch.setattr(backups.Backups, "make", sometimes)
    task = asyncio.create_task(keeper.run())
    try:
        async with asyncio.timeout(20):
            while not [*(tmp_path / BACKUP_FOLDER).glob("clary-*.db")]:
                assert not task.done()
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert "cosmic ray" in caplog.text


def test_a_way_out_is_told_even_if_the_backups_cannot_be_listed(
    keeper: BackupKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert keeper.backups is not None
    (keeper.backups._folder).mkdir()
    monkeypatch.setattr(Path, "iterdir", broken)
    assert "Input/output error" in keeper.backups.way_out()
