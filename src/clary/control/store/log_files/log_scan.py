"""Every line of several streams in slices of time, so that a long look holds no thread for long.

Where: `LogStore.scan` makes one and `LogStore.advance` moves it; queries over lines (`services.query_desk`). Lines come
stream after stream, within a stream in order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from clary.control.store.errors import StreamNotFound
from clary.control.store.log_files.log_pages import TimeRange
from clary.control.store.log_files.log_records import LogRecord
from clary.control.store.log_files.stream_file import StreamView

Take = Callable[[str, LogRecord], None]  # is given the stream's name and a line
Step = tuple[str, LogRecord] | None  # a line; None where a stream ends, so that time is looked at between empty ones


@dataclass
class LogScan:
    """Where a scan stands.

    Args:
        prefix: of the streams' names.
        within: the range of time.
    """

    prefix: str
    within: TimeRange
    steps: Iterator[Step] | None = None  # made by the first slice


def steps_of(names: Iterable[str], views: Callable[[str], Iterator[StreamView]], within: TimeRange) -> Iterator[Step]:
    """Yield the lines of streams within a range of time; a stream that is deleted meanwhile ends there.

    Args:
        names: of streams.
        views: returns the view of a stream, or none for one without lines in the range.
        within: the range.

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
    """Hand lines to `take` until the time is over; return whether there are no more.

    Args:
        steps: of `steps_of`; what is left of them can be advanced again.
        take: is given each line and its stream.
        budget_s: looked at after each step, so at least one is taken.
    Raises: what `take` raises.
    """
    deadline = time.monotonic() + budget_s
    for step in steps:
        if step is not None:
            take(*step)
        if time.monotonic() > deadline:
            return False
    return True
