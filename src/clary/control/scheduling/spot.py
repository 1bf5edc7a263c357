"""Spot capacity over time, and the jobs that lose their hosts when the capacity falls. Pure except `load_schedule`.

Where: the reconciler computes on its passes the number of spot hosts, the jobs to interrupt, and whether a waiting spot
job may start. Without a schedule, capacity is unlimited. docs/spot.md describes the files.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from clary.base.errors import ContractError, Fault

MAX_FILE_BYTES = 16 * 1024 * 1024  # a year in steps of a minute has 0.5 million lines
MAX_HOSTS = 1_000_000
MAX_SECONDS = 1e10  # three hundred years: a larger number is a mistake
MAX_NAMES_IN_REASON = 5
_COMMENT = "#"


@dataclass(frozen=True)
class SpotSchedule:
    """Number of spot hosts over time, from the start of the service on; the last value remains valid.

    Args:
        starts_s: second of the schedule from which each value is valid; the first is 0, and the seconds increase.
        hosts: numbers of spot hosts; successive values differ.
        time_scale: seconds of the schedule that pass in one second; 60 plays an hour in a minute.
    """

    starts_s: tuple[float, ...]
    hosts: tuple[int, ...]
    time_scale: float = 1.0

    def capacity_at(self, elapsed_s: float) -> int:
        """Return the number of hosts `elapsed_s` real seconds after the start; before the start, the first value."""
        return self.hosts[self._index_at(elapsed_s)]

    def next_change_s(self, elapsed_s: float) -> float | None:
        """Return the real seconds after the start at which the value changes next; None without a further change."""
        index = self._index_at(elapsed_s) + 1
        return self._real_s(index) if index < len(self.starts_s) else None

    def _index_at(self, elapsed_s: float) -> int:
        # Compared in real seconds, so that the new value is valid exactly at the time that `next_change_s` returns.
        return max(0, bisect_right(range(len(self.starts_s)), elapsed_s, key=self._real_s) - 1)

    def _real_s(self, index: int) -> float:
        return self.starts_s[index] / self.time_scale


@dataclass(frozen=True, kw_only=True)
class SpotUse:
    """A job's use of spot capacity."""

    job_name: str
    num_hosts: int
    order: float  # time at which the job got its hosts; the job with the largest is the newest
    is_leaving: bool = False  # whether the job was ordered to give its hosts back; until it has, they count as used


@dataclass(frozen=True, kw_only=True)
class Reclaim:
    """Jobs to interrupt, newest first, with the reason; empty if the capacity suffices."""

    job_names: tuple[str, ...]
    reason: str = ""


