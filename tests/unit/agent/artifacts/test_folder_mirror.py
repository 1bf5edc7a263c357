"""Folders that reach the object store while a program writes them, for every kind of entry in them."""

import os
import time

import pytest

from clary.agent.artifacts.folder_mirror import FolderMirror
from clary.base.beneath import Folder
from clary.testing.fake_object_store import FakeObjectStore

LIMIT_S = 60.0


class FakeClosableStore(FakeObjectStore):
    """Knows that it was closed."""

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


def test_files_are_stored_while_they_appear_and_the_rest_at_the_end(mirror, store, folder):
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


def test_what_says_that_a_training_is_over_is_stored_behind_everything_else(mirror, store, folder):
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


def test_a_store_that_refuses_is_asked_again_and_named_in_the_end(mirror, store, folder):
    (folder / "a").write_text("x")
    store.fail_on = {("PUT", "t/job/debug-output/a")}
    mirror.start()
    wait_for(lambda: mirror.error)
    assert not mirror.finish(LIMIT_S)
    assert "t/job/debug-output/a" in mirror.error


def test_a_folder_that_never_was_is_no_trouble(mirror, folder):
    folder.rmdir()
    mirror.start()
    assert mirror.finish(LIMIT_S)
    assert mirror.num_stored == 0


def test_the_end_of_a_training_that_saved_nothing_is_not_stored(mirror, store, folder):
    (folder / "END_OF_JOB.ts").touch()
    mirror.start()
    assert mirror.finish(LIMIT_S)
    assert keys(store) == []


def test_a_file_that_can_not_be_read_keeps_no_other_from_the_store(mirror, store, folder, monkeypatch):
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


def test_ends_of_an_earlier_try_are_gone_before_anything_is_stored(mirror, store, folder):
    for name in ("END_OF_JOB.ts", "ended/algo-1.try-1.of-2", "ended/algo-2.try-1.of-2", "steps/old"):
        store.objects["bucket", f"t/job/debug-output/{name}"] = b""
    mirror.forget(["END_OF_JOB.ts", "ended/algo-1.try-1.of-2", "ended/never.try-1.of-2"])
    mirror.start()
    assert mirror.finish(LIMIT_S)
    assert keys(store) == ["ended/algo-2.try-1.of-2", "steps/old"]


def test_an_earlier_end_that_can_not_be_deleted_holds_nothing_up(mirror, store, folder):
    (folder / "a").write_text("x")
    store.fail_on = {("DELETE", "t/job/debug-output/END_OF_JOB.ts")}
    mirror.forget(["END_OF_JOB.ts"])
    mirror.start()
    assert mirror.finish(LIMIT_S)
    assert keys(store) == ["a"]


def test_one_of_several_folders_says_that_it_is_over_even_if_it_has_saved_nothing(tmp_path, store, folder):
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
