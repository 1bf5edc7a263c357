"""Tensors of a trial by name, and the cache of their values."""

import struct
from pathlib import Path

from clary.train.debugger.capture.writing import Writer
from clary.train.debugger.files import STEPS, LocalFiles, step_file
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.reading.refreshing import no_refresh
from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.tensor_files import StepIndex, TensorEntry, read_index, write_step

LARGE = struct.pack("<2048f", *range(2048))


class CountedFiles(LocalFiles):
    """A folder that counts its reads."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.num_reads = 0

    def read(self, name: str, start: int, length: int) -> bytes:
        self.num_reads += 1
        return super().read(name, start, length)


def save(at: Path, step: int, loss: float) -> None:
    index = StepIndex(step=step, mode=ModeKeys.GLOBAL, mode_step=step, worker="worker_0", num_workers=1, written_at=4e9)
    path = at / STEPS / step_file(step, "worker_0")
    path.parent.mkdir(parents=True, exist_ok=True)
    small = TensorEntry(name="loss", shape=(1,), alias="my.loss")
    large = TensorEntry(name="weight", shape=(2048,))
    write_step(path, index, [(small, memoryview(struct.pack("<f", loss))), (large, memoryview(LARGE))])
    assert read_index(LocalFiles(at), f"{STEPS}/{step_file(step, 'worker_0')}").step == step


def values(trial: Trial, name: str, step: int) -> bytes:
    return trial.values_of(step, "worker_0", trial.tensor(name)._entries[step]["worker_0"])


def test_small_values_are_read_once_and_large_ones_each_time(tmp_path: Path) -> None:
    save(tmp_path, 3, 0.5)
    files = CountedFiles(tmp_path)
    trial = Trial(files, name="counted")
    assert trial.tensor("loss") is trial.tensor("loss")
    assert (trial.alias("loss"), trial.alias("weight"), trial.alias("none")) == ("my.loss", "", "")
    with no_refresh(trial):
        before = files.num_reads
        assert [values(trial, "loss", 3) for _ in range(3)] == [struct.pack("<f", 0.5)] * 3
        assert files.num_reads == before + 1
        assert [values(trial, "weight", 3) for _ in range(3)] == [LARGE] * 3
        assert files.num_reads == before + 4


def test_cached_values_are_dropped_when_another_program_saves(tmp_path: Path) -> None:
    first = Writer(tmp_path, "worker_0")
    first.write_collections({}, 1)
    save(tmp_path, 3, 0.5)
    save(tmp_path, 4, 0.5)
    trial = Trial(LocalFiles(tmp_path), name="restarted")
    tensor = trial.tensor("loss")
    assert (tensor.steps(show_incomplete_steps=True), values(trial, "loss", 3)) == ([3, 4], struct.pack("<f", 0.5))
    assert first.close(limit_s=60.0)
    second = Writer(tmp_path, "worker_0")
    second.write_collections({}, 1)
    (tmp_path / STEPS / step_file(4, "worker_0")).unlink()
    save(tmp_path, 3, 0.25)
    assert (tensor.steps(show_incomplete_steps=True), values(trial, "loss", 3)) == ([3], struct.pack("<f", 0.25))
    assert trial.num_restarts == 1
    assert trial.tensor("loss") is tensor, "what a rule holds stays good"
    assert second.close(limit_s=60.0)
