"""A program has ended and no upload may follow: the files that it has saved reach the object store all the same."""

import pytest

from clary.agent.artifacts.folder_mirror import FolderMirror
from clary.testing.fake_object_store import FakeObjectStore

LIMIT_S = 60.0
NEVER_S = 3600.0  # between looks: whatever is stored meanwhile was hurried


class FakeClosableStore(FakeObjectStore):
    """Can be closed."""

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


def test_what_lies_there_is_stored_at_once_with_what_says_that_the_training_is_over(mirror, store, tmp_path):
    mirror.start()
    (tmp_path / "tensors" / "a").write_text("x")
    (tmp_path / "tensors" / "END_OF_JOB.ts").touch()
    assert not mirror.wait_stored(0.0)
    mirror.flush()
    assert mirror.wait_stored(LIMIT_S)
    assert [key.removeprefix("t/") for _, key in store.objects] == ["a", "END_OF_JOB.ts"]


def test_a_mirror_that_was_hurried_can_still_be_finished(mirror, store, tmp_path):
    mirror.start()
    (tmp_path / "tensors" / "a").write_text("x")
    mirror.flush()
    assert mirror.wait_stored(LIMIT_S)
    (tmp_path / "tensors" / "b").write_text("y")
    assert mirror.finish(LIMIT_S)
    assert keys(store) == ["a", "b"]


def test_a_store_that_refuses_is_asked_again_after_the_hurry(tmp_path, store):
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


def test_nobody_waits_for_a_mirror_that_was_given_up_or_never_began(mirror):
    assert mirror.wait_stored(LIMIT_S)
    mirror.start()
    mirror.abort()
    assert mirror.wait_stored(LIMIT_S)
