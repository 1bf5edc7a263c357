"""Damage to a state folder, and the report if a service does not handle the damage correctly."""

import contextlib
import shutil
import sqlite3
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from clary.contract.agent_protocol import LogBlock
from clary.contract.log_blocks import pack_block, parse_blocks
from clary.control.state_folder import StateFolder
from clary.control.store.log_files.log_records import StreamHeader
from clary.control.store.log_files.stream_file import StreamFile, create_stream_file
from clary.testing.faults import fault_restart_strikes, fault_row_strikes, fault_ruin, fault_state_strikes
from clary.testing.faults.fault_plan import Fault, FaultKind, Moment, Ruin
from clary.testing.faults.fault_ruin import BrokenPromise

FAULT = Fault(number=1, kind=FaultKind.LOSE_DATABASE, moment=Moment.ANY, pause_s=0, duration_s=0, choice=0.9)
REFUSAL = "{path} is missing; use clary up --new-database or clary up --new-keys"


@dataclass
class FakeService:
    """Returns the scripted output and runs the scripted action when it is started without its database or keys."""

    says: str
    then: object = lambda: None
    is_up: bool = True
    starts: list = field(default_factory=list)

    @contextlib.contextmanager
    def down(self):
        self.is_up = False
        yield
        self.is_up = True

    def refusal(self):
        self.then()
        return self.says

    def kill(self):
        self.is_up = False


@dataclass
class FakeWorld:
    """A state folder with a fake service."""

    home: Path
    service: FakeService
    aside: Path
    database_url: str = ""
    pages: list = field(default_factory=list)
    ask = staticmethod(lambda call: call())

    def own_page(self, page, body=None):
        self.pages.append(body)
        entries = [] if any(self.pages) else [{"id": 3, "name": "job", "is_held": True, "source": "jobs"}]
        return {"entries": entries}


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setattr(fault_ruin, "WAIT_S", 0.3)
    folder = StateFolder(tmp_path / "home")
    folder.create()
    folder.load_secrets()
    (folder.root / "clary.db").write_bytes(b"SQLite format 3\0" + bytes(5000))
    return FakeWorld(folder.root, FakeService(""), tmp_path / "aside")


@pytest.mark.parametrize(
    ("way", "left"), [(Ruin.DELETED, None), (Ruin.EMPTIED, b""), (Ruin.HALVED, b"01234"), (Ruin.GARBLED, b"\xff")]
)
def test_a_file_is_damaged_as_the_plan_says(tmp_path, way, left):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    fault = replace(FAULT, ruin=way)
    assert fault_ruin.ruin(path, fault)
    found = path.read_bytes() if path.exists() else None
    assert found == left or (way is Ruin.GARBLED and found.startswith(left) and len(found) == 10)
    assert fault_ruin.ruin(tmp_path / "absent", fault) is False


def test_files_put_aside_are_restored_and_new_files_are_removed(tmp_path):
    there, absent = tmp_path / "there", tmp_path / "absent"
    there.write_text("kept")
    put_back = fault_ruin.put_aside([there, absent], tmp_path / "aside")
    there.unlink()
    absent.write_text("made meanwhile")
    put_back()
    assert there.read_text() == "kept"
    assert not absent.exists()


@pytest.mark.parametrize("way", list(Ruin))
@pytest.mark.parametrize("strike", [fault_restart_strikes.lose_database, fault_restart_strikes.lose_keys])
def test_a_start_that_is_refused_by_name_is_accepted_as_correct(world, strike, way):
    lost = world.home / "clary.db" if "database" in strike.__name__ else StateFolder(world.home).secrets_path
    before = lost.read_bytes()
    world.service.says = REFUSAL.format(path=lost)
    assert strike(world, replace(FAULT, ruin=way)) is not None
    assert lost.read_bytes() == before
    assert world.service.is_up


@pytest.mark.parametrize("case", ["it starts", "other words", "it begins anew"])
def test_a_start_without_its_database_that_is_not_refused_is_reported(world, case):
    path = world.home / "clary.db"
    before = path.read_bytes()
    world.service.says = {"it starts": "", "other words": "Traceback"}.get(case, REFUSAL.format(path=path))
    if case == "it begins anew":
        world.service.then = lambda: path.write_bytes(b"new")
    with pytest.raises(BrokenPromise, match=r"starts without|does not say|has changed"):
        fault_restart_strikes.lose_database(world, replace(FAULT, ruin=Ruin.DELETED))
    assert path.read_bytes() == before


