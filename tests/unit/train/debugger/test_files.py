"""Files of tensors: complete or refused, for all content; and how a trial reads them."""

import json
import os
import random
import struct
import threading
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_steps_of_hooks import LIMIT_S, FakeStep, index, some_tensors, write_steps

from clary.train.debugger.capture.writing import Writer
from clary.train.debugger.errors import (
    NoMoreData,
    StepNotYetAvailable,
    StepUnavailable,
    TensorFileError,
    TensorUnavailable,
)
from clary.train.debugger.files import STEPS, LocalFiles, step_file
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.reading.ends import mark_ended
from clary.train.debugger.reading.refreshing import no_refresh
from clary.train.debugger.reading.saved_steps import StepState
from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.reading.trial_places import create_trial
from clary.train.debugger.tensor_files import read_index, read_values, write_step


def test_a_written_file_is_read_back_unchanged(tmp_path: Path) -> None:
    written = write_step(tmp_path / "one", index(12, mode=ModeKeys.EVAL, mode_step=3), some_tensors())
    files = LocalFiles(tmp_path)
    found = read_index(files, "one")
    assert files.size("one") == written
    assert (found.step, found.mode, found.mode_step, found.worker) == (12, ModeKeys.EVAL, 3, "worker_0")
    assert list(found.tensors) == ["weight", "reduced", "nothing", "scalar"]
    assert struct.unpack("<6f", read_values(files, "one", found, found.tensors["weight"])) == tuple(range(6))
    assert read_values(files, "one", found, found.tensors["nothing"]) == b""
    assert read_values(files, "one", found, found.tensors["scalar"]) == struct.pack("<q", -7)
    reduced = found.tensors["reduced"]
    assert (reduced.shape, reduced.start, reduced.reductions, reduced.alias) == ((9,), None, {"abs_mean": 0.5}, "other")
    assert os.listdir(tmp_path) == ["one"]


def test_a_truncated_file_is_never_accepted(tmp_path: Path) -> None:
    length = write_step(tmp_path / "one", index(), some_tensors())
    data = (tmp_path / "one").read_bytes()
    for kept in range(length):
        (tmp_path / "one").write_bytes(data[:kept])
        with pytest.raises(TensorFileError):
            read_index(LocalFiles(tmp_path), "one")


def test_every_changed_byte_is_detected(tmp_path: Path) -> None:
    write_step(tmp_path / "one", index(), some_tensors())
    data = (tmp_path / "one").read_bytes()
    files = LocalFiles(tmp_path)
    before = read_index(files, "one")
    values = {
        name: read_values(files, "one", before, entry) for name, entry in before.tensors.items() if entry.shape != (9,)
    }
    for at in range(len(data)):
        (tmp_path / "one").write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        try:
            after = read_index(files, "one")
            again = {name: read_values(files, "one", after, after.tensors[name]) for name in values}
        except TensorFileError:
            continue
        assert (after, again) == (before, values), f"byte {at}"  # the byte is padding


def whole(document: Any, tail: bytes = b"") -> bytes:
    """Return a file with correct lengths and checksums around any document."""
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    begin = 32 + len(text) + -(32 + len(text)) % 64
    head = struct.pack("<8sIIQQ", b"CLARYTEN", 1, zlib.crc32(text), len(text), begin + len(tail))
    return (head + text).ljust(begin, b"\0") + tail


GOOD: dict[str, Any] = {
    "step": 1,
    "mode": "TRAIN",
    "mode_step": 1,
    "worker": "worker_0",
    "num_workers": 1,
    "written_at": 0.0,
    "tensors": [{"name": "a", "dtype": "float32", "shape": [2], "start": 0, "checksum": 0}],
}


