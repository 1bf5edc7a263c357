"""A folder is stored in the object store while a program writes it; tests of every kind of entry."""

import io
import os
import threading
import time

import pytest

from clary.agent.artifacts import folder_mirror
from clary.agent.artifacts.folder_mirror import FolderMirror
from clary.base.beneath import Folder
from clary.base.errors import ClaryError
from clary.testing.fake_object_store import FakeObjectStore

LIMIT_S = 60.0


class FakeClosableStore(FakeObjectStore):
    """Records that it was closed."""

    is_closed = False

    def close(self):
        self.is_closed = True


@pytest.fixture
def store():
    return FakeClosableStore()


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "ml" / "output" / "tensors"
    place.mkdir(parents=True)
    return place


@pytest.fixture
def mirror(tmp_path, store):
    made = FolderMirror(
        tmp_path / "ml",
        ("output", "tensors"),
        s3_uri="s3://bucket/t/job/debug-output/",
        open_store=lambda: store,
        interval_s=0.02,
    )
    yield made
    made.abort()
    assert made.join(LIMIT_S)


def keys(store):
    return sorted(key.removeprefix("t/job/debug-output/") for _, key in store.objects)


def wait_for(condition):
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_files_are_stored_as_they_appear_and_remaining_files_at_the_end(mirror, store, folder):
    (folder / "steps" / "000").mkdir(parents=True)
    (folder / "steps" / "000" / "a.tensors").write_bytes(b"one")
    mirror.start()
    wait_for(lambda: keys(store) == ["steps/000/a.tensors"])
    (folder / "steps" / "000" / "b.tensors").write_bytes(b"two")
    (folder / ".c.part").write_bytes(b"half")
    assert mirror.finish(LIMIT_S)
    assert keys(store) == ["steps/000/a.tensors", "steps/000/b.tensors"]
    assert store.objects["bucket", "t/job/debug-output/steps/000/b.tensors"] == b"two"
    assert mirror.num_stored == 2
    assert store.is_closed


def test_end_marks_of_a_training_are_stored_after_all_other_files(mirror, store, folder):
    (folder / "ended").mkdir()
    (folder / "ended" / "worker_0.json").write_text("{}")
    (folder / "END_OF_JOB.ts").touch()
    (folder / "zzz").write_bytes(b"x")
    mirror.start()
    assert mirror.finish(LIMIT_S)
    order = [key.removeprefix("t/job/debug-output/") for _, key in store.objects]
    assert order == ["zzz", "END_OF_JOB.ts", "ended/worker_0.json"]


def test_a_file_that_grew_is_stored_again_at_the_end_at_the_latest(mirror, store, folder):
    (folder / "events").write_bytes(b"one")
    mirror.start()
    wait_for(lambda: keys(store) == ["events"])
    (folder / "events").write_bytes(b"one two")
    assert mirror.finish(LIMIT_S)
    assert store.objects["bucket", "t/job/debug-output/events"] == b"one two"


def test_an_end_mark_is_stored_after_the_growth_of_earlier_files(mirror, store, folder):
    (folder / "events").write_bytes(b"one")
    mirror.start()
    wait_for(lambda: keys(store) == ["events"])
    (folder / "events").write_bytes(b"one two")
    (folder / "END_OF_JOB.ts").touch()
    time.sleep(0.5)  # many rounds
    assert keys(store) == ["events"]
    mirror.flush()
    wait_for(lambda: keys(store) == ["END_OF_JOB.ts", "events"])
    assert store.objects["bucket", "t/job/debug-output/events"] == b"one two"


