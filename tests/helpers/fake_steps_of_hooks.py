"""Training steps without a model, as a hook receives them."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

from clary.train.debugger.capture.writing import Writer
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.tensor_files import StepIndex, TensorEntry

LIMIT_S = 30.0


def index(step: int = 0, worker: str = "worker_0", num_workers: int = 1, **changes: Any) -> StepIndex:
    values = {"mode": ModeKeys.GLOBAL, "mode_step": step, "written_at": 1.5} | changes
    return StepIndex(step=step, worker=worker, num_workers=num_workers, **values)


def some_tensors() -> list[tuple[TensorEntry, memoryview | None]]:
    return [
        (TensorEntry(name="weight", shape=(2, 3)), memoryview(struct.pack("<6f", *range(6)))),
        (TensorEntry(name="reduced", dtype="float64", shape=(9,), reductions={"abs_mean": 0.5}, alias="other"), None),
        (TensorEntry(name="nothing", shape=(0, 3)), memoryview(b"")),
        (TensorEntry(name="scalar", dtype="int64", shape=()), memoryview(struct.pack("<q", -7))),
    ]


class FakeStep:
    """A step as the hook passes it on."""

    def __init__(self, step: int, **changes: Any) -> None:
        self.index = index(step, **({"written_at": time.time()} | changes))
        self.is_released = False

    def tensors(self) -> list[tuple[TensorEntry, memoryview | None]]:
        return some_tensors()

    def release(self) -> None:
        self.is_released = True


def write_steps(at: Path, *steps: int, worker: str = "worker_0", num_workers: int = 1, ends: bool = True) -> Writer:
    writer = Writer(at, worker)
    writer.write_collections({"odd": {"include_regex": ["^w"], "tensor_names": ["scalar"]}}, num_workers)
    given = [FakeStep(step, worker=worker, num_workers=num_workers) for step in steps]
    for one in given:
        writer.submit(one)
    if ends:
        assert writer.close(limit_s=LIMIT_S)
        assert all(one.is_released for one in given)
    return writer
