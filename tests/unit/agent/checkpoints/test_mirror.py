"""The mirror's threads: rounds, stalls, the flush and its deadline, with a store that hangs or fails."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from fake_checkpoint_store import FakeCheckpointStore
from mirror_under_test import INTERVAL_S, PATIENCE_S, MirrorUnderTest
from mirrored_folder import MirroredFolder

from clary.agent.checkpoints import scanning
from clary.base.errors import Fault, ObjectStoreError


@pytest.fixture
def store() -> FakeCheckpointStore:
    return FakeCheckpointStore()


@pytest.fixture
def mirror_of(tmp_path: Path, store: FakeCheckpointStore):
    made: list[MirrorUnderTest] = []

    def build(**changes: float) -> MirrorUnderTest:
        made.append(MirrorUnderTest(tmp_path, store, **changes))
        return made[-1]

    yield build
    for test in made:
        test.close()


def hang(store: FakeCheckpointStore, *, on: str) -> threading.Event:
    """Block requests until the event is set or the store is closed."""
    let_go = threading.Event()

    def wait(operation: str, key: str) -> None:
        while on in key and not let_go.is_set():
            if store.closed.wait(0.01):
                raise ObjectStoreError("broken off")

    store.on_call = wait
    return let_go


def test_written_files_are_stored_and_reported(mirror_of) -> None:
    test = mirror_of()
    test.host.write("step-1/a", "12345")
    test.wait_for(lambda: test.facts and test.facts[-1].set_number == 1 and not test.facts[-1].dirty_files)
    facts = test.facts[-1]
    assert (facts.num_files, facts.size_bytes, facts.lag_s, facts.error) == (1, 5, 0, "")
    assert facts.committed_at is not None
    assert facts.stalled_since is None


def test_the_flush_stores_files_that_never_rested(mirror_of, tmp_path: Path, store) -> None:
    test = mirror_of(settle_s=INTERVAL_S)
    stop = threading.Event()

    def keep_writing() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            test.host.write("log", f"line {number}")
            time.sleep(0.005)

    writer = threading.Thread(target=keep_writing)
    writer.start()
    test.host.write("step/a", "1")
    test.wait_for(lambda: test.facts and test.facts[-1].set_number)
    stop.set()
    writer.join()
    assert test.mirror.store_last(PATIENCE_S).missed == ()
    store.closed.clear()  # as if a client of another host used the store
    assert MirroredFolder(tmp_path, store).content() == test.host.content()
    assert test.facts[-1].dirty_files == 0


def test_a_stall_and_its_end_are_reported_once_each(mirror_of, store) -> None:
    let_go = hang(store, on="step")
    test = mirror_of()
    test.host.write("step/a", "1234")
    test.wait_for(lambda: test.facts and test.facts[-1].stalled_since is not None)
    time.sleep(5 * INTERVAL_S)
    assert [note for note in test.notes if "stalled" in note] == [
        "checkpoints are stalled: 1 files, 4 bytes, are not stored; the newest set is none: "
        "the object store has not answered yet"
    ]
    let_go.set()
    test.wait_for(lambda: test.facts[-1].set_number == 1 and test.facts[-1].stalled_since is None)
    test.wait_for(lambda: test.lines == ["checkpoints are stored again; the newest set is 1"])


def test_a_failed_request_is_retried_and_its_error_is_reported(mirror_of, store) -> None:
    def fail(operation: str, key: str) -> None:
        raise ObjectStoreError("the store is not there", retryable=True)

    test = mirror_of()
    store.on_call = fail
    test.host.write("a", "1")
    test.wait_for(lambda: test.facts and test.facts[-1].stalled_since is not None)
    assert test.facts[-1].error == "the store is not there"
    store.on_call = lambda operation, key: None
    test.wait_for(lambda: test.facts[-1].set_number == 1 and not test.facts[-1].error)


def test_a_store_that_hangs_does_not_hold_the_flush_beyond_its_deadline(mirror_of, store) -> None:
    test = mirror_of()
    hang(store, on="step")
    for number in range(30):
        test.host.write(f"step/{number:02}", "x")
    started_s = time.monotonic()
    outcome = test.mirror.store_last(0.5)
    assert time.monotonic() - started_s < 5.0
    assert len(outcome.missed) == 30
    assert outcome.error == "the object store did not take them in time"
    facts = test.facts[-1]
    assert facts.missed == tuple(f"step/{number:02}" for number in range(20))
    assert facts.dirty_files == 30


def test_the_deadline_of_a_flush_can_be_shortened(mirror_of, store) -> None:
    test = mirror_of()
    hang(store, on="step")
    test.host.write("step/a", "x")
    outcomes: list[object] = []
    thread = threading.Thread(target=lambda: outcomes.append(test.mirror.store_last(600.0)))
    thread.start()
    time.sleep(0.2)
    test.mirror.shorten(0.2)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert outcomes[0].missed == ("step/a",)


def test_a_flush_tries_again_until_its_deadline(mirror_of, store) -> None:
    test = mirror_of()
    num_left = 3

    def fail(operation: str, key: str) -> None:
        nonlocal num_left
        if num_left:
            num_left -= 1
            raise ObjectStoreError("the store starts anew", retryable=True)

    store.on_call = fail
    test.host.write("a", "1")
    assert test.mirror.store_last(PATIENCE_S).missed == ()


def test_a_flush_that_is_refused_does_not_wait_for_its_deadline(mirror_of, store) -> None:
    test = mirror_of()

    def refuse(operation: str, key: str) -> None:
        raise ObjectStoreError("AccessDenied", fault=Fault.USER)

    store.on_call = refuse
    test.host.write("a", "1")
    outcome = test.mirror.store_last(600.0)
    assert (outcome.missed, outcome.error) == (("a",), "AccessDenied")


def test_giving_up_ends_a_flush_at_once(mirror_of, store) -> None:
    test = mirror_of()
    hang(store, on="step")
    test.host.write("step/a", "x")
    outcomes: list[object] = []
    thread = threading.Thread(target=lambda: outcomes.append(test.mirror.store_last(600.0)))
    thread.start()
    time.sleep(0.1)
    test.mirror.abort()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_failed_copy_is_noted_and_its_file_does_not_count_as_missed(mirror_of, store) -> None:
    def refuse(operation: str, key: str) -> None:
        if operation == "copy" and key.endswith("/bad"):
            raise ObjectStoreError("larger than a copy may be", fault=Fault.USER)

    test = mirror_of()
    for name in ("bad", "later"):
        test.host.write(f"step/{name}", "1")
    test.wait_for(lambda: "ckpt/step/later" in store.objects and test.facts[-1].set_number == 1)
    store.on_call = refuse
    for name in ("bad", "later"):
        test.host.write(f"step/{name}", "22")
    test.wait_for(lambda: store.objects["ckpt/step/later"] == b"22")
    time.sleep(5 * INTERVAL_S)
    assert test.facts[-1].stalled_since is None
    assert (test.mirror.store_last(600.0).missed, test.facts[-1].error) == ((), "")
    assert store.objects["ckpt/step/bad"] == b"1"
    noted = [note for note in test.host.notes if "'step/bad' is not up to date where people look" in note]
    assert noted == test.host.notes
    assert len(noted) == 1
    assert not test.notes, "no stall was told"


def test_copies_that_a_retry_may_mend_do_not_delay_the_flush(mirror_of, store) -> None:
    test = mirror_of()
    test.host.write("step/a", "1")
    test.wait_for(lambda: test.facts and test.facts[-1].set_number == 1)

    def fail(operation: str, key: str) -> None:
        if operation == "copy":
            raise ObjectStoreError("busy", retryable=True)

    store.on_call = fail
    test.host.write("step/a", "22")
    assert test.mirror.store_last(600.0).missed == ()
    assert len(test.host.notes) == 1


def test_an_unreadable_file_does_not_keep_others_from_their_plain_paths(mirror_of, store, monkeypatch) -> None:
    test = mirror_of()
    test.host.write("a/x", "1")
    test.wait_for(lambda: test.facts and test.facts[-1].set_number == 1)
    open_file = test.host.folder.open_file

    def refuse(path: str) -> int:
        if path.startswith("bad/"):
            raise PermissionError(13, "Permission denied", path)
        return open_file(path)

    monkeypatch.setattr(test.host.folder, "open_file", refuse)
    test.host.write("bad/y", "2")
    test.host.write("a/x", "22")
    test.wait_for(lambda: store.objects["ckpt/a/x"] == b"22")
    outcome = test.mirror.store_last(600.0)
    assert outcome.missed == ("bad/y",)
    assert "Permission denied" in outcome.error


def test_deletions_and_links_that_are_in_no_set_count_as_missed(mirror_of, store) -> None:
    test = mirror_of()
    test.host.write("step-1/a", "1")
    test.host.write("step-2/a", "1")
    (test.host.path / "latest").symlink_to("step-1")
    test.wait_for(lambda: test.facts and test.facts[-1].num_files == 2 and not test.facts[-1].lag_s)
    test.wait_for(lambda: "latest" in (test.host.writer.last.links or {}))

    def refuse(operation: str, key: str) -> None:
        raise ObjectStoreError("AccessDenied", fault=Fault.USER)

    store.on_call = refuse
    (test.host.path / "step-1/a").unlink()
    (test.host.path / "latest").unlink()
    (test.host.path / "latest").symlink_to("step-2")
    outcome = test.mirror.store_last(600.0)
    assert (outcome.missed, outcome.error) == (("latest", "step-1/a"), "AccessDenied")
    assert test.facts[-1].dirty_bytes == 0


def test_a_file_that_is_left_out_is_noted_once(mirror_of) -> None:
    test = mirror_of()
    (test.host.path / "out").symlink_to("/etc/passwd")
    test.host.write("a", "1")
    test.wait_for(lambda: test.facts and test.facts[-1].set_number == 1)
    test.host.write("b", "1")
    test.wait_for(lambda: test.facts[-1].set_number == 2)
    assert test.notes == ["checkpoints: left out, symbolic links that leave the folder: out"]
    assert test.mirror.store_last(PATIENCE_S).missed == ()


def test_an_unreadable_folder_is_an_error_and_no_empty_set(mirror_of, tmp_path: Path) -> None:
    test = mirror_of()
    test.host.write("a", "1")
    test.wait_for(lambda: test.facts and test.facts[-1].set_number == 1)
    test.host.path.rename(tmp_path / "moved")
    test.host.path.write_text("a file in its place")
    test.wait_for(lambda: "Not a directory" in test.facts[-1].error)
    assert test.mirror.store_last(0.3).missed == (".",)
    test.host.path.unlink()
    (tmp_path / "moved").rename(test.host.path)


@pytest.mark.parametrize("kind", ["files", "folders", "nested folders"])
def test_a_folder_with_too_many_entries_is_named_and_stored_no_further(mirror_of, store, monkeypatch, kind) -> None:
    monkeypatch.setattr(scanning, "MAX_ENTRIES", 20)
    test = mirror_of()
    test.host.write("step-1/a", "1")
    test.wait_for(lambda: test.facts and test.facts[-1].set_number == 1)
    root = Path(test.host.folder.inside)
    for number in range(30):
        if kind == "files":
            test.host.write(f"step-2/{number}", "2")
        else:
            (root / (f"f{number}" if kind == "folders" else "n/" * number)).mkdir(exist_ok=True)
    test.wait_for(lambda: test.notes)
    assert any("holds more than 20 files and folders, which is the limit" in note for note in test.notes)
    assert test.host.folder.inside in test.notes[-1]
    flushed = test.mirror.store_last(PATIENCE_S)
    assert "holds more than 20 files" in flushed.error
    assert test.facts[-1].set_number == 1


def test_a_program_that_ends_while_the_mirror_waits_for_rest_has_its_last_files_stored_at_once(mirror_of) -> None:
    test = mirror_of(interval_s=PATIENCE_S, settle_s=PATIENCE_S)
    is_settling = threading.Event()
    pause = test.mirror.pause

    def settle(seconds: float) -> bool:
        is_settling.set()
        return pause(seconds)

    test.mirror.pause = settle
    test.host.write("step/a", "1")
    test.mirror.flush()
    assert is_settling.wait(PATIENCE_S)
    began_s = time.monotonic()
    assert test.mirror.store_last(PATIENCE_S).missed == ()
    assert time.monotonic() - began_s < PATIENCE_S / 2
