"""Several hosts with one prefix: each file stays with its host, through changes, deletions and restarts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fake_checkpoint_store import FakeCheckpointStore
from mirrored_folder import HOSTS, MirroredFolder

THREE = (*HOSTS, "algo-3")


@pytest.fixture
def store() -> FakeCheckpointStore:
    return FakeCheckpointStore()


def both(tmp_path: Path, store: FakeCheckpointStore) -> tuple[MirroredFolder, MirroredFolder]:
    """Start both hosts with restored folders."""
    one, two = (MirroredFolder(tmp_path, store, host=name, hosts=HOSTS) for name in HOSTS)
    return one, two


def rounds(*hosts: MirroredFolder) -> None:
    """Let every host do two rounds; in the second round the first host sees the sets of the others."""
    for host in [*hosts, *hosts]:
        host.round()


def paths(host: MirroredFolder) -> list[str]:
    assert host.writer.last is not None
    return [file.path for file in host.writer.last.files]


def test_a_restored_file_of_another_host_never_replaces_its_newer_version(store, tmp_path: Path) -> None:
    one, two = both(tmp_path, store)
    for step in ("step 1", "step 20", "step 300"):
        one.write("last/rank0", step)
        two.write("last/rank1", step)
        rounds(two, one)
        assert (paths(one), paths(two)) == (["last/rank0"], ["last/rank1"])
        assert store.objects["ckpt/last/rank0"] == store.objects["ckpt/last/rank1"] == step.encode()
        assert one.notes == []
        one, two = both(tmp_path, store)
        new = MirroredFolder(tmp_path, store, host="algo-3", hosts=THREE)
        for host in (one, two, new):
            assert host.content() == {"last/rank0": step, "last/rank1": step}


def test_a_link_that_came_from_another_host_stays_its_own(store, tmp_path: Path) -> None:
    one, two = both(tmp_path, store)
    one.write("step-1/a", "1")
    (one.path / "latest").symlink_to("step-1")
    rounds(two, one)
    one, two = both(tmp_path, store)
    one.write("step-2/a", "2")
    (one.path / "latest").unlink()
    (one.path / "latest").symlink_to("step-2")
    two.write("log", "x")
    rounds(two, one)
    assert all(host.content()["latest"] == "-> step-2" for host in both(tmp_path, store))


def test_a_restored_file_of_another_host_belongs_to_the_host_that_changes_it(store, tmp_path: Path) -> None:
    one, two = both(tmp_path, store)
    one.write("config", "of algo-1")
    rounds(two, one)
    one, two = both(tmp_path, store)
    two.write("config", "changed by algo-2")
    rounds(two, one)
    assert paths(two) == ["config"]
    one, two = both(tmp_path, store)
    assert (one.content(), two.content()) == ({"config": "of algo-1"}, {"config": "changed by algo-2"})


def test_files_deleted_by_other_hosts_are_not_restored(store, tmp_path: Path) -> None:
    one, two = both(tmp_path, store)
    one.write("checkpoint-1/rank0", "1")
    two.write("checkpoint-1/rank1", "1")
    rounds(two, one)
    for host in (one, two):
        shutil.rmtree(host.path / "checkpoint-1")
    one.write("checkpoint-2/rank0", "2")
    two.write("checkpoint-2/rank1", "2")
    rounds(two, one)
    for _ in range(3):
        one, two = both(tmp_path, store)
        for host in (one, two, MirroredFolder(tmp_path, store, host="algo-3", hosts=THREE)):
            assert host.content() == {"checkpoint-2/rank0": "2", "checkpoint-2/rank1": "2"}
        two.write("other", "x")
        rounds(two, one)
        (two.path / "other").unlink()
        rounds(two, one)


def test_a_deletion_by_the_owner_is_not_recorded_by_the_host_that_restored_the_file(store, tmp_path: Path) -> None:
    one, two = both(tmp_path, store)
    two.write("step/rank1", "1")
    rounds(two, one)
    one, two = both(tmp_path, store)
    (two.path / "step/rank1").unlink()
    one.write("step/rank0", "1")
    rounds(two, one)
    assert one.writer.last is not None
    assert (paths(one), one.writer.last.gone) == (["step/rank0"], ())
    one, two = both(tmp_path, store)
    assert one.content() == two.content() == {"step/rank0": "1"}
    two.write("step/rank1", "again")
    rounds(two, one)
    assert all(host.content() == {"step/rank0": "1", "step/rank1": "again"} for host in both(tmp_path, store))


def test_content_that_its_host_removes_during_a_copy_is_no_failure(store, tmp_path: Path) -> None:
    one, two = both(tmp_path, store)
    one.round()
    two.write("rank1", "1")
    two.round()

    def vanish(operation: str, key: str) -> None:
        if operation == "copy":
            store.objects.pop(f"ckpt/{two.writer.last.files[0].key}")

    store.on_call = vanish
    one.round()
    assert one.notes == []
    store.on_call = lambda operation, key: None
    two.write("rank1", "22")
    rounds(two, one)
    assert (one.notes, store.objects["ckpt/rank1"]) == ([], b"22")


def test_the_last_files_of_other_hosts_are_copied_at_the_next_start(store, tmp_path: Path) -> None:
    one, two = both(tmp_path, store)
    one.write("a", "1")
    one.round()
    two.write("late", "2")
    two.round()
    assert "ckpt/late" not in store.objects
    one, two = both(tmp_path, store)
    one.round()
    assert store.objects["ckpt/late"] == b"2"
