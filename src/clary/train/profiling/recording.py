"""One profiling window, from its first step to its trace: when it must end, and the profile to report.

Where: `recorder` makes it, counts steps on it, and queries its ending; all calls except `write` hold the recorder's
lock.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import dataclass, replace

from clary.contract.deep_profiles import MAX_TIMED_STEPS, MAX_WINDOW_S, ProfileRequest, RankProfile, RankState
from clary.train.profiling.rank_files import RankFiles, boot_id
from clary.train.profiling.window import Window, clock_facts

_LEFT_OUT = "without its GPU, which only a window of steps can record"


@dataclass(frozen=True)
class Ending:
    """The reason why a window must end, and how urgently.

    Attributes:
        words: the reason of an early end; empty for a complete window.
        now: whether the window ends even if that breaks a graph capture.
    """

    words: str
    now: bool = False


class Recording:
    """A window that runs or is being written, with its request and its times.

    Args:
        request: the request; a cancellation replaces it.
        files: the files of the answer.
        window: the window, which has begun.
        first_step: number of the program's steps before the window.
        by_time: whether the window begins and ends by time instead of at steps.
    """

    def __init__(
        self, request: ProfileRequest, files: RankFiles, window: Window, *, first_step: int, by_time: bool
    ) -> None:
        self.request, self.files, self.window = request, files, window
        self.first_step, self.by_time = first_step, by_time
        self._bounds_ns = [time.time_ns()]
        self._began_s = time.monotonic()

    @property
    def may_end(self) -> bool:
        """Whether the window runs, and this thread may end it."""
        return self.window.is_running and self.window.may_stop

    def count_step(self) -> None:
        """Record the end of a step."""
        self._bounds_ns.append(time.time_ns())

    def ending_at_step(self) -> Ending | None:
        """Return the ending of a window by steps if it is complete, cancelled or too long, else None."""
        seconds = time.monotonic() - self._began_s
        asked, num_bounds = self.request, len(self._bounds_ns)
        is_whole = num_bounds > asked.num_steps if asked.num_steps else seconds >= asked.duration_s
        is_late = seconds > MAX_WINDOW_S  # its end waited for a graph capture, which may never end
        if is_whole or asked.is_cancelled:
            return Ending("", now=is_late)
        if num_bounds > MAX_TIMED_STEPS:
            return Ending(f"cut off after {MAX_TIMED_STEPS} steps", now=is_late)
        return Ending(f"cut off after {MAX_WINDOW_S:g} s", now=True) if is_late else None

    def ending_between_steps(self) -> Ending | None:
        """Return the ending of a window between steps; None if it must not end yet."""
        seconds = time.monotonic() - self._began_s
        if self.by_time:
            is_over = seconds >= min(self.request.duration_s, MAX_WINDOW_S) or self.request.is_cancelled
            return Ending("") if is_over else None
        # a very long step, or no further step; torch keeps all records in memory
        return Ending(f"cut off after {MAX_WINDOW_S:g} s", now=True) if seconds > MAX_WINDOW_S else None

    def stop(self, words: str, *, step: int) -> RankProfile:
        """Stop recording; return the profile to report while the trace is written. Raises: errors of torch.

        Args:
            words: the reason of the window's end.
            step: number of the program's steps so far.
        """
        if self.by_time:
            self._bounds_ns.append(time.time_ns())
        wall_ns, monotonic_ns = clock_facts()
        self.window.stop()
        return RankProfile(
            rank=0,
            state=RankState.WRITING,
            words="; ".join(filter(None, (words, _LEFT_OUT if self.window.leaves_out_gpu else ""))),
            pid=os.getpid(),
            host_name=socket.gethostname(),
            step=step,
            first_step=self.first_step,
            has_gpu=self.window.has_gpu,
            bounds_ns=tuple(self._bounds_ns),
            wall_ns=wall_ns,
            monotonic_ns=monotonic_ns,
            boot_id=boot_id(),
            by_time=self.by_time,
            framework=f"torch {sys.modules['torch'].__version__}",
        )

    def write(self, profile: RankProfile) -> RankProfile:
        """Write the trace, after `stop`; return the finished profile. Raises: as `Window.write`."""
        return replace(profile, state=RankState.DONE, trace_bytes=self.window.write(self.files.trace))