@pytest.mark.parametrize(
    "changed",
    [
        {"step": -1},
        {"step": 1.5},
        {"step": True},
        {"mode": "NONE"},
        {"worker": ""},
        {"written_at": "soon"},
        {"written_at": 10**400},
        {"tensors": {"a": 1}},
        {"tensors": [{"name": "a", "dtype": "object", "shape": [2]}]},
        {"tensors": [{"name": "a" * 2000, "dtype": "float32", "shape": [2]}]},
        {"tensors": [{"name": "a", "dtype": "float32", "shape": [2**62, 2**62], "start": 0}]},
        {"tensors": [{"name": "a", "dtype": "float32", "shape": [-2], "start": 0}]},
        {"tensors": [{"name": "a", "dtype": "float32", "shape": [3], "start": 0}]},
        {"tensors": [{"name": "a", "dtype": "float32", "shape": [2], "start": -8}]},
        {"tensors": [{"name": "a", "dtype": "float32", "shape": [0] * 100}]},
        {"tensors": [{"name": "a", "dtype": "float32", "shape": [1], "reductions": {"__class__": 1}}]},
        {"tensors": [{"name": "a", "dtype": "float32", "shape": [1], "reductions": {"mean": 10**400}}]},
        {"more": 1},
    ],
    ids=str,
)
def test_hostile_files_are_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    (tmp_path / "good").write_bytes(whole(GOOD, bytes(8)))
    assert read_index(LocalFiles(tmp_path), "good").step == 1
    (tmp_path / "bad").write_bytes(whole(GOOD | changed, bytes(8)))
    with pytest.raises(TensorFileError, match="bad: its index cannot be read"):
        read_index(LocalFiles(tmp_path), "bad")


def test_an_index_that_is_not_json_or_too_deep_is_refused(tmp_path: Path) -> None:
    for text in (b"\xff", b"[" * 100_000, b"null", b'{"step": NaN}'):
        (tmp_path / "bad").write_bytes(whole(text))
        with pytest.raises(TensorFileError):
            read_index(LocalFiles(tmp_path), "bad")
    (tmp_path / "bad").write_bytes(whole(GOOD).replace(b"CLARYTEN\x01", b"CLARYTEN\x02"))
    with pytest.raises(TensorFileError, match="has format 2, this release knows 1: upgrade Clary"):
        read_index(LocalFiles(tmp_path), "bad")


def test_a_path_that_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    write_step(tmp_path / "one", index(), some_tensors())
    (tmp_path / "link").symlink_to(tmp_path / "one")
    os.mkfifo(tmp_path / "pipe")
    files = LocalFiles(tmp_path)
    with pytest.raises(TensorFileError, match="link is a link"):
        files.size("link")
    with pytest.raises(TensorFileError, match="pipe is no plain file"):
        files.read("pipe", 0, 1)


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "in the way").touch()
    with pytest.raises(OSError, match="one"):
        write_step(tmp_path / "one", index(), some_tensors())
    assert os.listdir(tmp_path) == ["one"]


def test_a_trial_leaves_out_damaged_files_and_continues(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, 5, 10)
    path = tmp_path / "steps" / step_file(5, "worker_0")
    path.write_bytes(path.read_bytes()[:-1])
    (tmp_path / "steps" / "000000000" / "000000000007.worker_0.tensors").symlink_to(path)
    (tmp_path / "steps" / "000000000" / ".000000000008.worker_0.tensors.part").touch()
    (tmp_path / "steps" / "nonsense").touch()
    trial = create_trial(tmp_path)
    assert trial.steps() == [0, 10]
    assert len(trial.damaged) == 2
    assert trial.has_passed_step(5) is StepState.UNAVAILABLE
    assert trial.tensor_names(collection="odd") == ["scalar", "weight"]
    with pytest.raises(TensorUnavailable):
        trial.tensor("none")


def test_a_file_under_the_name_of_another_step_is_left_out(tmp_path: Path) -> None:
    write_steps(tmp_path, 0)
    folder = tmp_path / "steps" / "000000000"
    (folder / "000000000000.worker_0.tensors").rename(folder / "000000000003.worker_0.tensors")
    trial = create_trial(tmp_path)
    assert trial.steps() == []
    assert "says that it is step 0" in next(iter(trial.damaged.values()))


