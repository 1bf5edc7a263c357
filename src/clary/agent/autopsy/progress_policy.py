"""Verdict on whether a program makes progress, judged by counters seen from outside. Pure.

Where: `progress_watch` takes a reading every few seconds and calls `judge`. This module knows nothing of steps or
epochs, so a program counts as alive while it prints anything, or while it reads, writes or sends more than
`MOVED_BYTES_PER_S`. Any other program is

    idle      if it uses no processor: it waits for an event that does not occur. Ranks of a gang do so when one of
              them has stopped, skipped a collective, or lost its link.
    spinning  if it uses the processor: it compiles or computes for long, or waits in a loop that never sleeps. Only
              time can tell, so a spinning program gets a much longer limit. A process that waits for a GPU spins too.
              Ranks that wait for each other on GPUs also spin, until NCCL gives up after ten minutes: on hosts with
              GPUs the processes of a quiet program are dumped before that.

A long checkpoint writes, a slow first step computes, an evaluation prints or computes: none of them is idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

IDLE_CPU_SHARE = 0.05  # share of one processor, for all processes together: some threads wake up now and then
# Keep-alive messages, frames of the link watch and log files of libraries stay below this.
MOVED_BYTES = 64 * 1024
MOVED_BYTES_PER_S = 2048
SPINNING_FACTOR = 6  # times the limit for an idle program


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Counters of a host's program at one moment; they never decrease while its processes live."""

    at_s: float  # monotonic
    num_outputs: int  # pieces of output printed so far
    cpu_s: float  # processor time of all its processes
    io_bytes: int  # read and written, files and pipes
    network_bytes: int  # over the job's network, both ways


@dataclass(frozen=True, kw_only=True)
class Standstill:
    """A program that makes no progress."""

    kind: str  # idle or spinning
    seconds: float  # since it last printed, read, wrote or sent anything
    cpu_s: float  # processor time since then


def judge(readings: Sequence[Reading], *, limit_s: float) -> Standstill | None:
    """Return the standstill of a program, or None while it may still make progress.

    Args:
        readings: oldest first.
        limit_s: how long the program may be idle.
    """
    if not readings:
        return None
    last = readings[-1]
    quiet = [reading for reading in readings if _is_quiet(reading, last)]
    first = quiet[0]
    seconds, cpu_s = last.at_s - first.at_s, last.cpu_s - first.cpu_s
    if seconds >= limit_s * SPINNING_FACTOR:
        kind = "idle" if cpu_s < IDLE_CPU_SHARE * seconds else "spinning"
        return Standstill(kind=kind, seconds=seconds, cpu_s=cpu_s)
    idle = [reading for reading in quiet if last.cpu_s - reading.cpu_s < IDLE_CPU_SHARE * (last.at_s - reading.at_s)]
    if idle and last.at_s - idle[0].at_s >= limit_s:
        return Standstill(kind="idle", seconds=last.at_s - idle[0].at_s, cpu_s=last.cpu_s - idle[0].cpu_s)
    return None


def quiet_s(readings: Sequence[Reading]) -> float:
    """Return the seconds since a program last printed, read, wrote or sent anything; it may have computed."""
    if not readings:
        return 0.0
    last = readings[-1]
    return last.at_s - next(reading.at_s for reading in readings if _is_quiet(reading, last))


def horizon_s(limit_s: float) -> float:
    """Return the maximum age in seconds of the readings that `judge` needs."""
    return limit_s * SPINNING_FACTOR


def _is_quiet(reading: Reading, last: Reading) -> bool:
    """Whether the program showed no activity from a reading to the last one; a counter that fell is activity."""
    moved = (last.io_bytes - reading.io_bytes) + (last.network_bytes - reading.network_bytes)
    allowed = MOVED_BYTES + MOVED_BYTES_PER_S * (last.at_s - reading.at_s)
    return last.num_outputs == reading.num_outputs and 0 <= moved < allowed and last.cpu_s >= reading.cpu_s
