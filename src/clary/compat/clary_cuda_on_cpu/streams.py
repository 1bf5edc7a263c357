"""Made-up streams and events: every call returns after its work is done.

See point 2 of [Note: how] in the package's docstring.
"""

from __future__ import annotations

import time
from typing import Any

import torch


class Event(torch.Event):
    """A moment of this process's clock; all earlier work has finished."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        """Make an event of the CPU."""
        return super().__new__(cls, device="cpu")

    def __init__(self, *_: Any, **__: Any) -> None:
        self.moment_s = 0.0

    @property
    def device(self) -> Any:
        """Device of the event: the CPU."""
        return torch.device("cpu")

    def record(self, stream: Any = None) -> None:
        """Record the present time."""
        self.moment_s = time.perf_counter()

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds to a later event."""
        return float(1000 * (end.moment_s - self.moment_s))

    def query(self) -> bool:
        """Return True: all earlier work has finished."""
        return True

    def wait(self, stream: Any = None) -> None:
        """Do nothing: no work is pending."""

    def synchronize(self) -> None:
        """Do nothing: no work is pending."""


class Stream(torch.Stream):
    """A stream that is always empty: every call returns after its work is done."""

    cuda_stream, priority = 0, 0

    def __new__(cls, *_: Any, **__: Any) -> Any:
        """Make a stream from three numbers, which torch does not check."""
        return super().__new__(cls, stream_id=0, device_index=0, device_type=0)

    def __init__(self, *_: Any, **__: Any) -> None:
        """Accept any arguments."""

    @property
    def device(self) -> Any:
        """Device of the stream: the CPU."""
        return torch.device("cpu")

    def record_event(self, event: Any = None) -> Any:
        """Return an event that holds this moment."""
        event = event or Event()
        event.record(self)
        return event

    def is_capturing(self) -> bool:
        """Return False: no graph is captured."""
        return False

    def query(self) -> bool:
        """Return True: all earlier work has finished."""
        return True

    def wait_stream(self, stream: Any) -> None:
        """Do nothing: no work is pending."""

    def wait_event(self, event: Any) -> None:
        """Do nothing: no work is pending."""

    def synchronize(self) -> None:
        """Do nothing: no work is pending."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: no work is pending."""


class ExternalStream(Stream):
    """A stream that another library made."""


class StreamContext:
    """`with torch.cuda.stream(stream):`."""

    def __init__(self, stream: Any = None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        """Do nothing: each call finishes its work before it returns."""

    def __exit__(self, *_: object) -> None:
        """Do nothing: no work is pending."""
