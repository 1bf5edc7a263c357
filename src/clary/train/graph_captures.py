"""Detection of CUDA graph captures in the program, and a gate that delays new captures.

Where: the debugger's writer and the profiler's recorder pass the gate before their own threads wait for a GPU.

[Note: other threads]
While a thread captures in CUDA's usual mode, `global`, no other thread of the process may wait for an event or for the
device: that call fails, and the program's capture may fail too. Torch does not show whether another thread captures, so
`watch` wraps `capture_begin` and `capture_end` of both graph classes.
Source: CUDA Runtime API, cudaThreadExchangeStreamCaptureMode; torch.cuda.CUDAGraph.capture_begin, and in newer
releases torch.accelerator.Graph.capture_begin.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

BEGIN_LIMIT_S = 10.0  # limit on how long threads that wait for a GPU may delay a capture, because the GPU may hang
_KINDS = (("torch.cuda.graphs", "CUDAGraph"), ("torch.accelerator.graphs", "Graph"))
_MARK = "_clary_captures"


class CaptureGate:
    """Keeps captures and GPU waits of other threads from overlapping."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._num_captures = 0
        self._num_waits = 0

    def begin_capture(self) -> None:
        """Wait until no thread waits for a GPU, at most `BEGIN_LIMIT_S`, then count a capture."""
        with self._turn:
            self._turn.wait_for(lambda: not self._num_waits, BEGIN_LIMIT_S)
            self._num_captures += 1

    def end_capture(self) -> None:
        """Count the end of a capture."""
        with self._turn:
            self._num_captures = max(0, self._num_captures - 1)
            self._turn.notify_all()

    @contextmanager
    def between(self, limit_s: float) -> Iterator[bool]:
        """Wait for captures to end, then block new ones; yield False after the limit.

        A thread that is capturing must not call it.
        """
        with self._turn:
            is_free = self._turn.wait_for(lambda: not self._num_captures, limit_s)
            self._num_waits += is_free
        try:
            yield is_free
        finally:
            with self._turn:
                self._num_waits -= is_free
                self._turn.notify_all()


gate = CaptureGate()


def watch() -> None:
    """Report captures to the gate from now on. A second call does nothing, nor does a call before torch is imported."""
    for module, name in _KINDS:
        kind: Any = getattr(sys.modules.get(module), name, None)
        begin, end = getattr(kind, "capture_begin", None), getattr(kind, "capture_end", None)
        if begin is not None and end is not None and not hasattr(begin, _MARK):
            kind.capture_begin, kind.capture_end = _begins(begin), _ends(end)


def _begins(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def capture_begin(self: Any, *arguments: Any, **keywords: Any) -> Any:
        gate.begin_capture()
        try:
            return function(self, *arguments, **keywords)
        except BaseException:
            gate.end_capture()
            raise

    setattr(capture_begin, _MARK, True)
    return capture_begin


def _ends(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def capture_end(self: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            return function(self, *arguments, **keywords)
        finally:
            gate.end_capture()

    return capture_end
