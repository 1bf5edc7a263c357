"""Files that are known to be unfinished: what waits for them, what a flush leaves out, what a restore says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fake_checkpoint_store import FakeCheckpointStore
from fake_judge import HELD
from mirrored_folder import PACE, MirroredFolder

from clary.agent.checkpoints.evidence.observations import Decision
from clary.contract.checkpoint_evidence import Evidence

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


def test_what_says_that_files_are_whole_is_in_the_set_and_a_restore_tells_doubts(host: MirroredFolder, store) -> None:
    host.write("a", "1")
    host.write("b", "2")
    host.judge.decisions["b"] = RESTED
    host.round()
    found = {file.path: (file.evidence, file.rested_s) for file in host.writer.last.files}
    assert found == {"a": ("closed", 0.0), "b": ("rested", 43.2)}
    again = MirroredFolder(host.path.parent, store)
    assert again.restored.warnings == (
        "checkpoints: of set 1 of algo-1 nothing says that b was whole but 43 s of rest; it is restored all the same",
    )
    assert not again.round(), "what is known of files makes no new set of them"


def test_a_file_that_is_stored_before_it_is_known_to_be_whole_has_what_is_known_in_the_end(
    host: MirroredFolder, store
) -> None:
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
