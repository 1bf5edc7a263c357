"""Reads all lines of several streams in short slices, so that a long scan does not block a thread.

Where: `LogStore.scan` makes a scan and `LogStore.advance` runs its next slice, for queries over lines
(`services.query_desk`). Streams are read one after the other, each from its first line to its last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from clary.control.store.errors import StreamNotFound
from clary.control.store.log_files.log_pages import TimeRange
from clary.control.store.log_files.log_records import LogRecord
from clary.control.store.log_files.stream_file import StreamView

Take = Callable[[str, LogRecord], None]  # receives the stream's name and a line
Step = tuple[str, LogRecord] | None  # a line; None at a stream's end, so that the time is checked between empty streams


@dataclass
class LogScan:
    """The state of a scan.

    Args:
        prefix: prefix of the streams' names.
        within: the range of time.
        steps: iterator from `steps_of`; None before the first slice.
    """

    prefix: str
    within: TimeRange
    steps: Iterator[Step] | None = None  # made by the first slice


def steps_of(names: Iterable[str], views: Callable[[str], Iterator[StreamView]], within: TimeRange) -> Iterator[Step]:
    """Yield the lines of streams within a range of time; a stream that is deleted meanwhile ends early.

    Args:
        names: names of streams.
        views: returns the view of a stream, or no view if it has no lines in the range.
        within: the range of time.

    Raises: StreamDamaged.
    """
    for name in names:
        try:
            for view in views(name):
                first, stop = within.limits(view)
                for record in view.forward(first, stop):
                    yield name, record
        except StreamNotFound:
            pass
        yield None


def advance(steps: Iterator[Step], take: Take, *, budget_s: float) -> bool:
    """Pass lines to `take` for up to `budget_s` seconds; return whether all lines were passed.

    Args:
        steps: iterator from `steps_of`; the next call continues where this one ends.
        take: receives each line and its stream.
        budget_s: checked after each step, so at least one step runs.
    Raises: the errors that `take` raises.
    """
    deadline = time.monotonic() + budget_s
    for step in steps:
        if step is not None:
            take(*step)
        if time.monotonic() > deadline:
            return False
    return True
