"""`host/...` and `rank-N/...`: resources used by a host's program, as a whole and by rank.

Where: `host_metrics` creates one after the program's start. Counters become rates here. A rank's memory is the sum of
the resident memory of its processes: shared pages count once per process, because a separate count (PSS) costs a walk
through the page tables of every process. A host's memory is read from its cgroup, which counts each page once; for a
host without a cgroup it is the sum over its processes, and the limit is the machine's memory.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping

from clary.agent.metrics.cgroup_texts import Throttling
from clary.agent.metrics.growth import Count, growth
from clary.agent.metrics.host_cgroup import CgroupReading, find_host_cgroup
from clary.agent.metrics.kept_files import read_list
from clary.agent.metrics.proc_texts import parse_network
from clary.agent.metrics.process_table import ProcessReading, ProcessTable
from clary.agent.metrics.sources import PERCENT, Slowly, Values

MAX_RANKS = 64  # limit of ranks with their own series: fourteen series each, and a batch has room for 1,024

_LOOK_LOAD = 0.01  # share of one processor for the search for processes, which runs at least once per second
_MAX_LOOK_INTERVAL_S = 1.0
_MACHINE_MEMORY_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class ProgramSource:
    """Measures one program.

    Args:
        first_pid: pid of the host's first process on this machine.
        ranks: pid -> global rank, of processes that the agent has started as ranks; ranks started by the program itself
            are recognised by their environment.
        has_own_network: whether the host has its own interfaces; otherwise the network is not measured.
    """

    def __init__(self, first_pid: int, *, ranks: Mapping[int, int], has_own_network: bool) -> None:
        self._first_pid = first_pid
        self._has_own_network = has_own_network
        self._cgroup = find_host_cgroup(first_pid)
        has_list = self._cgroup is not None and self._cgroup.lists_processes
        self._table = ProcessTable(
            first_pid, ranks=ranks, members=self._cgroup.pids if self._cgroup is not None and has_list else None
        )
        self._next_look_s = 0.0
        self._closely = Slowly()
        self._at_s: float | None = None
        self._counts: dict[int, Count] = {}
        self._cgroup_reading: CgroupReading | None = None
        self._network: tuple[int, int] | None = None

    def read(self, now_s: float) -> Values:
        """Return the values at a monotonic time."""
        if now_s >= self._next_look_s:
            used_s = time.thread_time()
            self._table.look()
            # A cgroup's list is one small file; the machine's list may be long.
            used_s = time.thread_time() - used_s
            self._next_look_s = now_s + min(_MAX_LOOK_INTERVAL_S, used_s / _LOOK_LOAD)
        span_s = now_s - self._at_s if self._at_s is not None else 0.0
        readings = self._table.read()
        values = self._of_processes(readings, span_s)
        if self._cgroup is not None:
            values |= self._of_cgroup(self._cgroup.read(looks_closely=self._closely.is_due(now_s)), span_s)
        if "host/memory_bytes" in values:
            limit = min(values.get("host/memory_limit_bytes", _MACHINE_MEMORY_BYTES), _MACHINE_MEMORY_BYTES)
            values["host/memory_limit_bytes"] = float(limit)
            values["host/memory_percent"] = round(PERCENT * values["host/memory_bytes"] / limit, 2)
        if self._has_own_network:
            values |= self._of_network(span_s)
        self._at_s = now_s
        return values

    def close(self) -> None:
        """Close every file."""
        self._table.close()
        if self._cgroup is not None:
            self._cgroup.close()

    def _of_processes(self, readings: Mapping[int, ProcessReading], span_s: float) -> Values:
        counts = {pid: reading.used for pid, reading in readings.items()}
        grown = growth(self._counts, counts) if span_s > 0 else {}
        self._counts = counts
        sums: dict[int | None, _Sums] = {None: _Sums()}  # None: the whole host
        for pid, reading in readings.items():
            sums[None].add(reading, grown.get(pid))
            rank = reading.rank
            if rank is not None and (rank in sums or len(sums) <= MAX_RANKS):
                sums.setdefault(rank, _Sums()).add(reading, grown.get(pid))
        values = sums.pop(None).values("host", span_s)
        for name in ("read_bytes_s", "write_bytes_s"):
            if f"host/{name}" in values:
                values[f"host/disk_{name}"] = values.pop(f"host/{name}")
        for rank in sorted(rank for rank in sums if rank is not None):
            values |= sums[rank].values(f"rank-{rank}", span_s)
        return values

    def _of_cgroup(self, now: CgroupReading, span_s: float) -> Values:
        values: Values = {}
        then, self._cgroup_reading = self._cgroup_reading, now
        if now.memory_bytes is not None:
            values["host/memory_bytes"] = float(now.memory_bytes)
        if now.memory_limit_bytes is not None:
            values["host/memory_limit_bytes"] = float(now.memory_limit_bytes)
        if now.oom_kills is not None:
            values["host/oom_kills"] = float(now.oom_kills)
        if then is None or span_s <= 0:
            return values
        if now.cpu_s is not None and then.cpu_s is not None:
            values["host/cpu_percent"] = round(PERCENT * max(0.0, now.cpu_s - then.cpu_s) / span_s, 1)
        if now.throttling is not None and then.throttling is not None:
            values |= throttled_values(now.throttling, then.throttling, span_s)
        return values

    def _of_network(self, span_s: float) -> Values:
        # Not kept open: an open file would keep the network namespace alive after its host.
        text = read_list(f"/proc/{self._first_pid}/net/dev")
        then, self._network = self._network, None
        if text is None:
            return {}
        with contextlib.suppress(ValueError, IndexError):
            self._network = parse_network(text)
        if self._network is None or then is None or span_s <= 0:
            return {}
        received, sent = (max(0, now - before) / span_s for now, before in zip(self._network, then, strict=True))
        return {"host/network_received_bytes_s": round(received, 1), "host/network_sent_bytes_s": round(sent, 1)}


def throttled_values(now: Throttling, then: Throttling, span_s: float) -> Values:
    """Return the throttled periods in percent, and the throttled time in percent of one processor's time. Pure.

    Args:
        now: current counters of the cgroup.
        then: earlier counters of the cgroup.
        span_s: seconds between both, more than 0.
    """
    num_periods = now.num_periods - then.num_periods
    refused_s = max(0.0, now.throttled_s - then.throttled_s)
    values = {"host/cpu_throttled_time_percent": round(PERCENT * refused_s / span_s, 1)}
    if num_periods > 0:  # periods are counted only while a process wants to run
        share = max(0, now.num_throttled - then.num_throttled) / num_periods
        values["host/cpu_throttled_percent"] = round(PERCENT * min(1.0, share), 1)
    else:
        values["host/cpu_throttled_percent"] = 0.0
    return values


class _Sums:
    """Sums of the resources used by the processes of one scope."""

    def __init__(self) -> None:
        self.num_processes = 0
        self.num_threads = 0
        self.memory_bytes = 0
        self.grown = [0.0, 0.0, 0.0]

    def add(self, reading: ProcessReading, grown: tuple[float, ...] | None) -> None:
        self.num_processes += reading.num_threads > 0
        self.num_threads += reading.num_threads
        self.memory_bytes += reading.memory_bytes
        if grown is not None:
            self.grown[0] += grown[0]
            self.grown[1] += grown[1]
            self.grown[2] += grown[2]

    def values(self, scope: str, span_s: float) -> Values:
        values: Values = {
            f"{scope}/memory_bytes": float(self.memory_bytes),
            f"{scope}/num_processes": float(self.num_processes),
            f"{scope}/num_threads": float(self.num_threads),
        }
        if span_s > 0:
            values[f"{scope}/cpu_percent"] = round(PERCENT * self.grown[0] / span_s, 1)
            values[f"{scope}/read_bytes_s"] = round(self.grown[1] / span_s, 1)
            values[f"{scope}/write_bytes_s"] = round(self.grown[2] / span_s, 1)
        return values
