"""Writes negotiations and operations in Chrome's trace format, as HOROVOD_TIMELINE asks for.

One row a tensor: NEGOTIATE_ALLREDUCE from its submission on this rank until all ranks had it, then ALLREDUCE.
The file is a whole JSON document once `close` has returned.
"""

from __future__ import annotations

import json
import time
from typing import Any, TextIO

from clary.train.horovod.requests import Verb

_US = 1e6  # a second


class Timeline:
    """One file of rank 0.

    Args:
        marks_cycles: whether each round gets a mark.

    Raises: OSError if the file cannot be written.
    """

    def __init__(self, path: str, *, marks_cycles: bool) -> None:
        self.path = path
        self._marks_cycles = marks_cycles
        self._start = time.monotonic()
        self._file: TextIO | None = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed by `close`
        self._rows: dict[str, int] = {}
        self._separator = "[\n"
        self._write(
            {
                "name": "process_name",
                "ph": "M",
                "pid": 0,
                "args": {"start_time_since_epoch_in_micros": int(time.time() * _US)},
            }
        )

    def negotiated(self, name: str, verb: Verb, since: float) -> None:
        """Note that all ranks have submitted a tensor.

        Args:
            name: of the tensor, whose row gets the event.
            verb: the operation that was submitted.
            since: time.monotonic() when this rank submitted it.
        """
        self._span(name, f"NEGOTIATE_{verb.name}", since, time.monotonic())

    def ran(self, name: str, verb: Verb, since: float) -> None:
        """Note that an operation has ended now.

        Args:
            name: of the tensor, whose row gets the event.
            verb: the operation.
            since: time.monotonic() when it began.
        """
        self._span(name, verb.name, since, time.monotonic())

    def round_begins(self) -> None:
        """Mark the start of a round, where that is asked for."""
        if self._marks_cycles:
            self._write({"name": "CYCLE_START", "ph": "i", "s": "g", "pid": 0, "ts": self._now(time.monotonic())})

    def close(self) -> None:
        """End the document. A second call does nothing."""
        file, self._file = self._file, None
        if file is not None:
            file.write("\n]\n")
            file.close()

    def _span(self, name: str, what: str, since: float, until: float) -> None:
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = len(self._rows) + 1
            self._write({"name": "thread_name", "ph": "M", "pid": 0, "tid": row, "args": {"name": name}})
        begin = self._now(since)
        self._write({"name": what, "ph": "X", "pid": 0, "tid": row, "ts": begin, "dur": self._now(until) - begin})

    def _now(self, moment: float) -> float:
        return round((moment - self._start) * _US, 1)

    def _write(self, event: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(self._separator + json.dumps(event))
            self._separator = ",\n"
