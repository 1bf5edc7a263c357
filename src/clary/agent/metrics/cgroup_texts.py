"""Parsers for a cgroup's files, versions 1 and 2. Pure.

Where: `host_cgroup` reads the files.
Source: kernel Documentation/admin-guide/cgroup-v1/{cpuacct,memory}.rst, cgroup-v2.rst, scheduler/sched-bwc.rst.
"""

from __future__ import annotations

from dataclasses import dataclass

_NS_PER_S = 1e9
_US_PER_S = 1e6
_NO_LIMIT_BYTES = 1 << 60  # version 1 uses the largest multiple of a page for "no limit"


@dataclass(frozen=True)
class Throttling:
    """Counters of a cgroup with a limit on processor time."""

    num_periods: int
    num_throttled: int  # periods in which the cgroup used up its quota
    throttled_s: float  # summed over all processors


def parse_flat(text: bytes) -> dict[bytes, int]:
    """Return name -> number of the lines `name number` of a file; skip other lines."""
    values = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[1].lstrip(b"-").isdigit():
            values[words[0]] = int(words[1])
    return values


def cpu_seconds(*, version: int, cpu_stat: bytes | None, cpuacct_usage: bytes | None) -> float | None:
    """Return the used processor time; None if the files lack it.

    Args:
        version: of the cgroup, 1 or 2.
        cpu_stat: text of cpu.stat, which has the time in version 2; None if it was not read.
        cpuacct_usage: text of cpuacct.usage, which has the time in version 1; None if it was not read.
    """
    if version == 2:
        usage_us = parse_flat(cpu_stat or b"").get(b"usage_usec")
        return None if usage_us is None else usage_us / _US_PER_S
    if cpuacct_usage is None or not cpuacct_usage.strip().isdigit():
        return None
    return int(cpuacct_usage) / _NS_PER_S


def throttling(cpu_stat: bytes | None) -> Throttling | None:
    """Return the counters of throttled processor time; None without a limit (version 2 then has no counters)."""
    values = parse_flat(cpu_stat or b"")
    if b"nr_periods" not in values or b"nr_throttled" not in values:
        return None
    seconds = values.get(b"throttled_usec", 0) / _US_PER_S + values.get(b"throttled_time", 0) / _NS_PER_S
    return Throttling(values[b"nr_periods"], values[b"nr_throttled"], seconds)


def memory_in_use(usage: bytes | None, memory_stat: bytes | None) -> int | None:
    """Return the memory that cannot be freed at once: all memory except inactive file pages."""
    if usage is None or not usage.strip().isdigit():
        return None
    values = parse_flat(memory_stat or b"")
    # In version 1 a name without "total_" counts a cgroup's own pages, with "total_" those of its whole tree.
    idle_file = values.get(b"total_inactive_file", values.get(b"inactive_file", 0))
    return max(0, int(usage) - idle_file)


def memory_limit(text: bytes | None) -> int | None:
    """Return the limit in bytes of memory.max or memory.limit_in_bytes, or None without a limit."""
    word = (text or b"").strip()
    if not word.isdigit() or int(word) >= _NO_LIMIT_BYTES:
        return None
    return int(word)


def oom_kills(text: bytes | None) -> int | None:
    """Return the number of OOM kills in memory.events or memory.oom_control."""
    return parse_flat(text or b"").get(b"oom_kill")
