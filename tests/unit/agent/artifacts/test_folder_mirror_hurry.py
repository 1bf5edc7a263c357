"""Files of a program that has ended are flushed to the object store at once, since no upload may follow."""

import pytest

from clary.agent.artifacts.folder_mirror import FolderMirror
from clary.testing.fake_object_store import FakeObjectStore

LIMIT_S = 60.0
NEVER_S = 3600.0  # interval between polls: every file stored within the test was flushed


class FakeClosableStore(FakeObjectStore):
    """Has a `close` method."""

    def close(self):
        """Do nothing."""


@pytest.fixture
def store():
    return FakeClosableStore()


@pytest.fixture
def mirror(tmp_path, store):
    (tmp_path / "tensors").mkdir()
    made = FolderMirror(tmp_path, ("tensors",), s3_uri="s3://bucket/t/", open_store=lambda: store, interval_s=NEVER_S)
    yield made
    made.abort()
    assert made.join(LIMIT_S)


def keys(store):
    return sorted(key.removeprefix("t/") for _, key in store.objects)


def test_flush_stores_files_and_end_marks_at_once(mirror, store, tmp_path):
    mirror.start()
    (tmp_path / "tensors" / "a").write_text("x")
    (tmp_path / "tensors" / "END_OF_JOB.ts").touch()
    assert not mirror.wait_stored(0.0)
    mirror.flush()
    assert mirror.wait_stored(LIMIT_S)
    assert [key.removeprefix("t/") for _, key in store.objects] == ["a", "END_OF_JOB.ts"]


def test_a_mirror_can_be_finished_after_a_flush(mirror, store, tmp_path):
    mirror.start()
    (tmp_path / "tensors" / "a").write_text("x")
    mirror.flush()
    assert mirror.wait_stored(LIMIT_S)
    (tmp_path / "tensors" / "b").write_text("y")
    assert mirror.finish(LIMIT_S)
    assert keys(store) == ["a", "b"]


def test_a_failed_upload_is_retried_after_the_flush(tmp_path, store):
    (tmp_path / "tensors").mkdir()
    (tmp_path / "tensors" / "a").write_text("x")
    store.fail_on = {("PUT", "t/a")}
    mirror = FolderMirror(tmp_path, ("tensors",), s3_uri="s3://bucket/t/", open_store=lambda: store, interval_s=0.02)
    mirror.start()
    try:
        mirror.flush()
        assert not mirror.wait_stored(0.2)
        store.fail_on = set()
        assert mirror.wait_stored(LIMIT_S)
        assert keys(store) == ["a"]
    finally:
        mirror.abort()
        assert mirror.join(LIMIT_S)


def test_wait_stored_returns_at_once_for_an_aborted_or_unstarted_mirror(mirror):
    assert mirror.wait_stored(LIMIT_S)
    mirror.start()
    mirror.abort()
    assert mirror.wait_stored(LIMIT_S)