@pytest.mark.parametrize("way", list(Ruin))
def test_a_database_that_is_not_restored_is_reported(world, way):
    Path(f"{world.home}/clary.db-wal").touch()
    Path(f"{world.home}/clary.db-shm").touch()
    with pytest.raises(BrokenPromise, match="is put back"):
        fault_state_strikes.delete_database(world, replace(FAULT, ruin=way))


def test_a_database_that_is_restored_is_accepted_as_correct(world):
    path = world.home / "clary.db"
    copy = world.home / "draft"
    shutil.copy(path, copy)
    timer = threading.Timer(0.1, copy.replace, [path])
    timer.start()
    assert fault_state_strikes.delete_database(world, replace(FAULT, ruin=Ruin.DELETED)) is not None
    timer.join()


@pytest.mark.parametrize("strike", ["damage_keys", "damage_service_record", "damage_store_record"])
@pytest.mark.parametrize("way", list(Ruin))
def test_files_that_stay_damaged_are_reported(world, strike, way):
    for name in ("service.json", "seaweed.json"):
        (world.home / "run" / name).write_text('{"ports": {}}')
    with pytest.raises(BrokenPromise):
        getattr(fault_state_strikes, strike)(world, replace(FAULT, ruin=way)).mend()


def test_no_file_is_removed_while_the_service_is_down(world):
    world.service.is_up = False
    assert fault_state_strikes.delete_database(world, replace(FAULT, ruin=Ruin.DELETED)) is None
    assert fault_state_strikes.damage_keys(world, replace(FAULT, ruin=Ruin.DELETED)) is None


@pytest.mark.parametrize("way", list(Ruin))
def test_a_torn_log_keeps_its_whole_lines(world, way):
    path = world.home / "logs" / "a.log"
    create_stream_file(path, StreamHeader(stream="a", created_at_ms=0, stream_id=1))
    for _ in range(2):  # the second round appends to a torn log
        stream = StreamFile(path)
        stream.append(stream.index.next_sequence, [LogBlock(at_ms=1, text="one\ntwo", rank=None)], now_ms=1)
        stream.close()
        size = path.stat().st_size
        assert fault_restart_strikes.tear_log(world, replace(FAULT, ruin=way)) is not None
        assert path.stat().st_size > size
    stream = StreamFile(path)
    assert [record.message for record in stream.view().forward(0, 9)] == ["one", "two", "one", "two"]
    stream.close()


def test_a_torn_spool_keeps_its_whole_blocks(tmp_path):
    path = tmp_path / "segment"
    block = pack_block(b"whole", at_ms=1, rank=None)
    path.write_bytes(block)
    fault_state_strikes.tear(path, len(block), pack_block(b"torn", at_ms=1, rank=None))
    assert path.stat().st_size > len(block)
    assert [item.text for item in parse_blocks(path.read_bytes())[0]] == ["whole"]


@pytest.mark.parametrize("is_mended_meanwhile", [False, True])
def test_a_damaged_row_is_repaired_and_released(world, is_mended_meanwhile):
    database = world.home / "clary.db"
    database.unlink()
    record = '{"name": "job", "status": "InProgress", "and": "more than sixty characters in all"}'
    with contextlib.closing(sqlite3.connect(database)) as file:
        file.execute("CREATE TABLE jobs (name TEXT, document TEXT)")
        file.execute("INSERT INTO jobs VALUES ('job', ?)", (record,))
        file.commit()

    def now():
        with contextlib.closing(sqlite3.connect(database)) as file:
            return file.execute("SELECT document FROM jobs").fetchone()[0]

    damage = fault_row_strikes.spoil_row(world, replace(FAULT, kind=FaultKind.SPOIL_ROW, amount=1.0), "job")
    assert damage.jobs == ("job",)
    assert now() == record[:60]
    if is_mended_meanwhile:  # the service has written a newer record
        record = '{"name": "job", "status": "Completed"}'
        with contextlib.closing(sqlite3.connect(database)) as file:
            file.execute("UPDATE jobs SET document = ?", (record,))
            file.commit()
    damage.mend()
    assert {"action": "release", "id": 3} in world.pages
    assert now() == record
    assert fault_row_strikes.spoil_row(world, FAULT, "") is None
    assert fault_row_strikes.spoil_row(world, FAULT, "nobody") is None
