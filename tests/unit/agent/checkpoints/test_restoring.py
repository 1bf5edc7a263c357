"""A restore: the files that it writes, its refusals, and its messages."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fake_checkpoint_store import FakeCheckpointStore
from mirrored_folder import HOSTS, MirroredFolder, content_of

from clary.agent.checkpoints import restoring
from clary.agent.checkpoints.folder import CheckpointFolder
from clary.agent.checkpoints.places import Prefix
from clary.agent.checkpoints.restoring import restore
from clary.base.errors import AgentError, Fault, ObjectStoreError
from clary.contract.checkpoint_sets import (
    Announcement,
    CheckpointFile,
    CheckpointSet,
    announcement_key,
    content_key,
    manifest_key,
    write_announcement,
    write_manifest,
)
from clary.contract.object_store import parse_s3_uri


@pytest.fixture
def store() -> FakeCheckpointStore:
    return FakeCheckpointStore()


def file_of(path: str, text: str, *, key: str | None = None, **changes: object) -> CheckpointFile:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return CheckpointFile(**{"path": path, "size_bytes": len(text), "sha256": digest, "key": key or path, **changes})


def put_set(store: FakeCheckpointStore, *files: CheckpointFile, host: str = "algo-1", number: int = 1, **fields):
    checkpoints = CheckpointSet(
        host=host, number=number, job_arn="arn", attempt=1, taken_at=datetime.now(UTC), files=files, **fields
    )
    store.objects[f"ckpt/{manifest_key(host, number)}"] = write_manifest(checkpoints)


def restored(store: FakeCheckpointStore, folder: Path, *, uri: str = "s3://bucket/ckpt", host: str = "algo-1"):
    return restore(CheckpointFolder(folder), Prefix(parse_s3_uri(uri)), store, host=host, first="algo-1")


def test_a_prefix_without_sets_is_restored_like_sagemaker_does(store, tmp_path: Path) -> None:
    store.objects |= {
        "ckpt/a": b"1",
        "ckpt/deep/b": b"2",
        "ckpt/empty/": b"",
        "ckpt-old/c": b"3",
        "other": b"no",
        "ckpt/": b"",
    }
    outcome = restored(store, tmp_path / "in")
    assert content_of(tmp_path / "in") == {"a": "1", "deep/b": "2", "-old/c": "3"}
    assert (tmp_path / "in/empty").is_dir()
    assert len(outcome.warnings) == 1
    assert "also matches objects beside its folder" in outcome.warnings[0]
    assert "ckpt-old/c" in outcome.warnings[0]
    assert restored(store, tmp_path / "slash", uri="s3://bucket/ckpt/").warnings == ()
    assert content_of(tmp_path / "slash") == {"a": "1", "deep/b": "2"}


def test_an_empty_prefix_is_no_error(store, tmp_path: Path) -> None:
    outcome = restored(store, tmp_path / "in")
    assert (outcome.num_files, outcome.warnings, outcome.history.last) == (0, (), None)
    assert (tmp_path / "in").is_dir()


def test_modes_times_links_and_empty_folders_are_restored(store, tmp_path: Path) -> None:
    host = MirroredFolder(tmp_path, store)
    host.write("bin/run.sh", "#!/bin/sh\n")
    (host.path / "bin/run.sh").chmod(0o750)
    os.utime(host.path / "bin/run.sh", ns=(1, 1_234_567_890_123_456_789))
    (host.path / "empty/below").mkdir(parents=True)
    (host.path / "latest").symlink_to("bin")
    (host.path / "bin/up").symlink_to("../empty")
    host.round()
    again = MirroredFolder(tmp_path, store)
    facts = (again.path / "bin/run.sh").stat()
    assert (facts.st_mode & 0o777, facts.st_mtime_ns) == (0o750, 1_234_567_890_123_456_789)
    assert (again.path / "empty/below").is_dir()
    assert content_of(again.path) == content_of(host.path)
    assert not again.round()
    assert sorted(place.name for place in again.path.iterdir()) == ["bin", "empty", "latest"], (
        "nothing of its own stays"
    )


def test_objects_that_a_user_put_beside_sets_are_restored_too(store, tmp_path: Path) -> None:
    host = MirroredFolder(tmp_path, store)
    host.write("a", "of the job")
    host.round()
    store.objects["ckpt/hand/made"] = b"by hand"
    again = MirroredFolder(tmp_path, store)
    assert again.content() == {"a": "of the job", "hand/made": "by hand"}
    again.write("b", "later")
    again.round()
    assert MirroredFolder(tmp_path, store).content()["hand/made"] == "by hand"


def test_files_of_an_unfinished_set_are_never_restored(store, tmp_path: Path) -> None:
    put_set(store, file_of("step-1/a", "one"))
    store.objects |= {"ckpt/step-1/a": b"one", "ckpt/step-2/a": b"half of a checkpoint"}
    announced = Announcement(number=2, paths=("step-2/a", "step-2/b"))
    store.objects[f"ckpt/{announcement_key('algo-1')}"] = write_announcement(announced)
    host = MirroredFolder(tmp_path, store)
    assert host.content() == {"step-1/a": "one"}
    host.write("step-3/a", "three")
    host.round()
    assert MirroredFolder(tmp_path, store).content() == {"step-1/a": "one", "step-3/a": "three"}
    again = MirroredFolder(tmp_path, store)
    again.write("step-2/a", "whole now")
    again.round()
    assert MirroredFolder(tmp_path, store).content()["step-2/a"] == "whole now"
    assert store.objects["ckpt/step-2/a"] == b"whole now"


@pytest.mark.parametrize("damage", ["cut", "missing", "shorter", "other content", "manifest gone"])
def test_a_set_that_is_not_whole_is_passed_over_with_a_warning(store, tmp_path: Path, damage: str) -> None:
    put_set(store, file_of("a", "old", key=content_key("algo-1", "x")), number=3)
    put_set(store, file_of("a", "new", key=content_key("algo-1", "y")), number=4)
    old, new = (f"ckpt/{content_key('algo-1', name)}" for name in "xy")
    manifest = f"ckpt/{manifest_key('algo-1', 4)}"
    store.objects |= {old: b"old", new: b"new"}
    if damage == "cut":
        store.objects[manifest] = store.objects[manifest][:-9]
    elif damage == "missing":
        del store.objects[new]
    elif damage == "shorter":
        store.objects[new] = b"ne"
    elif damage == "other content":
        store.objects[new] = b"NEW"
    else:
        store.on_call = lambda operation, key: store.objects.pop(manifest, None) if operation == "get" else None
    outcome = restored(store, tmp_path / "in")
    assert content_of(tmp_path / "in") == {"a": "old"}
    assert outcome.history.last is not None
    assert outcome.history.last.number == 3
    assert len(outcome.warnings) == 1
    assert outcome.warnings[0].startswith("checkpoints: set 4 of algo-1 is not whole and was passed over: ")


def test_the_set_after_a_damaged_one_has_a_number_of_its_own(store, tmp_path: Path) -> None:
    put_set(store, file_of("a", "old"), number=3)
    store.objects |= {"ckpt/a": b"old", f"ckpt/{manifest_key('algo-1', 4)}": b"damaged"}
    host = MirroredFolder(tmp_path, store)
    host.write("b", "x")
    host.round()
    assert host.writer.last is not None
    assert host.writer.last.number == 5


def test_nothing_is_restored_when_no_set_is_whole(store, tmp_path: Path) -> None:
    put_set(store, file_of("a", "one"), file_of("b", "two"), number=1)
    store.objects["ckpt/a"] = b"one"
    store.objects[f"ckpt/{manifest_key('algo-1', 2)}"] = b"{}"
    with pytest.raises(AgentError) as caught:
        restored(store, tmp_path / "in")
    assert caught.value.fault is Fault.USER
    assert "set 1: 'b' is missing (b); set 2: this is no manifest" in caught.value.message
    assert "remove ckpt/.clary-checkpoints/algo-1/ to begin without" in caught.value.message
    assert list((tmp_path / "in").iterdir()) == []


def test_an_unreachable_store_is_no_reason_to_restore_an_older_set(store, tmp_path: Path) -> None:
    put_set(store, file_of("a", "one"))
    store.objects["ckpt/a"] = b"one"

    def away(operation: str, key: str) -> None:
        if key == "ckpt/a" and operation == "get":
            raise ObjectStoreError("no answer", retryable=True)

    store.on_call = away
    with pytest.raises(ObjectStoreError, match="no answer"):
        restored(store, tmp_path / "in")
    assert list((tmp_path / "in").iterdir()) == []


@pytest.mark.parametrize("key", ["ckpt/../x", "ckpt/a/../../x", "ckpt/./x", "ckpt/a\0b", "ckpt/" + "x" * 256])
def test_a_key_that_would_leave_the_folder_is_refused_by_name(store, tmp_path: Path, key: str) -> None:
    store.objects[key] = b"hostile"
    with pytest.raises(AgentError, match="cannot become a file") as caught:
        restored(store, tmp_path / "in")
    assert caught.value.fault is Fault.USER
    assert ascii(key) in caught.value.message


@pytest.mark.parametrize(
    "hostile",
    [
        {"path": "../x"},
        {"path": "/etc/passwd"},
        {"path": "a//b"},
        {"path": ".clary-checkpoints/algo-2/set-00000001.json"},
        {"key": "../secret"},
        {"key": "b"},
        {"key": ".clary-checkpoints/algo-2/files/x"},
        {"key": ".clary-checkpoints/algo-1/files/../../x"},
        {"size_bytes": -1},
        {"sha256": "../../x"},
    ],
)
def test_a_manifest_that_cannot_be_trusted_is_no_set(store, tmp_path: Path, hostile: dict) -> None:
    put_set(store, replace(file_of("a", "one"), **hostile))
    store.objects |= {"ckpt/a": b"one", "ckpt/b": b"one", "secret": b"one"}
    with pytest.raises(AgentError, match=r"No set of checkpoints of algo-1 .* is whole"):
        restored(store, tmp_path / "in")
    assert list((tmp_path / "in").iterdir()) == []
    assert sorted(place.name for place in tmp_path.iterdir()) == ["in"]


@pytest.mark.parametrize("target", ["/etc", "..", "../x", "b/../../x", "b/../c"])
def test_a_manifest_whose_links_lead_out_is_no_set(store, tmp_path: Path, target: str) -> None:
    put_set(store, links={"a": target})
    with pytest.raises(AgentError, match="its link 'a' leaves the folder"):
        restored(store, tmp_path / "in")


def test_a_manifest_under_another_hosts_name_is_no_set(store, tmp_path: Path) -> None:
    put_set(store, file_of("a", "one"), host="algo-2", number=7)
    store.objects["ckpt/a"] = b"one"
    store.objects[f"ckpt/{manifest_key('algo-1', 1)}"] = store.objects.pop(f"ckpt/{manifest_key('algo-2', 7)}")
    with pytest.raises(AgentError, match="it says that it is set 7 of 'algo-2'"):
        restored(store, tmp_path / "in")


def test_own_files_win_and_own_deletions_hold_against_other_hosts(store, tmp_path: Path) -> None:
    one, two = (MirroredFolder(tmp_path, store, host=name, hosts=HOSTS) for name in HOSTS)
    for host in (one, two):
        host.write("shared", f"of {host.path.name[:6]}")
        host.write(f"only/{host.path.name[:6]}", "x")
        host.round()
    one.round()
    again = MirroredFolder(tmp_path, store, host="algo-1", hosts=HOSTS)
    assert again.content() == {"shared": "of algo-1", "only/algo-1": "x", "only/algo-2": "x"}
    (again.path / "only/algo-2").unlink()
    again.round()
    for _ in range(2):
        later = MirroredFolder(tmp_path, store, host="algo-1", hosts=HOSTS)
        assert later.content() == {"shared": "of algo-1", "only/algo-1": "x"}
        later.write("more", later.path.name)
        later.round()
        (later.path / "more").unlink()
        later.round()
    other = MirroredFolder(tmp_path, store, host="algo-2", hosts=HOSTS)
    assert other.content() == {"shared": "of algo-2", "only/algo-1": "x", "only/algo-2": "x"}


def test_a_broken_host_outside_the_job_is_left_out_with_a_warning(store, tmp_path: Path) -> None:
    put_set(store, file_of("a", "one"))
    put_set(store, file_of("b", "two"), file_of("c", "three", key=content_key("algo-2", "x")), host="algo-2")
    store.objects |= {"ckpt/a": b"one", "ckpt/b": b"two", "ckpt/by-hand": b"x"}
    outcome = restored(store, tmp_path / "in")
    assert content_of(tmp_path / "in") == {"a": "one", "by-hand": "x"}, "half of a set of another host is not restored"
    assert len(outcome.warnings) == 1
    assert "no set of algo-2 is whole; algo-2 is no host of this job" in outcome.warnings[0]
    assert "set 1: 'c' is missing" in outcome.warnings[0]
    with pytest.raises(AgentError, match="No set of checkpoints of algo-2"):
        MirroredFolder(tmp_path, store, hosts=HOSTS)


def test_an_announcement_that_is_nested_too_deeply_is_ignored(store, tmp_path: Path) -> None:
    put_set(store, file_of("a", "one"))
    store.objects |= {"ckpt/a": b"one", f"ckpt/{announcement_key('algo-1')}": b"[" * 200_000}
    restored(store, tmp_path / "in")
    assert content_of(tmp_path / "in") == {"a": "one"}


def test_a_restore_of_another_host_in_the_same_folder_is_in_no_set(store, tmp_path: Path) -> None:
    host = MirroredFolder(tmp_path, store)
    host.write("a", "one")
    host.write(".clary-checkpoints.restoring-algo-2/0-0", "on its way")
    host.round()
    assert [file.path for file in host.writer.last.files] == ["a"]


def test_a_disk_that_is_too_small_is_an_error_before_any_download(store, tmp_path: Path, monkeypatch) -> None:
    store.objects["ckpt/a"] = b"x" * 1000

    def refuse(path: Path, *, needed_bytes: int) -> None:
        assert needed_bytes == 1000
        raise AgentError("no space", fault=Fault.USER)

    monkeypatch.setattr(restoring, "require_space", refuse)
    with pytest.raises(AgentError, match="no space"):
        restored(store, tmp_path / "in")
    assert ("get", "ckpt/a") not in store.calls


def test_links_that_an_earlier_program_left_are_not_followed(store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "step").symlink_to(outside)
    (folder / "of-before").write_text("never stored")
    store.objects["ckpt/step/a"] = b"1"
    outcome = restored(store, folder)
    assert list(outside.iterdir()) == []
    assert (folder / "step/a").read_text() == "1"
    assert set(outcome.history.baseline.files) == {"step/a"}, "what the store does not have counts as new"


def test_a_name_that_is_both_a_file_and_a_folder_is_reported(store, tmp_path: Path) -> None:
    put_set(store, file_of("a", "one"))
    store.objects |= {"ckpt/a": b"one", "ckpt/a/b": b"two"}
    outcome = restored(store, tmp_path / "in")
    assert content_of(tmp_path / "in") == {"a": "one"}
    assert outcome.warnings == ("checkpoints: not restored, a file stands where it needs a folder: a/b",)


class LivePrefix:
    """A job that stores a new set, and replaces the file of the last one, whenever a restore reads the file."""

    def __init__(self, store: FakeCheckpointStore, *, num_sets: int) -> None:
        self._store, self._left, self.number = store, num_sets, 0
        self.store_set()
        store.on_call = self.on_call

    def on_call(self, operation: str, key: str) -> None:
        if (operation, key) == ("get", "ckpt/state") and self._left:
            self._left -= 1
            self.store_set()

    def store_set(self) -> None:
        self._store.objects.pop(f"ckpt/{manifest_key('algo-1', self.number - 1)}", None)
        self.number += 1
        text = f"state {self.number}"
        put_set(self._store, file_of("state", text), number=self.number)
        self._store.objects["ckpt/state"] = text.encode()


@pytest.mark.parametrize("num_sets", [1, 3, restoring.MOST_LISTINGS - 1])
def test_a_set_that_a_running_job_replaces_while_it_is_read_gives_way_to_the_newer_one(
    store, tmp_path: Path, num_sets: int
) -> None:
    LivePrefix(store, num_sets=num_sets)
    outcome = restored(store, tmp_path / "in")
    assert content_of(tmp_path / "in") == {"state": f"state {num_sets + 1}"}
    assert (outcome.sets, outcome.warnings) == ((("algo-1", num_sets + 1),), ())


def test_sets_that_are_replaced_faster_than_they_are_read_end_the_restore_with_advice(store, tmp_path: Path) -> None:
    LivePrefix(store, num_sets=1000)
    with pytest.raises(AgentError, match="Another job replaced them faster than they could be read") as failed:
        restored(store, tmp_path / "in")
    assert failed.value.fault is Fault.USER
    assert store.calls.count(("list", "ckpt")) == restoring.MOST_LISTINGS


def test_a_damaged_set_without_a_newer_one_is_listed_once_more(store, tmp_path: Path) -> None:
    put_set(store, file_of("state", "old"))
    put_set(store, file_of("state", "new", key="files/new"), number=2)
    store.objects |= {"ckpt/state": b"old", "ckpt/files/new": b"bad"}
    outcome = restored(store, tmp_path / "in")
    assert content_of(tmp_path / "in")["state"] == "old"
    assert any("set 2 of algo-1 is not whole and was passed over" in warning for warning in outcome.warnings)
    assert store.calls.count(("list", "ckpt")) == 2
