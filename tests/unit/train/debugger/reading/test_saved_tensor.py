"""A tensor that some workers have saved at some steps only."""

import struct
from pathlib import Path

import pytest

from clary.train.debugger.errors import InvalidWorker
from clary.train.debugger.files import COLLECTIONS, STEPS, LocalFiles, step_file
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.tensor_files import StepIndex, TensorEntry, write_step


def save(at: Path, worker: str, step: int, *names: str) -> None:
    (at / COLLECTIONS).mkdir(exist_ok=True)
    (at / COLLECTIONS / f"{worker}.json").write_text('{"num_workers": 2, "collections": {}, "began_at": 1.0}')
    path = at / STEPS / step_file(step, worker)
    path.parent.mkdir(parents=True, exist_ok=True)
    index = StepIndex(step=step, mode=ModeKeys.GLOBAL, mode_step=step, worker=worker, num_workers=2, written_at=2.0)
    values = struct.pack("<2f", step, step)
    write_step(path, index, [(TensorEntry(name=name, shape=(2,)), memoryview(values)) for name in names])


def test_the_shapes_of_a_worker_are_those_of_the_steps_that_it_saved(tmp_path: Path) -> None:
    save(tmp_path, "worker_0", 0, "a", "b")
    save(tmp_path, "worker_0", 1, "a", "b")
    save(tmp_path, "worker_1", 0, "a", "b")
    save(tmp_path, "worker_1", 1, "b")
    tensor = Trial(LocalFiles(tmp_path), name="two").tensor("a")
    assert tensor.shapes() == tensor.shapes(worker="worker_0") == {0: (2,), 1: (2,)}
    assert tensor.shapes(worker="worker_1") == {0: (2,)}
    with pytest.raises(InvalidWorker):
        tensor.shape(1, worker="worker_1")
