"""The counters of the cgroup of a host's processes, found from outside of the host.

Where: `program_source` looks for it when the program starts. A host without its own cgroup shares the agent's cgroup,
which is not read because its counters include other processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from clary.agent.host.limits.cgroups import CgroupPlace, CgroupTree, find_place
from clary.agent.metrics import cgroup_texts
from clary.agent.metrics.cgroup_texts import Throttling
from clary.agent.metrics.kept_files import KeptFile, OpenFiles, read_list

_CONTROLLERS = ("cpu", "cpuacct", "memory", "pids")
_MAX_FILES = 16
# Names of the files in version 1 and 2.
_USAGE = {1: "memory.usage_in_bytes", 2: "memory.current"}
_LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}
_OOM = {1: "memory.oom_control", 2: "memory.events"}


@dataclass(frozen=True, kw_only=True)
class CgroupReading:
    """The kernel's counters for a host; None if the kernel does not count."""

    cpu_s: float | None
    throttling: Throttling | None
    memory_bytes: int | None
    memory_limit_bytes: int | None
    oom_kills: int | None


class HostCgroupCounters:
    """Reads the counters of one host.

    Args:
        places: controller -> the host's cgroup in the controller's hierarchy.
    """

    def __init__(self, places: dict[str, CgroupPlace]) -> None:
        budget = OpenFiles(_MAX_FILES)

        def file(controller: str, names: dict[int, str]) -> KeptFile | None:
            place = places.get(controller)
            if place is None or place.version not in names:
                return None
            return KeptFile(os.path.join(place.own, names[place.version]), budget)

        self._cpu_version = places["cpu"].version if "cpu" in places else 1
        self._cpu_stat = file("cpu", {1: "cpu.stat", 2: "cpu.stat"})
        self._cpuacct = file("cpuacct", {1: "cpuacct.usage"})
        self._usage = file("memory", _USAGE)
        self._limit = file("memory", _LIMIT)
        self._oom = file("memory", _OOM)
        self._memory_stat = file("memory", {1: "memory.stat", 2: "memory.stat"})
        # Every host is in the hierarchies of these controllers, and each of them lists all processes of the host.
        listing = next((places[name] for name in ("pids", "memory", "cpu") if name in places), None)
        self._procs = None if listing is None else os.path.join(listing.own, "cgroup.procs")
        self._stat_text: bytes | None = None

    @property
    def lists_processes(self) -> bool:
        """Whether `pids` can list processes."""
        return self._procs is not None

    def pids(self) -> Iterable[int] | None:
        """Return the pids in the cgroup; None if it cannot be read."""
        text = read_list(self._procs) if self._procs is not None else None
        return None if text is None else [int(word) for word in text.split()]

    def read(self, *, looks_closely: bool) -> CgroupReading:
        """Return the counters; the amount of inactive file pages is read again only if `looks_closely`."""
        if looks_closely or self._stat_text is None:
            # This file is expensive: the kernel sums the counts of all processors for it.
            self._stat_text = _read(self._memory_stat)
        cpu_stat = _read(self._cpu_stat)
        return CgroupReading(
            cpu_s=cgroup_texts.cpu_seconds(
                version=self._cpu_version, cpu_stat=cpu_stat, cpuacct_usage=_read(self._cpuacct)
            ),
            throttling=cgroup_texts.throttling(cpu_stat),
            memory_bytes=cgroup_texts.memory_in_use(_read(self._usage), self._stat_text),
            memory_limit_bytes=cgroup_texts.memory_limit(_read(self._limit)),
            oom_kills=cgroup_texts.oom_kills(_read(self._oom)),
        )

    def close(self) -> None:
        """Close every file."""
        for file in (self._cpu_stat, self._cpuacct, self._usage, self._limit, self._oom, self._memory_stat):
            if file is not None:
                file.close()


def find_host_cgroup(first_pid: int, tree: CgroupTree | None = None) -> HostCgroupCounters | None:
    """Return the cgroup of a host's first process, or None if the host has no cgroup of its own."""
    tree = tree or CgroupTree()
    try:
        mountinfo, own = tree.mountinfo(), tree.membership()
        membership = tree.read(f"/proc/{first_pid}/cgroup")
    except (OSError, ValueError):
        return None
    places = {}
    for controller in _CONTROLLERS:
        try:
            place = find_place(controller, mountinfo=mountinfo, membership=membership)
            agents_own = find_place(controller, mountinfo=mountinfo, membership=own)
        except (OSError, ValueError):
            continue
        if place.own != agents_own.own:
            places[controller] = place
    return HostCgroupCounters(places) if places else None


def _read(file: KeptFile | None) -> bytes | None:
    return None if file is None else file.read()
