"""Files that are known to be unfinished: waits for them, flushes without them, and warnings of a restore."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fake_checkpoint_store import FakeCheckpointStore
from fake_judge import HELD
from mirrored_folder import PACE, MirroredFolder

from clary.agent.checkpoints.evidence.observations import Decision
from clary.contract.checkpoint_evidence import Evidence, is_whole
from clary.contract.checkpoint_sets import read_manifest, write_manifest

RESTED = Decision(is_whole=True, evidence=Evidence.RESTED, rested_s=43.21)


@pytest.fixture
def store() -> FakeCheckpointStore:
    return FakeCheckpointStore()


@pytest.fixture
def host(tmp_path: Path, store: FakeCheckpointStore) -> MirroredFolder:
    return MirroredFolder(tmp_path, store)


def restored(host: MirroredFolder, store: FakeCheckpointStore) -> dict[str, str]:
    again = MirroredFolder(host.path.parent, store)
    content = again.content()
    shutil.rmtree(again.path)
    return content


def test_half_a_checkpoint_is_waited_for_however_long_its_writer_pauses(host: MirroredFolder, store) -> None:
    host.write("ck-0/model", "0")
    host.round()
    host.write("ck-1/shard-0", "whole")
    host.write("ck-1/shard-1", "ha")
    host.judge.decisions["ck-1/shard-1"] = HELD
    for _ in range(60):
        choice = host.pair_of_looks()
        assert (choice.single, choice.noise, choice.unfinished) == ({}, {}, {"ck-1": {"ck-1/shard-1": HELD}})
    assert host.clock.seconds > 2 * PACE.patience_s
    assert restored(host, store) == {"ck-0/model": "0"}
    host.write("ck-1/shard-1", "half and half")
    host.judge.decisions.clear()
    host.pair_of_looks()
    assert restored(host, store) == {"ck-0/model": "0", "ck-1/shard-0": "whole", "ck-1/shard-1": "half and half"}


def test_a_file_that_is_kept_open_does_not_hold_up_saves_for_ever(host: MirroredFolder, store) -> None:
    host.write("run/database", "open all the time")
    host.judge.decisions["run/database"] = HELD
    for step in range(4):
        host.write("run/model", f"step {step}")
        for _ in range(6):
            choice = host.pair_of_looks()
    assert choice.noise == {"run": {"run/database"}}
    assert restored(host, store) == {"run/model": "step 3"}
    last = host.writer.last
    assert (last.left_out, is_whole(last.evidence_counts)) == (("run/database",), False)
    host.judge.decisions.clear()
    host.pair_of_looks()
    last = host.writer.last
    assert (last.left_out, is_whole(last.evidence_counts)) == ((), True)
    assert restored(host, store) == {"run/database": "open all the time", "run/model": "step 3"}


def test_a_deleted_file_is_no_longer_reported_as_lacking(host: MirroredFolder, store) -> None:
    store_without_database(host)
    (host.path / "run/database").unlink()
    for _ in range(3):
        host.pair_of_looks()
    assert host.writer.last.left_out == ()


def store_without_database(host: MirroredFolder) -> None:
    host.write("run/database", "open all the time")
    host.judge.decisions["run/database"] = HELD
    for step in range(4):
        host.write("run/model", f"step {step}")
        for _ in range(6):
            host.pair_of_looks()
    assert host.writer.last.left_out == ("run/database",)


def test_restores_warn_of_lacking_files_until_their_group_is_gone(host: MirroredFolder, store) -> None:
    store_without_database(host)
    again = MirroredFolder(host.path.parent, store)
    number = host.writer.last.number
    assert again.restored.warnings == (
        f"checkpoints: set {number} of algo-1 was stored without what had changed in run/database, so that it may lack "
        "a part of a checkpoint; it is restored nevertheless",
    )
    assert not again.round(), "there is nothing new"
    again.write("other/model", "1")
    again.write("run/notes", "beside what was restored")
    (again.path / "run/model").chmod(0o600)
    again.round()
    assert again.writer.last.left_out == ("run/database",), "nobody here can know what was in it"
    again.write("run/model", "written anew")
    again.round()
    assert (again.writer.last.left_out, is_whole(again.writer.last.evidence_counts)) == ((), True)


def test_a_lacking_file_that_is_stored_after_a_restore_is_not_lacking(host: MirroredFolder, store) -> None:
    store_without_database(host)
    again = MirroredFolder(host.path.parent, store)
    again.write("run/database", "here it is")
    again.round()
    assert again.writer.last.left_out == ()


def test_files_that_are_stored_one_by_one_are_no_whole_set_until_all_are_at_rest(host: MirroredFolder, store) -> None:
    for number in range(12):
        host.write(f"ck/shard-{number}", "x")
        choice = host.pair_of_looks(lambda number=number: host.write(f"ck/part-{number}", "x"))
    assert set(choice.single) == {"ck"}
    last = host.writer.last
    assert (last.left_out, is_whole(last.evidence_counts)) == (("ck/",), False)
    for _ in range(2):
        host.pair_of_looks()
    last = host.writer.last
    assert (last.left_out, is_whole(last.evidence_counts)) == ((), True)


def test_a_set_of_an_earlier_release_does_not_record_lacking_files(host: MirroredFolder, store) -> None:
    host.write("ck-1/a", "1")
    host.write("top", "1")
    host.round()
    key = next(key for key in store.objects if "/set-" in key)
    store.objects[key] = write_manifest(replace(read_manifest(store.objects[key]), left_out=None))
    old = read_manifest(store.objects[key])
    assert (old.may_lack, is_whole(old.evidence_counts)) == ((".", "ck-1/"), False)
    again = MirroredFolder(host.path.parent, store)
    assert again.content() == {"ck-1/a": "1", "top": "1"}
    assert again.restored.warnings == ()
    again.write("ck-2/a", "2")
    again.round()
    assert again.writer.last.left_out == (".", "ck-1/"), "what it may lack is not known of the sets after it either"
    again.write("top", "2")
    (again.path / "ck-1/a").unlink()
    again.round()
    assert again.writer.last.left_out == ()


def test_a_file_that_was_open_when_another_took_its_place_is_not_stored(host: MirroredFolder, store) -> None:
    host.write("last.pt", "0")
    host.round()
    host.judge.decisions["last.pt"] = HELD
    for step in range(1, 9):
        host.write("part", f"{step}")
        (host.path / "part").replace(host.path / "last.pt")

        def turn(step: int = step) -> None:
            host.write("part", f"{step}!")
            (host.path / "part").replace(host.path / "last.pt")

        assert host.pair_of_looks(turn).replaced == {}
    assert restored(host, store) == {"last.pt": "0"}


def test_a_set_records_the_evidence_of_wholeness_and_a_restore_warns_of_doubts(host: MirroredFolder, store) -> None:
    host.write("a", "1")
    host.write("b", "2")
    host.judge.decisions["b"] = RESTED
    host.round()
    found = {file.path: (file.evidence, file.rested_s) for file in host.writer.last.files}
    assert found == {"a": ("closed", 0.0), "b": ("rested", 43.2)}
    again = MirroredFolder(host.path.parent, store)
    assert again.restored.warnings == (
        "checkpoints: of set 1 of algo-1 nothing says that b was whole but 43 s of rest; it is restored nevertheless",
    )
    assert not again.round(), "what is known of files makes no new set of them"


def test_evidence_found_after_the_upload_of_a_file_is_in_its_set(host: MirroredFolder, store) -> None:
    host.write("step/a", "1")
    host.judge.decisions["step/a"] = RESTED
    store.on_call = lambda operation, key: host.write("step/late", "x") if operation == "put" else None
    assert not host.round(), "something new is there"
    store.on_call = lambda operation, key: None
    host.judge.decisions.clear()
    host.round()
    assert [(file.path, file.evidence) for file in host.writer.last.files] == [
        ("step/a", "closed"),
        ("step/late", "closed"),
    ]
