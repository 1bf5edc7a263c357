"""`clary backup restore` while the service runs: errors of the copy are told before the service is ended for it."""

import sqlite3
from contextlib import closing

import pytest

from clary.cli import backup
from clary.cli.main import main

NAME = "clary-20260102T030405000000Z.db"


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """Let a service run in a state folder with one backup; return the backup's path."""
    monkeypatch.setenv("CLARY_HOME", str(tmp_path))
    monkeypatch.delenv("CLARY_DATABASE_URL", raising=False)
    monkeypatch.setattr(backup, "find_running", lambda settings: object())
    path = tmp_path / "backups" / NAME
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("create table jobs (name text)")
        database.executemany("insert into jobs values (?)", [("x" * 500,)] * 100)
    return path


@pytest.mark.parametrize("arguments", [[], [NAME]])
def test_a_sound_copy_waits_for_the_end_of_the_service(copy, capsys, arguments):
    assert main(["backup", "restore", *arguments]) == 2
    assert capsys.readouterr().err == "clary: the service runs and has the database open; end it first: clary down\n"


def test_a_damaged_copy_is_told_first(copy, capsys):
    copy.write_bytes(copy.read_bytes()[:5000])
    assert main(["backup", "restore"]) == 2
    assert f"{NAME} is damaged" in capsys.readouterr().err


def test_a_name_without_a_copy_is_told_first(copy, capsys):
    assert main(["backup", "restore", "other"]) == 2
    assert "there is no backup other" in capsys.readouterr().err


def test_postgresql_is_told_first(copy, monkeypatch, capsys):
    monkeypatch.setenv("CLARY_DATABASE_URL", "postgresql://clary@/x")
    assert main(["backup", "restore"]) == 2
    assert "pg_dump" in capsys.readouterr().err