def load_schedule(path: Path, *, time_scale: float = 1.0) -> SpotSchedule:
    """Read a schedule from a file.

    Raises: ContractError naming the file, and the line or member that is wrong.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _error(f"{path}: cannot be read: {error.strerror} (setting spot_schedule_file)") from error
    if len(data) > MAX_FILE_BYTES:
        raise _error(f"{path}: expected at most {MAX_FILE_BYTES} bytes of a spot schedule, got more")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _error(f"{path}: expected UTF-8, got byte {data[error.start]:#04x} at offset {error.start}") from error
    return parse_schedule(text, source=str(path), time_scale=time_scale)


def parse_schedule(text: str, *, source: str, time_scale: float = 1.0) -> SpotSchedule:
    """Parse a schedule: lines of `SECONDS HOSTS`, or a JSON trace.

    Args:
        text: content of the file; a trace begins with `{`.
        source: named in errors.
        time_scale: see SpotSchedule.
    Raises: ContractError naming the source, and the line or member that is wrong.
    """
    if not (math.isfinite(time_scale) and time_scale > 0):
        raise _error(f"{source}: expected a time scale above 0, got {time_scale!r} (setting spot_time_scale)")
    points = _trace_points(text, source) if text.lstrip().startswith("{") else _line_points(text, source)
    starts_s: list[float] = []
    hosts: list[int] = []
    for start_s, count in points:
        if not hosts or hosts[-1] != count:
            starts_s.append(start_s)
            hosts.append(count)
    return SpotSchedule(tuple(starts_s), tuple(hosts), time_scale)


def choose_reclaimed(running: Sequence[SpotUse], capacity: int) -> Reclaim:
    """Return the jobs that lose their hosts so that the other jobs fit: the newest jobs, and no more than necessary.

    A job that loses one host loses its attempt, so whole jobs are chosen. If an older job frees many hosts, newer jobs
    that were chosen before it are spared, the oldest first.

    Args:
        running: jobs that hold spot capacity. Leaving jobs are not chosen again, and do not count.
        capacity: number of spot hosts.
    """
    staying = [use for use in running if not use.is_leaving and use.num_hosts > 0]
    held = sum(use.num_hosts for use in staying)
    surplus = held - capacity
    chosen: list[SpotUse] = []
    for use in sorted(staying, key=_age, reverse=True):
        if surplus <= 0:
            break
        chosen.append(use)
        surplus -= use.num_hosts
    for use in reversed(chosen):
        if surplus + use.num_hosts <= 0:
            surplus += use.num_hosts
            chosen.remove(use)
    if not chosen:
        return Reclaim(job_names=())
    return Reclaim(
        job_names=tuple(use.job_name for use in chosen),
        reason=f"spot capacity went down to {_hosts(max(0, capacity))} and jobs hold {held}: the newest jobs give "
        f"theirs back",
    )


def why_wait(num_hosts: int, running: Sequence[SpotUse], capacity: int) -> str:
    """Return a sentence for describe on why a spot job cannot start now; empty if the job can start.

    Args:
        num_hosts: number of hosts that the job needs.
        running: jobs that hold spot capacity; leaving jobs still hold theirs.
        capacity: number of spot hosts.
    """
    holders = [use for use in running if use.num_hosts > 0]
    num_free = max(0, capacity - sum(use.num_hosts for use in holders))
    if num_hosts <= num_free:
        return ""
    shown = [f"{use.job_name} holds {use.num_hosts}" for use in holders[:MAX_NAMES_IN_REASON]]
    rest = holders[MAX_NAMES_IN_REASON:]
    if rest:
        shown.append(f"{len(rest)} more jobs hold {sum(use.num_hosts for use in rest)}")
    verb = "is" if num_free == 1 else "are"
    words = f"Needs {_hosts(num_hosts)} of spot capacity; {num_free} of {max(0, capacity)} {verb} free"
    return f"{words}: {', '.join(shown)}." if shown else f"{words}."


def _line_points(text: str, source: str) -> list[tuple[float, int]]:
    points: list[tuple[float, int]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition(_COMMENT)[0].split()
        if not words:
            continue
        where = f"{source}, line {number}"
        if len(words) != 2:
            raise _error(f"{where}: expected SECONDS HOSTS, got {line.strip()[:80]!r}")
        start_s, count = _seconds(words[0], where), _count(words[1], where)
        if not points and start_s != 0:
            raise _error(f"{where}: the first line must give the hosts at second 0, got second {words[0]}")
        if points and start_s <= points[-1][0]:
            raise _error(f"{where}: expected a time later than second {points[-1][0]:g}, got {words[0]}")
        points.append((start_s, count))
    if not points:
        raise _error(f"{source}: expected at least one line of SECONDS HOSTS, got none")
    return points


def _trace_points(text: str, source: str) -> list[tuple[float, int]]:
    """Parse the format of public traces: one number of hosts every `gap_seconds`, from second 0 on.

    Source: README of github.com/skypilot-org/spot-traces, "Data Description".
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise _error(f"{source}, line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # too long a number, too deep nesting
        raise _error(f"{source}: not valid JSON: {str(error)[:200]}") from error
    metadata, data = document.get("metadata"), document.get("data")
    gap_s = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    if not _is_number(gap_s) or not 0 < gap_s <= MAX_SECONDS:
        raise _error(f"{source}: metadata.gap_seconds: expected seconds above 0, got {gap_s!r}")
    if not isinstance(data, list) or not data:
        raise _error(f"{source}: data: expected a list of at least one count of hosts, got {type(data).__name__}")
    return [(index * gap_s, _count(item, f"{source}: data[{index}]")) for index, item in enumerate(data)]


def _seconds(word: str, where: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_SECONDS:
        raise _error(f"{where}: expected seconds from 0 to {MAX_SECONDS:g}, got {word[:40]!r}")
    return value


def _count(item: Any, where: str) -> int:
    """Parse a number of hosts from a word or a JSON member; 4.0, which some traces contain, is 4."""
    try:
        value = float(item) if isinstance(item, str) or _is_number(item) else math.nan
    except (ValueError, OverflowError):
        value = math.nan
    if not 0 <= value <= MAX_HOSTS or value != int(value):
        raise _error(f"{where}: expected a whole number of hosts from 0 to {MAX_HOSTS}, got {str(item)[:40]!r}")
    return int(value)


def _is_number(item: Any) -> TypeGuard[int | float]:
    return isinstance(item, int | float) and not isinstance(item, bool)


def _age(use: SpotUse) -> tuple[float, str]:
    # Jobs that got hosts at the same time are ordered by name, so that every pass chooses the same jobs.
    return use.order, use.job_name


def _hosts(count: int) -> str:
    return f"{count} host{'' if count == 1 else 's'}"


def _error(message: str) -> ContractError:
    return ContractError(message, fault=Fault.USER)