def test_links_and_pipes_are_left_where_they_are(mirror, store, folder, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("hidden")
    (folder / "link").symlink_to(secret / "key")
    (folder / "below").symlink_to(secret)
    os.mkfifo(folder / "pipe")
    (folder / "plain").write_text("shown")
    mirror.start()
    assert mirror.finish(LIMIT_S)
    assert keys(store) == ["plain"]


def test_a_folder_that_a_link_has_replaced_is_not_followed(mirror, store, folder, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("hidden")
    folder.rmdir()
    folder.symlink_to(secret)
    mirror.start()
    assert not mirror.finish(LIMIT_S)
    assert mirror.error
    assert keys(store) == []


@pytest.mark.parametrize(("pause_s", "is_stored"), [(0.02, True), (60.0, False)])
def test_the_last_round_lasts_as_long_as_bytes_flow(mirror, store, folder, monkeypatch, pause_s, is_stored):
    (folder / "a").write_bytes(b"x" * 100)
    is_aborted = threading.Event()
    upload, abort = store.upload_stream, store.close

    def slowly(bucket, key, stream):
        pieces = []
        while piece := stream.read(2):
            pieces.append(piece)
            if is_aborted.wait(pause_s):
                raise ClaryError("broken off")
        upload(bucket, key, io.BytesIO(b"".join(pieces)))

    monkeypatch.setattr(store, "upload_stream", slowly)
    monkeypatch.setattr(store, "close", lambda: (is_aborted.set(), abort()))
    mirror.start()
    assert mirror.finish(0.5, longest_s=LIMIT_S) == is_stored
    assert mirror.error == ("" if is_stored else "nothing was sent for 0.5 s")


def test_an_upload_that_keeps_failing_is_named_at_the_end(mirror, store, folder):
    (folder / "a").write_text("x")
    store.fail_on = {("PUT", "t/job/debug-output/a")}
    mirror.start()
    wait_for(lambda: mirror.error)
    assert not mirror.finish(LIMIT_S)
    assert "t/job/debug-output/a" in mirror.error


def test_a_missing_folder_is_no_error(mirror, folder):
    folder.rmdir()
    mirror.start()
    assert mirror.finish(LIMIT_S)
    assert mirror.num_stored == 0


def test_end_marks_of_a_training_that_saved_nothing_are_not_stored(mirror, store, folder):
    (folder / "END_OF_JOB.ts").touch()
    mirror.start()
    assert mirror.finish(LIMIT_S)
    assert keys(store) == []


def test_an_unreadable_file_does_not_prevent_the_upload_of_others(mirror, store, folder, monkeypatch):
    (folder / "a").write_text("hidden")
    (folder / "b").write_text("shown")
    real = Folder.open_file

    def refusing(opened, path):
        if path == "a":
            raise PermissionError(13, "Permission denied", path)
        return real(opened, path)

    monkeypatch.setattr(Folder, "open_file", refusing)
    mirror.start()
    wait_for(lambda: keys(store) == ["b"])
    assert not mirror.finish(LIMIT_S)
    assert "Permission denied" in mirror.error


def test_an_end_mark_waits_for_a_file_that_cannot_be_read_until_all_writers_have_ended(
    mirror, store, folder, monkeypatch
):
    (folder / "a").write_text("hidden")
    (folder / "b").write_text("shown")
    (folder / "ended").mkdir()
    (folder / "ended" / "worker_0.json").write_text("{}")
    looks = []
    real = Folder.open_file

    def refusing(opened, path):
        if path == "a":
            looks.append(path)
            raise PermissionError(13, "Permission denied", path)
        return real(opened, path)

    monkeypatch.setattr(Folder, "open_file", refusing)
    mirror.start()
    wait_for(lambda: len(looks) >= 4)  # a mark is due from the second round on
    assert keys(store) == ["b"]
    mirror.flush()
    wait_for(lambda: keys(store) == ["b", "ended/worker_0.json"])
    assert not mirror.finish(LIMIT_S)
    assert "a: " in mirror.error


def test_an_end_mark_is_stored_after_a_file_that_can_be_read_again(mirror, store, folder, monkeypatch):
    (folder / "a").write_text("x")
    (folder / "ended").mkdir()
    (folder / "ended" / "worker_0.json").write_text("{}")
    looks = []
    real = Folder.open_file

    def refusing_a_few_times(opened, path):
        looks.append(path)
        if path == "a" and looks.count("a") < 4:
            raise PermissionError(13, "Permission denied", path)
        return real(opened, path)

    monkeypatch.setattr(Folder, "open_file", refusing_a_few_times)
    mirror.start()
    wait_for(lambda: len(keys(store)) == 2)
    assert [key.removeprefix("t/job/debug-output/") for _, key in store.objects] == ["a", "ended/worker_0.json"]
    assert mirror.finish(LIMIT_S)


def test_end_marks_of_an_earlier_attempt_are_deleted(mirror, store, folder):
    for name in ("END_OF_JOB.ts", "ended/algo-1.try-1.of-2", "ended/algo-2.try-1.of-2", "steps/old"):
        store.objects["bucket", f"t/job/debug-output/{name}"] = b""
    mirror.forget(["END_OF_JOB.ts", "ended/algo-1.try-1.of-2", "ended/never.try-1.of-2"])
    mirror.start()
    assert mirror.finish(LIMIT_S)
    assert keys(store) == ["ended/algo-2.try-1.of-2", "steps/old"]


def test_an_end_mark_that_cannot_be_deleted_does_not_prevent_uploads(mirror, store, folder):
    (folder / "a").write_text("x")
    store.fail_on = {("DELETE", "t/job/debug-output/END_OF_JOB.ts")}
    mirror.forget(["END_OF_JOB.ts"])
    mirror.start()
    assert mirror.finish(LIMIT_S)
    assert keys(store) == ["a"]


def test_the_end_mark_of_one_of_several_folders_is_stored_even_without_files(tmp_path, store, folder):
    (folder / "ended").mkdir()
    (folder / "ended" / "algo-2.try-1.of-2").touch()
    made = FolderMirror(
        tmp_path / "ml",
        ("output", "tensors"),
        s3_uri="s3://bucket/t/job/debug-output/",
        open_store=lambda: store,
        interval_s=0.02,
        stores_bare_end=True,
    )
    made.start()
    assert made.finish(LIMIT_S)
    assert keys(store) == ["ended/algo-2.try-1.of-2"]
    assert made.join(LIMIT_S)


@pytest.mark.parametrize(("name", "made"), [("MAX_ENTRIES", "folders"), ("MAX_FILES", "files")])
def test_a_folder_with_too_many_entries_is_scanned_to_a_limit_and_named(mirror, store, folder, monkeypatch, name, made):
    monkeypatch.setattr(folder_mirror, name, 20)
    for number in range(30):
        (folder / str(number)).mkdir() if made == "folders" else (folder / str(number)).write_text("1")
    mirror.start()
    wait_for(lambda: mirror.error)
    assert mirror.error.startswith("the folder holds more than 20 files")
    assert not mirror.finish(LIMIT_S)
    assert len(keys(store)) == (0 if made == "folders" else 20)
