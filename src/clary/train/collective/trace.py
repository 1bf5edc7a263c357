"""Computation and communication on each rank, as a trace in Chrome's format (chrome://tracing, Perfetto).

Off unless CLARY_COLLECTIVE_TRACE names a folder (`settings`). Then `cores.open_core` wraps every core in a
`traced_core.TracedCore`, which puts the core's operations on a lane named `communication GROUP`, and the torch adapter
reports modules on the lane `compute`. Each rank writes one file, `rank-RANK.PROCESS.json`. This command merges them
into one trace:

    python -m clary.train.collective.trace merge FOLDER OUTPUT

Times start from the wall clock and advance with the monotonic clock. Lanes of one process align exactly; lanes of
different processes align only as closely as their wall clocks agreed when they opened their files. A file holds at most
MAX_EVENTS; later events are counted and dropped. The file is written every FLUSH_EVENTS events, and when a group or the
process ends; a killed process loses the unwritten events, but its file can still be read.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

VARIABLE = "CLARY_COLLECTIVE_TRACE"
COMPUTE = "compute"
COMMUNICATION = "communication"
MAX_EVENTS = 500_000  # about 100 MB
FLUSH_EVENTS = 2000
_NANOSECONDS = 1000  # per microsecond, Chrome's unit
_SEPARATOR = ",\n"


class TraceWriter:
    """Writes the trace of one rank; any thread may call it.

    Args:
        path: path of the file; an existing file is replaced.
        rank: rank, which the trace shows as the process.
        max_events: number of events after which further events are only counted.
    """

    def __init__(self, path: Path, rank: int, *, max_events: int = MAX_EVENTS) -> None:
        self._rank = rank
        self._max_events = max_events
        self._num_events = 0
        self._num_dropped = 0
        self._lanes: dict[str, int] = {}
        self._lines: list[str] = []
        self._lock = threading.RLock()  # garbage collection may end an operation while an event is being added
        self._offset_ns = time.time_ns() - time.perf_counter_ns()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="ascii")
        self._file.write("[\n")
        self._describe("process_name", 0, name=f"rank {rank}")
        self._describe("process_sort_index", 0, sort_index=rank)

    def span(self, lane: str, name: str, begin_ns: int, end_ns: int, **details: Any) -> None:
        """Add a span; spans of a lane must nest.

        Args:
            lane: row of the trace, such as `compute`.
            name: name of the span.
            begin_ns, end_ns: times by `time.perf_counter_ns`.
            details: shown with the event.
        """
        self._add(lane, {"ph": "X", "name": name, "dur": (end_ns - begin_ns) / _NANOSECONDS}, begin_ns, details)

    def loose_span(self, lane: str, name: str, number: int, begin_ns: int, end_ns: int, **details: Any) -> None:
        """Add a span that may overlap others of its lane.

        Args:
            number: distinguishes it from other spans of its name.
        """
        same = {"name": name, "cat": lane, "id": number}
        self._add(lane, {"ph": "b", **same}, begin_ns, details)
        self._add(lane, {"ph": "e", **same}, end_ns, {})

    def instant(self, lane: str, name: str, at_ns: int, **details: Any) -> None:
        """Add an event at one time.

        Args:
            lane: row of the trace.
            name: name of the event.
            at_ns: time by `time.perf_counter_ns`.
            details: shown with the event.
        """
        self._add(lane, {"ph": "i", "s": "t", "name": name}, at_ns, details)

    def flush(self) -> None:
        """Write the events so far."""
        with self._lock:
            self._write()

    def close(self) -> None:
        """Write the events so far, and the end of the file. Later events are dropped."""
        with self._lock:
            if self._file.closed:
                return
            self._describe("process_labels", 0, labels=f"{self._num_dropped} events dropped")
            self._write()
            self._file.seek(self._file.tell() - len(_SEPARATOR))
            self._file.write("\n]\n")
            self._file.truncate()
            self._file.close()

    def _add(self, lane: str, event: dict[str, Any], at_ns: int, details: dict[str, Any]) -> None:
        with self._lock:
            if self._num_events >= self._max_events or self._file.closed:
                self._num_dropped += 1
                return
            self._num_events += 1
            number = self._lanes.get(lane)
            if number is None:
                number = self._lanes[lane] = len(self._lanes) + 1
                self._describe("thread_name", number, name=lane)
                self._describe("thread_sort_index", number, sort_index=0 if lane == COMPUTE else number)
            event |= {"pid": self._rank, "tid": number, "ts": (at_ns + self._offset_ns) / _NANOSECONDS}
            self._lines.append(json.dumps(event | {"args": details} if details else event))
            if len(self._lines) >= FLUSH_EVENTS:
                self._write()

    def _describe(self, what: str, lane: int, **values: Any) -> None:
        self._lines.append(json.dumps({"ph": "M", "name": what, "pid": self._rank, "tid": lane, "args": values}))

    def _write(self) -> None:
        if self._lines and not self._file.closed:
            self._file.write(_SEPARATOR.join(self._lines) + _SEPARATOR)
            self._file.flush()
            self._lines.clear()


def writer_of_process(folder: str, rank: int) -> TraceWriter | None:
    """Return the writer of this process's file in `folder`; None if `folder` is empty, that is, traces are off.

    The first caller's `rank` names the file and the trace's process. The variable RANK of a launcher takes precedence,
    since `rank` may be a rank in a smaller group.

    Raises: OSError if the file cannot be written.
    """
    process = os.getpid()
    if not folder:
        return None
    with _opening:
        writer = _writers.get((folder, process))
        if writer is None:
            rank = int(os.environ.get("RANK") or rank)
            writer = _writers[folder, process] = TraceWriter(Path(folder) / f"rank-{rank}.{process}.json", rank)
            atexit.register(writer.close)
    return writer


_writers: dict[tuple[str, int], TraceWriter] = {}
_opening = threading.Lock()


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of one file, which may be cut off because its process was killed.

    Raises: ValueError naming the file, if it is no trace.
    """
    text = path.read_text(encoding="ascii").rstrip().removesuffix("]").rstrip()
    while True:
        try:
            events: list[dict[str, Any]] = json.loads(text.removesuffix(",") + "]")
        except ValueError:
            text, separator, _ = text.rpartition(_SEPARATOR)
            if not separator:
                raise ValueError(f"{path} is no trace: expected one JSON array with one event per line") from None
        else:
            return events


def merge(folder: Path) -> dict[str, Any]:
    """Return one trace of all ranks' files in `folder`.

    Raises: ValueError if there is none, or as `read_events`.
    """
    paths = sorted(folder.glob("rank-*.json"))
    if not paths:
        raise ValueError(f"{folder} holds no rank-*.json: run the program with {VARIABLE}={folder}")
    return {"displayTimeUnit": "ms", "traceEvents": [event for path in paths for event in read_events(path)]}


def main(arguments: list[str] | None = None) -> int:
    """Merge traces as the command line requests."""
    parser = argparse.ArgumentParser(prog="python -m clary.train.collective.trace", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    merging = parser.add_subparsers(dest="command", required=True).add_parser("merge", help="make one trace of a run's")
    merging.add_argument("folder", type=Path)
    merging.add_argument("output", type=Path)
    options = parser.parse_args(arguments)
    try:
        trace = merge(options.folder)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    options.output.write_text(json.dumps(trace), encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
