"""Deep profiles: a framework's own profiler records a few steps of every rank, called a window.

Where: the service requests a profile in the answer to a report (`ReportReceipt.profile`). The agent writes the request
to a file that ranks poll (`clary.train.profiling`) and reads the ranks' files. Below its own path it sends `POST
profiles` (HostProfile, at each change) and `POST traces?number=N&rank=R&offset=B&last=0|1` (bytes of a trace, in
order).

Files of a host, in a folder of `/opt/ml/.clary/profiles` that the environment variable `FOLDER_VARIABLE` names:

    request-NUMBER.json             ProfileRequest, written by the agent; again, with `is_cancelled`, to end it
    out/NUMBER/rank-R.json          RankProfile, written by rank R at each change
    out/NUMBER/rank-R.trace.json.gz its trace, in Chrome's format, whole before the state is `done`
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clary.base.string_enum import StrEnum

FOLDER_VARIABLE = "CLARY_PROFILES_FOLDER"
OUT_FOLDER = "out"  # below the folder that FOLDER_VARIABLE names
MAX_STEPS = 100  # of one window
MAX_TIMED_STEPS = 1_000  # steps of a window by time, so that its report stays short
MAX_WINDOW_S = 60.0  # longest window, even if its steps take longer
MAX_WAIT_S = 120.0  # longest wait for the first profiled step of a request without start_step and start_at
TIMED_WINDOW_S = 2.0  # length of the window of a program whose steps cannot be observed
MAX_TRACE_BYTES = 256 * 1024 * 1024  # size of a trace as it is sent
MAX_PROFILE_BYTES = 8 * 1024 * 1024 * 1024  # size of the traces of all ranks of a profile
PIECE_BYTES = 2 * 1024 * 1024  # size of one request with a part of a trace
DEFAULT_START_STEP = 5  # default of DetailedProfilingConfig in SDK v2
MAX_SHOWN = 80  # characters of a user's text that are quoted in a message
_DETAILED = "DetailedProfilingConfig"  # key of ProfilerConfig.ProfilingParameters; its value is a text
_STEPS = frozenset(("StartStep", "NumSteps"))
_TIMED = frozenset(("StartTimeInSecSinceEpoch", "Duration"))


class RankState(StrEnum):
    """State of a rank's window."""

    WAITING = "waiting"  # the rank has read the request and waits for its step or time
    RECORDING = "recording"
    WRITING = "writing"  # the program has continued, and its trace is being written
    DONE = "done"  # terminal: the trace is whole
    REFUSED = "refused"  # terminal: the program uses the profiler itself
    FAILED = "failed"  # terminal: `words` holds the reason
    LOST = "lost"  # terminal: the rank has ended, or never answered

    @property
    def is_over(self) -> bool:
        """Whether the state is final."""
        return self in (RankState.DONE, RankState.REFUSED, RankState.FAILED, RankState.LOST)


@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """One window, requested from every host of an attempt; `number` grows.

    Attributes:
        start_step: number of finished steps at which the window begins; None for the next step.
        start_at: Unix time before which the window does not begin, so that ranks begin together; 0 for at once.
        give_up_at: Unix time until which the window must have begun; 0 for no limit.
        duration_s: length of a window without a requested number of steps, or if steps cannot be observed.
        ranks: ranks to profile; empty for all ranks.
        is_cancelled: whether to end the window now; the recorded part is kept.
    """

    number: int
    num_steps: int
    start_step: int | None = None
    start_at: float = 0.0
    give_up_at: float = 0.0
    duration_s: float = TIMED_WINDOW_S
    ranks: tuple[int, ...] = ()
    is_cancelled: bool = False


@dataclass(frozen=True, kw_only=True)
class RankProfile:
    """Report of one rank about its window.

    Attributes:
        step: number of finished steps at the last report.
        first_step: number of finished steps when the window began.
        bounds_ns: Unix times at which the window began and each of its steps ended.
        wall_ns, monotonic_ns: Unix time and monotonic time of the machine, read together when the window ended.
        boot_id: boot id of the machine's kernel: ranks with the same boot id share a clock.
        by_time: whether the window ended by time, because no step was observed.
        has_gpu: whether a GPU was recorded, too.
    """

    rank: int
    state: RankState
    words: str = ""
    pid: int = 0
    host_name: str = ""
    step: int = 0
    first_step: int = 0
    bounds_ns: tuple[int, ...] = ()
    wall_ns: int = 0
    monotonic_ns: int = 0
    boot_id: str = ""
    by_time: bool = False
    framework: str = ""  # torch 2.9.0
    trace_bytes: int = 0
    has_gpu: bool = False


