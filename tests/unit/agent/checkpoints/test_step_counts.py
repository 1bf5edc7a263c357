"""The training step of a checkpoint set, and the count that a restore leaves for the program."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fake_checkpoint_store import FakeCheckpointStore
from mirrored_folder import HOSTS, MirroredFolder

from clary.agent.checkpoints.folder import CheckpointFolder
from clary.agent.checkpoints.restore_plan import host_order
from clary.agent.checkpoints.step_counts import StepCountSource, leave_restored, restored_counts
from clary.contract import checkpoint_sets
from clary.contract.checkpoint_sets import CheckpointFile, CheckpointSet, read_manifest, write_manifest
from clary.contract.step_counts import (
    RESTORED_FILE,
    CountsHeader,
    RestoredCounts,
    StepCounts,
    offset_of,
    pack_header,
    pack_row,
)


def file_of(path: str, at_ns: int) -> CheckpointFile:
    return CheckpointFile(path=path, size_bytes=1, sha256="", key=path, modified_ns=at_ns)


def set_of(host: str, *files: CheckpointFile, counts: StepCounts | None = None) -> CheckpointSet:
    return CheckpointSet(
        host=host, number=1, job_arn="arn", attempt=1, taken_at=datetime.now(UTC), files=files, step_counts=counts
    )


def leave(folder: Path, name: str, *, worker: int = 0, began_ns: int, before: int = -1, steps: int) -> None:
    """Write a counts file as the hook does for a training with a step every 10 ns, after `before` earlier steps."""
    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.counts").open("wb") as file:
        file.write(pack_header(CountsHeader(worker, began_ns, StepCounts(before, before))))
        for number in range(1, steps + 1):
            file.seek(offset_of(number))
            file.write(pack_row(number, began_ns + 10 * (number - 1), (before + number, before + number, -1, -1)))


def looked(folder: Path, restored: CheckpointSet | None = None) -> StepCountSource:
    source = StepCountSource(CheckpointFolder(folder), restored)
    source.look()
    return source


def total_at(source: StepCountSource, at_ns: int) -> int | None:
    counts = source.counts_of([file_of("model.pt", at_ns)])
    return None if counts is None else counts.total


def test_a_set_belongs_to_the_last_step_that_had_begun_when_its_newest_file_was_written(tmp_path: Path) -> None:
    leave(tmp_path, "worker_0-7", began_ns=1000, steps=20)
    source = looked(tmp_path)
    counts = source.counts_of([file_of("a/model.pt", 1055), file_of("b/old.pt", 1001)])
    assert counts == StepCounts(5, 5)
    assert total_at(source, 999) == -1, "before the first step"


def test_logs_say_nothing_of_when_a_checkpoint_was_written(tmp_path: Path) -> None:
    leave(tmp_path, "worker_0-7", began_ns=1000, steps=20)
    logs = [file_of(name, 1150) for name in ("runs/events.out.tfevents.1.host", "train.LOG", "metrics.jsonl", "a.csv")]
    source = looked(tmp_path)
    assert source.counts_of([file_of("model.pt", 1031), *logs]) == StepCounts(3, 3)
    assert source.counts_of(logs) is None
    assert source.counts_of([]) is None


def test_counts_come_from_the_first_workers_process_that_ran_at_the_time(tmp_path: Path) -> None:
    leave(tmp_path, "worker_1-1", worker=1, began_ns=900, steps=90)
    leave(tmp_path, "worker_0-9", began_ns=1000, before=9, steps=5)
    leave(tmp_path, "worker_0-8", began_ns=2000, before=9, steps=20)
    source = looked(tmp_path)
    assert [total_at(source, at_ns) for at_ns in (950, 1025, 1990, 2025)] == [9, 12, 14, 12]


def test_restored_files_keep_their_step_until_newer_files_are_written(tmp_path: Path) -> None:
    restored = set_of("algo-1", file_of("model.pt", 500), counts=StepCounts(43, 40))
    source = looked(tmp_path / "none", restored)
    assert total_at(source, 500) == 43
    assert total_at(source, 501) == 43, "what a program writes before its first step"
    leave(tmp_path, "worker_0-7", began_ns=1000, before=43, steps=3)
    again = looked(tmp_path, restored)
    assert [total_at(again, at_ns) for at_ns in (500, 1000, 1020)] == [43, 44, 46]


def test_a_step_stays_known_after_its_row_was_overwritten(tmp_path: Path) -> None:
    leave(tmp_path, "worker_0-7", began_ns=1000, steps=20)
    source = looked(tmp_path)
    assert total_at(source, 1030) == 3
    leave(tmp_path, "worker_0-7", began_ns=1000, steps=9000)
    source.look()
    assert total_at(source, 1030) == 3
    assert total_at(source, 1040) == 9000 - 4096, "the oldest there is"


def test_foreign_files_in_the_folder_do_not_prevent_counting(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    leave(outside, "worker_0-7", began_ns=1000, steps=20)
    folder = tmp_path / "counts"
    folder.mkdir()
    (folder / "torn.counts").write_bytes((outside / "worker_0-7.counts").read_bytes()[:100])
    (folder / "noise.counts").write_bytes(b"\xff" * 9999)
    (folder / "link.counts").symlink_to(outside / "worker_0-7.counts")
    (folder / "folder.counts").mkdir()
    os.mkfifo(folder / "pipe.counts")
    num_open = len(os.listdir("/proc/self/fd"))
    assert total_at(looked(folder), 1030) is None
    assert len(os.listdir("/proc/self/fd")) == num_open
    (tmp_path / "elsewhere").symlink_to(outside)
    assert total_at(looked(tmp_path / "elsewhere"), 1030) == 3, "the folder itself is the agent's to name"
    linked = StepCountSource(CheckpointFolder(tmp_path, ("elsewhere",)))
    linked.look()
    assert total_at(linked, 1030) is None


def test_a_counts_file_with_a_future_time_does_not_stop_the_count(tmp_path: Path) -> None:
    leave(tmp_path, "worker_0-7", began_ns=1000, steps=20)
    future_ns = time.time_ns() + 10**15
    source = looked(tmp_path, set_of("algo-1", file_of("model.pt", future_ns), counts=StepCounts(3, 3)))
    assert total_at(source, future_ns) == 19
    leave(tmp_path, "worker_0-7", began_ns=1000, steps=30)
    source.look()
    assert total_at(source, future_ns) == 29


def test_of_many_processes_the_newest_are_read(tmp_path: Path) -> None:
    for number in range(40):
        leave(tmp_path, f"worker_0-{number}", began_ns=1000 * (number + 1), before=number, steps=2)
        os.utime(tmp_path / f"worker_0-{number}.counts", ns=(number, number))
    source = looked(tmp_path)
    assert len(source._processes) == 16
    assert [total_at(source, at_ns) for at_ns in (40_000, 39_990)] == [40, 40]


def test_a_short_training_beside_the_long_one_is_not_counted(tmp_path: Path) -> None:
    leave(tmp_path, "worker_0-7", began_ns=1000, steps=100)
    leave(tmp_path, "worker_0-8", began_ns=1205, steps=1)
    source = looked(tmp_path)
    assert [total_at(source, at_ns) for at_ns in (1195, 1405)] == [19, 40]


def test_a_set_carries_its_step_to_every_host_restored_from_it(tmp_path: Path) -> None:
    store = FakeCheckpointStore()
    host = MirroredFolder(tmp_path, store)
    counts = tmp_path / "counts"
    host.writer._step_counts = StepCountSource(CheckpointFolder(counts))
    host.write("model.pt", "first")
    os.utime(host.path / "model.pt", ns=(1042, 1042))
    leave(counts, "worker_0-7", began_ns=1000, steps=20)
    assert host.round()
    again = MirroredFolder(tmp_path, store, hosts=HOSTS)
    assert again.restored.step_counts == RestoredCounts(own=StepCounts(4, 4), first=StepCounts(4, 4))
    other = MirroredFolder(tmp_path, store, host="algo-2", hosts=HOSTS)
    assert other.restored.step_counts == RestoredCounts(first=StepCounts(4, 4))
    assert host.content() == again.content() == other.content() == {"model.pt": "first"}, "no file more"


def test_hosts_with_files_of_the_same_names_resume_after_the_same_step(tmp_path: Path) -> None:
    store = FakeCheckpointStore()
    for host, worker, steps in (("algo-1", 0, 5), ("algo-2", 1, 6)):
        folder = MirroredFolder(tmp_path / host, store, host=host, hosts=HOSTS)
        leave(tmp_path / f"counts-{host}", f"worker_{worker}-7", worker=worker, began_ns=1000, steps=steps)
        folder.writer._step_counts = StepCountSource(CheckpointFolder(tmp_path / f"counts-{host}"))
        folder.write("model.pt", host)
        assert folder.round()
    found = {
        host: MirroredFolder(tmp_path / "again" / host, store, host=host, hosts=HOSTS).restored.step_counts
        for host in HOSTS
    }
    assert {host: (counts.own, counts.first) for host, counts in found.items()} == {
        "algo-1": (StepCounts(4, 4), StepCounts(4, 4)),
        "algo-2": (StepCounts(5, 5), StepCounts(4, 4)),
    }


def test_hosts_that_train_together_resume_after_the_first_hosts_step() -> None:
    sets = [
        set_of("algo-10", counts=StepCounts(7)),
        set_of("algo-2", counts=StepCounts(8)),
        set_of("algo-1"),
        set_of("algo-3", counts=StepCounts(3, 9)),
    ]
    found = restored_counts(sets, own_host="algo-10", order=host_order)
    assert found == RestoredCounts(own=StepCounts(7), first=StepCounts(8))
    assert restored_counts(sets, own_host="algo-3", order=host_order).own is None, "no hook counts so"
    assert restored_counts([], own_host="algo-1", order=host_order) == RestoredCounts()


def test_sets_without_step_counts_of_earlier_releases_can_be_read() -> None:
    data = write_manifest(set_of("algo-1", counts=StepCounts(5, 5)))
    assert read_manifest(data).step_counts == StepCounts(5, 5)
    document = json.loads(write_manifest(set_of("algo-1")))
    del document["set"]["step_counts"]
    document["sha256"] = checkpoint_sets._digest(document["set"])
    assert read_manifest(json.dumps(document).encode()).step_counts is None


def test_counts_for_the_program_are_of_this_attempt_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = CheckpointFolder(tmp_path, ("run", "counts"))
    leave_restored(folder, RestoredCounts(first=StepCounts(4, 4)))
    (folder.path / "worker_0-7.counts").write_bytes(b"of the attempt before")
    assert json.loads((folder.path / RESTORED_FILE).read_bytes())["first"]["total"] == 4
    leave_restored(folder, RestoredCounts())
    assert os.listdir(folder.path) == []
    assert caplog.text == ""
    (folder.path / RESTORED_FILE).mkdir()
    leave_restored(folder, RestoredCounts(first=StepCounts(4, 4)))
    assert "the debugger's steps begin with 0" in caplog.text
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (tmp_path / "linked").symlink_to(outside)
    leave_restored(CheckpointFolder(tmp_path, ("linked",)), RestoredCounts(first=StepCounts(4, 4)))
    assert os.listdir(outside) == ["kept"]
