"""Sets as they are written: the keys of their files, the order of writes, and old content that is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_checkpoint_store import FakeCheckpointStore
from mirrored_folder import HOSTS, MirroredFolder

from clary.base.errors import AgentError, ObjectStoreError
from clary.contract.checkpoint_sets import announcement_key, manifest_key, read_manifest


@pytest.fixture
def store() -> FakeCheckpointStore:
    return FakeCheckpointStore()


def newest_set(store: FakeCheckpointStore, host: str = "algo-1"):
    keys = [key for key in store.objects if f"/{host}/set-" in key]
    return read_manifest(store.objects[max(keys)])


def test_a_new_file_of_the_first_host_goes_to_its_plain_key(store, tmp_path: Path) -> None:
    host = MirroredFolder(tmp_path, store)
    host.write("step-1/model.pt", "one")
    assert host.round()
    assert store.objects["ckpt/step-1/model.pt"] == b"one"
    files = newest_set(store).files
    assert [(file.path, file.key, file.size_bytes) for file in files] == [("step-1/model.pt", "step-1/model.pt", 3)]


def test_a_replacement_has_a_key_of_its_own_until_its_set_is_stored(store, tmp_path: Path) -> None:
    host = MirroredFolder(tmp_path, store)
    host.write("last.pt", "one")
    host.round()
    host.write("last.pt", "two")
    host.round(publish=False)
    assert store.objects["ckpt/last.pt"] == b"one"
    key = newest_set(store).files[0].key
    assert key.startswith(".clary-checkpoints/algo-1/files/")
    host.publisher.publish(host.writer.last)
    assert store.objects["ckpt/last.pt"] == b"two"


def test_the_next_set_names_the_plain_key_and_the_separate_object_is_deleted(store, tmp_path: Path) -> None:
    host = MirroredFolder(tmp_path, store)
    for number in range(6):
        host.write("last.pt", "one" if number == 0 else "two")
        host.write(f"step-{number}/x", "x")
        host.round()
    by_path = {file.path: file.key for file in newest_set(store).files}
    assert by_path["last.pt"] == "last.pt"
    assert not [key for key in store.objects if "/files/" in key]
    assert sum("/set-" in key for key in store.objects) == 3


def test_a_plain_object_that_another_client_changed_is_not_named(store, tmp_path: Path) -> None:
    host = MirroredFolder(tmp_path, store)
    host.write("last.pt", "one")
    host.round()
    host.write("last.pt", "two")
    host.round()
    store.objects["ckpt/last.pt"] = b"TWO"
    host.write("other", "x")
    host.round()
    assert {file.path: file.key for file in newest_set(store).files}["last.pt"] != "last.pt"


def test_nothing_is_written_when_nothing_has_changed(store, tmp_path: Path) -> None:
    host = MirroredFolder(tmp_path, store)
    host.write("a", "x")
    assert host.round()
    os.utime(host.path / "a", ns=(5, (host.path / "a").stat().st_mtime_ns))
    assert not host.round()
    num_calls = len(store.calls)
    assert not host.round()
    assert len(store.calls) == num_calls


def test_new_keys_are_announced_before_they_are_written(store, tmp_path: Path) -> None:
    host = MirroredFolder(tmp_path, store)
    host.write("a", "x")
    host.round()
    order = [key for operation, key in store.calls if operation == "put"]
    announced = f"ckpt/{announcement_key('algo-1')}"
    assert order == [announced, "ckpt/a", f"ckpt/{manifest_key('algo-1', 1)}"]


def test_a_file_that_changes_while_it_is_read_is_taken_later(store, tmp_path: Path) -> None:
    host = MirroredFolder(tmp_path, store)
    host.write("a", "one")

    def change(operation: str, key: str) -> None:
        if operation == "put" and key == "ckpt/a":
            store.on_call = lambda operation, key: None
            host.write("a", "two!")

    store.on_call = change
    assert not host.round()
    assert not [key for key in store.objects if "/set-" in key]
    assert host.round()
    assert newest_set(store).files[0].size_bytes == 4


def test_a_group_that_changes_during_a_round_keeps_its_last_version_in_the_set(store, tmp_path: Path) -> None:
    host = MirroredFolder(tmp_path, store)
    host.write("old/a", "one")
    host.round()
    host.write("old/a", "two")
    host.write("new/b", "b")

    def change(operation: str, key: str) -> None:
        if operation == "put" and key == "ckpt/new/b":
            store.on_call = lambda operation, key: None
            host.write("old/a", "three")

    store.on_call = change
    assert host.round()
    assert {file.path: file.size_bytes for file in newest_set(store).files} == {"old/a": 3, "new/b": 1}
    again = MirroredFolder(tmp_path, store)
    assert again.content() == {"old/a": "one", "new/b": "b"}


def test_a_store_that_loses_bytes_makes_no_set(store, tmp_path: Path) -> None:
    host = MirroredFolder(tmp_path, store)
    store.shorten = lambda key: key.endswith("/a") or "/set-" in key
    host.write("a", "one")
    with pytest.raises(ObjectStoreError, match="accepted 3 bytes, but its listing shows 2 bytes"):
        host.round()
    store.shorten = lambda key: "/set-" in key
    with pytest.raises(ObjectStoreError, match="returns other bytes than were written"):
        host.round()
    store.shorten = lambda key: False
    assert host.round()
    assert MirroredFolder(tmp_path, store).content() == {"a": "one"}


def test_a_file_that_cannot_be_read_is_named(store, tmp_path: Path, monkeypatch) -> None:
    host = MirroredFolder(tmp_path, store)
    host.write("a", "one")

    def refuse(path: str) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(host.folder, "open_file", refuse)
    with pytest.raises(AgentError, match=r"1 checkpoint files cannot be read: 'a' \(Permission denied\)"):
        host.round()


def test_a_file_that_becomes_a_folder_is_never_in_a_set_with_it(store, tmp_path: Path) -> None:
    host = MirroredFolder(tmp_path, store)
    host.write("a", "file")
    host.round()
    (host.path / "a").unlink()
    host.write("a/b", "in folder")
    host.round()
    assert {file.path for file in newest_set(store).files} == {"a/b"}
    assert newest_set(store).files[0].key.startswith(".clary-checkpoints/")
    assert store.objects["ckpt/a"] == b"file"
    assert any("'a/b', and maybe others, is kept in the set alone" in note for note in host.notes)
    assert MirroredFolder(tmp_path, store).content() == {"a/b": "in folder"}


def test_two_hosts_never_write_one_key(store, tmp_path: Path) -> None:
    one, two = (MirroredFolder(tmp_path, store, host=host, hosts=HOSTS) for host in HOSTS)
    one.write("rank-0.pt", "zero")
    two.write("rank-1.pt", "one")
    for host in (two, one):
        host.write("same.json", host.path.name)
        host.round()
    assert store.objects["ckpt/rank-1.pt"] == b"one"  # the first host copied it to the plain path
    assert store.objects["ckpt/same.json"] == one.path.name.encode()
    two_keys = {file.key for file in newest_set(store, "algo-2").files}
    assert all(key.startswith(".clary-checkpoints/algo-2/files/") for key in two_keys)
    assert [note for note in one.notes if "algo-1 and algo-2 both write 'same.json'" in note] == one.notes
    for number, host in enumerate(HOSTS):
        again = MirroredFolder(tmp_path, store, host=host, hosts=HOSTS)
        assert again.content() == {"rank-0.pt": "zero", "rank-1.pt": "one", "same.json": (one, two)[number].path.name}
        assert not again.round(), "what was restored is not stored again"


def test_a_deleted_file_is_not_restored_though_its_plain_path_still_exists(store, tmp_path: Path) -> None:
    host = MirroredFolder(tmp_path, store)
    host.write("step-1/a", "1")
    host.write("step-2/a", "2")
    host.round()
    (host.path / "step-1/a").unlink()
    (host.path / "step-1").rmdir()
    host.round()
    assert store.objects["ckpt/step-1/a"] == b"1"
    assert newest_set(store).gone == ("step-1/a",)
    again = MirroredFolder(tmp_path, store)
    assert again.content() == {"step-2/a": "2"}
    again.write("step-3/a", "3")
    again.round()
    assert MirroredFolder(tmp_path, store).content() == {"step-2/a": "2", "step-3/a": "3"}