def test_a_step_is_available_once_all_workers_have_saved_it_or_a_later_one(tmp_path: Path) -> None:
    trial = create_trial(tmp_path)
    assert trial.has_passed_step(0) is StepState.NOT_YET_AVAILABLE
    write_steps(tmp_path, 0, 10, worker="worker_0", num_workers=2)
    assert trial.steps() == []
    assert trial.steps(show_incomplete_steps=True) == [0, 10]
    assert not trial.has_ended
    with pytest.raises(StepNotYetAvailable):
        trial.wait_for_steps([0], limit_s=0)
    writer = write_steps(tmp_path, 0, 20, worker="worker_1", num_workers=2, ends=False)
    deadline = time.monotonic() + LIMIT_S
    while trial.steps() != [0, 10] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert trial.steps() == [0, 10]
    assert trial.has_passed_step(10) is StepState.AVAILABLE  # worker 1 has saved a later step
    assert trial.has_passed_step(5) is StepState.UNAVAILABLE
    assert trial.has_passed_step(20) is StepState.NOT_YET_AVAILABLE
    assert trial.has_passed_step(15) is StepState.NOT_YET_AVAILABLE
    with pytest.raises(StepUnavailable):
        trial.wait_for_steps([5])
    assert writer.close(limit_s=LIMIT_S)
    assert trial.steps() == [0, 10, 20]
    with pytest.raises(NoMoreData, match=r"step 21 of mode GLOBAL .* the last is 20"):
        trial.wait_for_steps([20, 21])


def test_an_external_mark_ends_a_trial(tmp_path: Path) -> None:
    writer = write_steps(tmp_path, 0, ends=False)
    trial = create_trial(tmp_path)
    trial.wait_for_steps([0], limit_s=LIMIT_S)
    assert not trial.has_ended
    mark_ended(tmp_path)
    with pytest.raises(NoMoreData):
        trial.wait_for_steps([1], limit_s=LIMIT_S)
    writer.close(limit_s=LIMIT_S)


def test_a_trial_does_not_change_without_a_refresh(tmp_path: Path) -> None:
    writer = write_steps(tmp_path, 0, ends=False)
    trial = create_trial(tmp_path)
    trial.wait_for_steps([0], limit_s=LIMIT_S)
    with no_refresh(trial):
        writer.submit(FakeStep(1))
        assert writer.close(limit_s=LIMIT_S)
        assert trial.steps() == [0]
    assert trial.steps() == [0, 1]


def test_a_trial_is_limited_to_its_range_of_steps(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, 900, 1100, 2500)
    assert create_trial(tmp_path, range_steps=(900, 2500)).steps() == [900, 1100]
    assert create_trial(tmp_path, range_steps=(None, 900)).steps() == [0]
    with pytest.raises(ValueError, match="expected a first step below the last"):
        create_trial(tmp_path, range_steps=(5, 5))


def test_a_reader_never_sees_a_partly_written_step(tmp_path: Path) -> None:
    steps = 200
    writer = write_steps(tmp_path, ends=False)
    trial = create_trial(tmp_path)
    thread = threading.Thread(target=lambda: [writer.submit(FakeStep(step)) for step in range(steps)])
    thread.start()
    seen: list[int] = []
    deadline = time.monotonic() + LIMIT_S
    while len(seen) < steps and time.monotonic() < deadline:
        now = trial.steps()
        assert now[: len(seen)] == seen
        seen = now
        time.sleep(random.random() / 1000)
    thread.join()
    assert writer.close(limit_s=LIMIT_S)
    assert seen == list(range(steps))
    assert trial.damaged == {}


def test_the_end_of_an_earlier_attempt_does_not_count(tmp_path: Path) -> None:
    write_steps(tmp_path, 0)
    writer = write_steps(tmp_path, 5, ends=False)
    trial = create_trial(tmp_path)
    trial.wait_for_steps([5], limit_s=LIMIT_S)
    assert not trial.has_ended
    writer.close(limit_s=LIMIT_S)


def test_a_later_program_of_the_same_worker_hides_the_earlier_steps(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, 10, 20)
    trial = create_trial(tmp_path, range_steps=(0, 100))
    assert create_trial(tmp_path).steps() == [0, 10, 20]
    writer = Writer(tmp_path, "worker_0")
    writer.write_collections({}, 1)
    writer.submit(FakeStep(5))
    assert writer.close(limit_s=LIMIT_S)
    assert trial.steps() == [5]
    assert trial.damaged == {}


