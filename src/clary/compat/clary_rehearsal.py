"""Records the samples that a program draws and the steps of its optimizers; only in a rehearsal.

Where: torch calls `register` at the end of `import torch`, through the entry point in the library folder of jobs (as
`clary_autoload`); `clary rehearse` sets the variable `CLARY_REHEARSAL`. It runs in the user's environment, also in
Python versions that Clary does not support. torch before 2.5 calls no entry points: samples are not recorded there. A
failed write ends the record, and the program continues.

One file for each process, one JSON object in each line, in the order of events:

    {"e": "begin", "rank": "0"}
    {"e": "batch", "i": [3, 1, 2]}    a batch reached the program; null where samples have no numbers
    {"e": "step", "o": 0}             an optimizer has stepped; "o" is the number of the optimizer
    {"e": "line", "s": "step 1"}      the program printed a line
    {"e": "problem", "s": "..."}      events of one kind cannot be recorded with this torch
    {"e": "full"}                     the record ends here, the training does not

Printed lines are recorded, too, because the log does not give their order among batches and steps.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import deque
from typing import Any

VARIABLE = "CLARY_REHEARSAL"  # copied from `clary.contract.rehearsals`, which programs may be unable to import
ERRORS_VARIABLE = "CLARY_ERRORS_FOLDER"
FOLDER = "rehearsal"
MAX_LINE = 400
MAX_RECORD_BYTES = 16 * 1024 * 1024  # limit for one process; at the limit the record ends, and the training continues


class Record:
    """Appends to this process's file; each line is written when its event happens."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._left = MAX_RECORD_BYTES
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def write(self, **members: object) -> None:
        """Append one object; do nothing in a process forked from this one."""
        if self._left <= 0 or os.getpid() != self._owner:
            return
        try:
            data = (json.dumps(members) + "\n").encode()
            with self._lock:
                self._left -= os.write(self._descriptor, data)
                if self._left <= 0:
                    os.write(self._descriptor, b'{"e": "full"}\n')
        except (OSError, ValueError, TypeError):
            self._left = 0


_records: list[Record] = []  # empty, or the record of this process


def register() -> None:
    """Begin to record, if this is a rehearsal; harmless when repeated."""
    if not os.environ.get(VARIABLE) or not os.environ.get(ERRORS_VARIABLE) or _records:
        return
    try:
        record = _open()
    except OSError:
        return
    _records.append(record)
    for part in (_watch_batches, _watch_steps, _watch_lines):
        try:
            part(record)
        except Exception as error:  # noqa: BLE001 - another torch than this was written for
            record.write(e="problem", s=f"{part.__name__}: {error}"[:MAX_LINE])


def _open() -> Record:
    folder = os.path.join(os.path.dirname(os.environ[ERRORS_VARIABLE]), FOLDER)
    os.makedirs(folder, exist_ok=True)
    rank = os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or "0"
    path = os.path.join(folder, f"{rank if rank.isdecimal() else '0'}-{os.getpid()}.jsonl")
    record = Record(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    record.write(e="begin", rank=rank)
    return record


def _watch_batches(record: Record) -> None:
    """Record the indices that samplers return, in the order in which the batches reach the program.

    With worker processes, indices are drawn ahead of the batches; batches keep the order of their indices.
    """
    from torch.utils.data import dataloader

    base = dataloader._BaseDataLoaderIter
    next_index, next_batch, reset = base._next_index, base.__next__, base._reset

    def watched_reset(self: Any, *arguments: Any, **keywords: Any) -> Any:
        self._clary_drawn = deque()
        return reset(self, *arguments, **keywords)

    def watched_index(self: Any) -> Any:
        index = next_index(self)
        if not hasattr(self, "_clary_drawn"):
            self._clary_drawn = deque()
        self._clary_drawn.append(index)
        return index

    def watched_batch(self: Any) -> Any:
        batch = next_batch(self)
        drawn = getattr(self, "_clary_drawn", None)
        record.write(e="batch", i=_numbers(self, drawn.popleft()) if drawn else None)
        return batch

    base._reset, base._next_index, base.__next__ = watched_reset, watched_index, watched_batch
    base.next = watched_batch


def _numbers(iterator: Any, drawn: Any) -> list[int | str] | None:
    """Return the samples' indices in the whole data set; None if samples have no indices."""
    from torch.utils.data import Subset

    numbers = drawn if isinstance(drawn, (list, tuple)) else [drawn]
    data = iterator._dataset
    while isinstance(data, Subset):
        numbers = [data.indices[number] for number in numbers]
        data = data.dataset
    if not numbers or any(number is None for number in numbers):
        return None
    return [int(number) if hasattr(number, "__index__") else str(number)[:100] for number in numbers]


def _watch_steps(record: Record) -> None:
    from torch.optim import optimizer

    seen: dict[int, int] = {}  # id of an optimizer -> its number

    def stepped(stepping: Any, _arguments: Any, _keywords: Any) -> None:
        record.write(e="step", o=seen.setdefault(id(stepping), len(seen)))

    optimizer.register_optimizer_step_post_hook(stepped)


def _watch_lines(record: Record) -> None:
    """Record the lines that the program prints; the stream itself stays the same object."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            _watch_stream(stream, record)


def _watch_stream(stream: Any, record: Record) -> None:
    write = stream.write
    begun = [""]

    def watched(text: Any) -> Any:
        written = write(text)
        if isinstance(text, str):
            *lines, begun[0] = (begun[0] + text).split("\n")
            begun[0] = begun[0][:MAX_LINE]
            for line in lines:
                if line.strip():
                    record.write(e="line", s=line[:MAX_LINE])
        return written

    stream.write = watched