@dataclass(frozen=True, kw_only=True)
class HostProfile:
    """Report of a host's ranks about a window; each report carries all facts so far."""

    number: int
    host: str
    is_final: bool  # whether this is the host's last report
    ranks: tuple[RankProfile, ...]
    error: str = ""  # why there is no profile


@dataclass(frozen=True, kw_only=True)
class Window:
    """Window of a job's ProfilerConfig: `num_steps` from `start_step` on, or `duration_s` from `start_at` on."""

    start_step: int | None
    num_steps: int
    start_at: float = 0.0
    duration_s: float = TIMED_WINDOW_S


def window_of(profiler_config: Mapping[str, Any] | None) -> Window | None:
    """Return the window that ProfilingParameters request, or None if they request no window or cannot be parsed.

    In the SDK's FrameworkProfile, only DetailedProfilingConfig requests a window of the framework's profiler.
    Source: SDK v2 `sagemaker.debugger.metrics_config` (StepRange, TimeRange).
    """
    text = _asked_text(profiler_config)
    if text is None or (profiler_config or {}).get("DisableProfiler"):
        return None
    try:
        asked = _read(text)
        if asked is None:
            return None
        if _TIMED & asked.keys():
            seconds = float(asked.get("Duration") or TIMED_WINDOW_S)
            start_at = float(asked.get("StartTimeInSecSinceEpoch") or 0)
            if not (math.isfinite(start_at) and seconds > 0):  # NaN, too, which the JSON parser accepts
                return None
            return Window(start_step=None, num_steps=0, start_at=start_at, duration_s=min(seconds, MAX_WINDOW_S))
        start_step = asked.get("StartStep")
        num_steps = max(1, min(int(asked.get("NumSteps") or 1), MAX_STEPS))
        return Window(start_step=DEFAULT_START_STEP if start_step is None else int(start_step), num_steps=num_steps)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def window_problems(profiler_config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return sentences on the parts of a DetailedProfilingConfig that are changed or ignored."""
    text = _asked_text(profiler_config)
    if text is None:
        return ()
    config = {**(profiler_config or {}), "DisableProfiler": False}
    try:
        asked = _read(text)
    except (ValueError, RecursionError):
        asked = None
    window = window_of(config)
    if asked is None or window is None:
        shown = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
        return (
            f"{_DETAILED} {shown!r} cannot be read, and no window is profiled: expected StartStep and NumSteps, or "
            "StartTimeInSecSinceEpoch and Duration, as JSON",
        )
    found = []
    if unknown := sorted(str(name)[:MAX_SHOWN] for name in asked.keys() - _STEPS - _TIMED):
        found.append(f"{_DETAILED}: {', '.join(unknown)} has no effect: {', '.join(sorted(_STEPS | _TIMED))} do")
    is_timed = bool(_TIMED & asked.keys())
    if is_timed and (mixed := sorted(_STEPS & asked.keys())):
        found.append(f"{_DETAILED}: {' and '.join(mixed)} has no effect beside a time")
    if not is_timed and int(asked.get("NumSteps") or 1) != window.num_steps:
        found.append(f"{_DETAILED}: NumSteps is {window.num_steps}, since a window has 1 to {MAX_STEPS} steps")
    if is_timed and float(asked.get("Duration") or TIMED_WINDOW_S) != window.duration_s:
        found.append(f"{_DETAILED}: Duration is {window.duration_s:g} s, since no window lasts longer")
    return tuple(found)


def _asked_text(profiler_config: Mapping[str, Any] | None) -> str | None:
    text = ((profiler_config or {}).get("ProfilingParameters") or {}).get(_DETAILED)
    return None if text is None else str(text)


def _read(text: str) -> dict[str, Any] | None:
    """Return the members of a DetailedProfilingConfig; None if the JSON is not an object. Raises: ValueError."""
    # The SDK writes commas before closing brackets, which JSON does not allow.
    asked = json.loads(text.replace(",}", "}").replace(", }", "}"))
    return asked if isinstance(asked, dict) else None