def test_a_trial_drops_a_program_when_another_replaces_it(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, 5, 10, ends=False).close(limit_s=LIMIT_S)
    (tmp_path / "ended" / "worker_0.json").unlink()  # as if it had been killed
    trial = create_trial(tmp_path)
    assert trial.steps() == [0, 5, 10]
    writer = write_steps(tmp_path, 0, ends=False)
    deadline = time.monotonic() + LIMIT_S
    while trial.steps() != [0] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert trial.steps() == [0]
    assert trial.tensor("weight").steps() == [0]
    writer.submit(FakeStep(5))
    assert writer.close(limit_s=LIMIT_S)
    assert trial.steps() == [0, 5]
    assert trial.has_ended


def test_a_training_ends_once_all_started_workers_have_ended(tmp_path: Path) -> None:
    first = Writer(tmp_path, "worker_0")
    first.write_collections({}, 1, num_ends=2)
    first.submit(FakeStep(0))
    assert first.close(limit_s=LIMIT_S)
    trial = create_trial(tmp_path)
    assert trial.steps() == [0]
    assert not trial.has_ended
    second = Writer(tmp_path, "worker_1")
    second.write_collections({}, 1, num_ends=2)
    second.submit(FakeStep(3, worker="worker_1"))
    assert trial.steps() == [] or trial.steps() == [0], "worker 1 has begun, and has passed no step or step 3"
    assert second.close(limit_s=LIMIT_S)
    assert trial.steps() == [0, 3]
    assert trial.has_ended


@pytest.mark.parametrize("text", ["", "[]", '{"ended_at": []}', '{"ended_at": 1' + "0" * 400 + "}", "[" * 100_000])
def test_a_damaged_end_counts_as_an_end(tmp_path: Path, text: str) -> None:
    writer = write_steps(tmp_path, 0, worker="worker_0")
    assert writer.close(limit_s=LIMIT_S)
    (tmp_path / "ended" / "worker_0.json").write_text(text)
    assert create_trial(tmp_path).loaded_all_steps


def test_a_training_of_several_hosts_ends_once_all_hosts_of_one_attempt_have_ended(tmp_path: Path) -> None:
    writer = write_steps(tmp_path, 0, worker="worker_0", num_workers=2)
    trial = create_trial(tmp_path)
    for name in ("algo-1.try-1.of-2", "algo-2.try-1.of-2"):
        (tmp_path / "ended" / name).touch()
    (tmp_path / "ended" / "algo-1.try-2.of-2").touch()
    assert trial.steps() == []
    assert not trial.has_ended
    (tmp_path / "ended" / "algo-2.try-2.of-2").touch()
    assert trial.steps() == [0]
    assert trial.has_ended
    assert writer.num_written == 1


class FakeFiles:
    """Files in memory, in place of a remote store."""

    def __init__(self, root: Path) -> None:
        self.files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    interval_s = 0.0

    def listing(self, folder: str, after: str = "") -> dict[str, str]:
        begin = f"{folder}/" if folder else ""
        names = {name.removeprefix(begin).split("/")[0] for name in self.files if name.startswith(begin)}
        return {name: "" for name in sorted(names) if name >= after}

    def prepare(self, names: Sequence[str]) -> None:
        pass

    def size(self, name: str) -> int:
        return len(self.files[name])

    def read(self, name: str, start: int, length: int) -> bytes:
        return self.files[name][start : start + length]


def test_a_trial_reads_from_any_source_of_files(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, 1)
    trial = Trial(FakeFiles(tmp_path), name="elsewhere")
    assert trial.steps() == [0, 1]
    assert trial.has_ended
    assert trial.tensor("weight").shape(1) == (2, 3)


class GrowingFiles(LocalFiles):
    """A folder that gains one more step at each listing."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._num_steps = 0

    def listing(self, folder: str, after: str = "") -> dict[str, str]:
        if folder == STEPS:
            step, self._num_steps = self._num_steps, self._num_steps + 1
            path = self._root / STEPS / step_file(step, "worker_0")
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = ModeKeys.EVAL if step else ModeKeys.TRAIN
            write_step(path, index(step, mode=mode, mode_step=max(0, step - 1)), some_tensors())
        return super().listing(folder, after)


def test_phases_are_updated_while_steps_arrive(tmp_path: Path) -> None:
    trial = Trial(GrowingFiles(tmp_path), name="growing")
    assert trial.modes() == [ModeKeys.TRAIN]
    assert trial.modes() == [ModeKeys.TRAIN, ModeKeys.EVAL]
    assert trial.steps(ModeKeys.EVAL) == [0, 1]
