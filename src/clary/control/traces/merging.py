"""One trace of all ranks on one time axis for Perfetto and chrome://tracing: a process per rank and device.

Events are copied one by one, so that only one is in memory at a time.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from clary.contract.deep_profiles import RankProfile
from clary.control.traces.rank_trace import is_time
from clary.control.traces.trace_file import TraceFile

_PIDS_PER_RANK = 1000  # range of ids for processes and devices of one rank's trace
_FLOW_PHASES = ("s", "t", "f")
_SKIPPED_METADATA = ("process_name", "process_labels", "process_sort_index")
_LEVEL = 1


@dataclass(frozen=True)
class Source:
    """One rank's trace, and the offset of its times to the common axis, in microseconds."""

    file: TraceFile
    profile: RankProfile
    host: str
    offset_us: float


def write_merged(place: Path, sources: Sequence[Source], *, facts: Mapping[str, Any]) -> int:
    """Write the traces as one file, completely or not at all; return the number of events.

    Args:
        place: path of the file.
        sources: traces of the ranks.
        facts: about the offsets of clocks; stored in the file beside the events.
    Raises: TraceError, OSError.
    """
    starts = [source.profile.bounds_ns[0] / 1000 + source.offset_us for source in sources]
    origin_us = min(starts, default=0.0)
    draft = place.with_name(f".{place.name}.part")
    num_events = 0
    try:
        with gzip.open(draft, "wt", compresslevel=_LEVEL, encoding="utf-8") as file:
            head = {"displayTimeUnit": "ms", "baseTimeNanoseconds": int(origin_us * 1000), **facts}
            file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
            for source in sources:
                for event in events_of(source, origin_us=origin_us):
                    file.write(",\n" if num_events else "")
                    file.write(json.dumps(event))
                    num_events += 1
            file.write("\n]}\n")
        draft.replace(place)
    finally:
        draft.unlink(missing_ok=True)
    return num_events


def events_of(source: Source, *, origin_us: float) -> Iterator[dict[str, Any]]:
    """Yield a rank's events for the merged trace, its steps and names first."""
    rank = source.profile.rank
    label = f"rank {rank} ({source.host})"
    yield from _naming(rank, 0, label)
    yield from _steps(source, origin_us=origin_us)
    if not source.file.base_us:
        for _ in source.file.events():  # the base time may follow the events
            pass
    shift_us = source.file.base_us + source.offset_us - origin_us
    pids: dict[Any, int] = {source.profile.pid: 0}
    for event in source.file.events():
        moved = dict(event)
        pid = event.get("pid")
        if moved.get("ph") == "M" and moved.get("name") in _SKIPPED_METADATA:
            continue
        if not isinstance(pid, int | str):
            continue
        if pid not in pids:
            pids[pid] = min(len(pids), _PIDS_PER_RANK - 1)
            yield from _naming(rank, pids[pid], f"{label} {'GPU ' if isinstance(pid, int) else ''}{str(pid)[:80]}")
        moved["pid"] = rank * _PIDS_PER_RANK + pids[pid]
        if "ts" in moved:
            if not is_time(moved["ts"]) or not is_time(moved.get("dur", 0)):
                continue
            moved["ts"] = round(moved["ts"] + shift_us, 3)
        if moved.get("ph") in _FLOW_PHASES and "id" in moved:
            moved["id"] = f"{rank}.{moved['id']}"  # flows of different ranks need different ids
        yield moved


def _naming(rank: int, index: int, label: str) -> Iterable[dict[str, Any]]:
    pid = rank * _PIDS_PER_RANK + index
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": label}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}


def _steps(source: Source, *, origin_us: float) -> Iterable[dict[str, Any]]:
    """Yield one event for each step of the window, on a track of its own."""
    profile = source.profile
    pid = profile.rank * _PIDS_PER_RANK
    bounds = [bound / 1000 + source.offset_us - origin_us for bound in profile.bounds_ns]
    yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": 0, "args": {"name": "steps"}}
    for index, (begin, end) in enumerate(pairwise(bounds)):
        name = "window" if profile.by_time else f"step {profile.first_step + index}"
        yield {
            "ph": "X",
            "cat": "step",
            "name": name,
            "pid": pid,
            "tid": 0,
            "ts": round(begin, 3),
            "dur": round(end - begin, 3),
        }
