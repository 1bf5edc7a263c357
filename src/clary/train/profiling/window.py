"""One window of torch.profiler: start, end, and writing of the trace in the background."""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from clary.train import graph_captures

# maximum size of an uncompressed trace in bytes; the time limit ends a window long before this size
MAX_RAW_BYTES = 4 * 1024 * 1024 * 1024
_QUERY_S = 0.01  # seconds between queries of a GPU
_LEVEL = 1  # gzip level: traces seven times smaller, four times faster than level 9


class OtherProfiler(Exception):
    """No window begins: the program uses torch.profiler itself, or this torch cannot record all threads."""


class Window:
    """Records torch's operations between `start` and `stop`; `write` may be called on another thread.

    Args:
        on_other: called in the program's thread before the program's own profiler starts during this window.
        all_threads: set for windows that begin and end by time: whether to refuse to start if torch records only the
            starting thread.

    [Note: threads]
    Newer releases of torch record all threads, and any thread may stop the recording. Older releases record the
    starting thread and threads that work for it; if another thread stops the recording, torch loses its session and the
    program crashes.

    [Note: GPUs]
    To end a recording that includes a GPU, torch waits for the current GPU of the thread that ends it. In a thread that
    never chose a GPU, this is the first GPU, and the wait allocates some hundred MB on it. So a window stores the GPU
    of the thread that started it, and a window by time, which our own thread starts, does not record GPUs. A thread
    also must not wait for a GPU while another thread captures a graph (`graph_captures`).
    """

    def __init__(self, *, on_other: Callable[[], None], all_threads: bool = False) -> None:
        self._on_other = on_other
        self._all_threads = all_threads
        self._thread: int | None = None  # the only thread that may stop the window; None if any thread may
        self._profiler: Any = None
        self._guarded: dict[str, Any] = {}
        self._gpu: int | None = None  # index of the GPU whose work is recorded
        self.leaves_out_gpu = False  # whether the program uses a GPU that the window does not record
        self.is_running = False

    def start(self) -> None:
        """Start recording. Raises: OtherProfiler; errors of torch."""
        torch = sys.modules["torch"]
        if _is_in_use():
            raise OtherProfiler("the program uses torch.profiler itself at this moment")
        self._profiler = torch.profiler.profile(**self._options())
        try:
            self._profiler.start()
        except BaseException:
            self._profiler = None
            raise
        if torch.autograd._profiler_enabled():  # True for a session of this thread, not for one of all threads
            self._thread = threading.get_native_id()
        self.is_running = True
        self._guard()

    @property
    def may_stop(self) -> bool:
        """Whether `stop` may be called in this thread."""
        return self._thread in (None, threading.get_native_id())

    def forget(self) -> None:
        """Stop recording in a forked child, which cannot stop its parent's session."""
        if self.is_running:
            self.is_running = False
            self._unguard()
            sys.modules["torch"]._C._autograd._enable_record_function(False)

    @property
    def has_gpu(self) -> bool:
        """Whether a GPU's work is recorded, so that `stop` waits for the GPU."""
        return self._gpu is not None

    def stop(self) -> None:
        """End the window; a second call does nothing. Call it only if `may_stop`. Blocks while torch gathers events."""
        if self.is_running:
            self.is_running = False
            self._unguard()
            with self._on_gpu():
                self._profiler.stop()

    def wait_for_no_gpu(self) -> None:
        """Make `stop` return without waiting for the GPU; its unfinished work is not in the trace."""
        # Torch waits for the profile's device before it stops Kineto; Kineto itself does not wait.
        parts: tuple[Any, ...] = (self._profiler, getattr(self._profiler, "profiler", None))
        for part in parts:
            if getattr(part, "use_device", None) is not None:
                part.use_device = None

    def has_settled(self, limit_s: float) -> bool:
        """Return whether the GPU finishes its queued work within the limit, so that `stop` returns.

        Raises: torch's error for a GPU that failed.
        """
        if self._gpu is None:
            return True
        # Polled instead of using an event: with a full queue, recording an event blocks this thread.
        stream = sys.modules["torch"].cuda.current_stream(self._gpu)
        end_s = time.monotonic() + limit_s
        while not stream.query():
            if time.monotonic() > end_s:
                return False
            time.sleep(_QUERY_S)
        return True

    def write(self, place: Path) -> int:
        """Write the trace to `place` atomically; return its size in bytes. The trace's memory is freed.

        Raises: OSError; ValueError for a trace that is too long; errors of torch.
        """
        raw, draft = place.with_name(f".{place.name}.json"), place.with_name(f".{place.name}.part")
        try:
            self._profiler.export_chrome_trace(str(raw))
            self._profiler = None
            if raw.stat().st_size > MAX_RAW_BYTES:
                raise ValueError(f"the trace has {raw.stat().st_size} bytes, and {MAX_RAW_BYTES} at most are kept")
            with open(raw, "rb") as source, gzip.open(draft, "wb", compresslevel=_LEVEL) as target:
                shutil.copyfileobj(source, target, 1024 * 1024)
            num_bytes = draft.stat().st_size
            os.replace(draft, place)
            return num_bytes
        finally:
            for leftover in (raw, draft):
                leftover.unlink(missing_ok=True)

    def _options(self) -> dict[str, Any]:
        torch = sys.modules["torch"]
        activities = [torch.profiler.ProfilerActivity.CPU]
        # Not `is_available`: as a process's first call of CUDA, it would prevent forked children from using CUDA.
        if torch.cuda.is_initialized():
            self.leaves_out_gpu = self._all_threads
            if not self._all_threads:
                self._gpu = torch.cuda.current_device()
                graph_captures.watch()
                activities.append(torch.profiler.ProfilerActivity.CUDA)
        # `trace_only` saves building Python objects for all events; older releases lack both options.
        for names in (("trace_only", "profile_all_threads"), ("profile_all_threads",), ("trace_only",)):
            try:
                config = torch._C._profiler._ExperimentalConfig(**dict.fromkeys(names, True))
            except (AttributeError, TypeError):
                continue
            if "profile_all_threads" in names:
                return {"activities": activities, "experimental_config": config}
            break
        else:
            config = None
        if self._all_threads:
            raise OtherProfiler(
                f"torch {torch.__version__} records only the thread that starts the recording, and no "
                "optimizer has made a step in this process"
            )
        return {"activities": activities, **({"experimental_config": config} if config is not None else {})}

    def _on_gpu(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._gpu is None else sys.modules["torch"].cuda.device(self._gpu)

    def _guard(self) -> None:
        """Patch torch to end this window when the program starts a profiler, since torch would raise an error there."""
        kind = sys.modules["torch"].autograd.profiler.profile
        window, ours = self, self._profiler.profiler
        for name in ("_prepare_trace", "_start_trace", "__enter__"):
            original = kind.__dict__.get(name)
            if original is None:
                continue

            def guarded(
                profiler: Any, *args: Any, _original: Callable[..., Any] = original, **options: Any
            ) -> Any:  # runs in the program's thread
                if profiler is not ours and window.is_running:
                    window._on_other()
                return _original(profiler, *args, **options)

            self._guarded[name] = original
            setattr(kind, name, guarded)

    def _unguard(self) -> None:
        kind = sys.modules["torch"].autograd.profiler.profile
        for name, original in self._guarded.items():
            setattr(kind, name, original)
        self._guarded.clear()


def _is_in_use() -> bool:
    torch = sys.modules["torch"]
    profiler = torch.autograd.profiler
    return bool(getattr(profiler, "_is_profiler_enabled", False)) or bool(torch.autograd._profiler_enabled())


def is_captured() -> bool:
    """Return whether this thread's GPU work is captured into a graph instead of computed."""
    cuda = sys.modules["torch"].cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def clock_facts() -> tuple[int, int]:
    """Return Unix time and monotonic clock in nanoseconds, from the fastest of three attempts to read both."""
    best = (0, 0, 1 << 62)
    for _ in range(3):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        best = min(best, (wall, (before + after) // 2, after - before), key=lambda reading: reading[2])
    return best[0], best[1]
