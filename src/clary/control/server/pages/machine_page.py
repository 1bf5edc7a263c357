"""Facts of the machine that hosts share: its resources, the free part, and the part that jobs hold.

Where: `hosts_page` contains them, `capacity_page` some of them. Each request reads the current values, using /proc.

    {"num_cpus", "cpu_free_percent", "memory_bytes", "memory_free_bytes", "num_gpus", "gpus_held",
     "disk_bytes", "disk_free_bytes", "disk_place",
     "max_hosts", "hosts_held", "promised_bytes", "promised_held_bytes", "num_waiting"}

`cpu_free_percent` covers the time since the last request for the page; null at first. `promised_bytes` is the memory
that all jobs together may be given; settings make it smaller or larger than the machine's memory.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from clary.control.engines.local.machine_facts import free_memory_bytes
from clary.control.reconcile.admission import Admission
from clary.control.reconcile.hub import JobHub
from clary.control.scheduling.machine import Machine

_FULL = 100.0


class MachinePage:
    """Measures this machine.

    Args:
        machine: resources measured by the engine.
        admission: knows the resources that jobs hold, and the capacity.
        hub: knows the waiting jobs.
        place: folder on the disk that jobs use.
        root: folder that contains /proc; tests pass another folder.
    """

    def __init__(
        self, machine: Machine, admission: Admission, hub: JobHub, place: Path, *, root: Path = Path("/")
    ) -> None:
        self._machine = machine
        self._admission = admission
        self._hub = hub
        self._place = place
        self._root = root
        self._last: tuple[int, int] | None = None

    def facts(self) -> dict[str, Any]:
        """Return the machine's facts for the page."""
        holdings, capacity = self._admission.holdings(), self._admission.capacity
        disk = shutil.disk_usage(self._place)
        return {
            "num_cpus": self._machine.num_cpus,
            "cpu_free_percent": self._cpu_free_percent(),
            "memory_bytes": self._machine.memory_bytes,
            "memory_free_bytes": free_memory_bytes(self._root),
            "num_gpus": self._machine.num_gpus,
            "gpus_held": len({index for holding in holdings for index in holding.gpu_indices}),
            "disk_bytes": disk.total,
            "disk_free_bytes": disk.free,
            "disk_place": str(self._place),
            "max_hosts": capacity.max_hosts,
            "hosts_held": round(sum(holding.hosts_used for holding in holdings), 2),
            "promised_bytes": capacity.memory_bytes,
            "promised_held_bytes": sum(holding.memory_bytes for holding in holdings),
            "num_waiting": len(self._hub.waiting_jobs()),
        }

    def _cpu_free_percent(self) -> float | None:
        """Return the percentage of processor time that was idle since the last call."""
        now = _idle_and_all(self._root)
        before, self._last = self._last, now or self._last
        if now is None or before is None or now[1] <= before[1]:
            return None
        return max(0.0, min(_FULL, _FULL * (now[0] - before[0]) / (now[1] - before[1])))


def _idle_and_all(root: Path) -> tuple[int, int] | None:
    """Return the idle ticks and all ticks of all processors together; None if the kernel does not report them.

    Source: proc(5), /proc/stat: user nice system idle iowait irq softirq steal.
    """
    try:
        words = (root / "proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
        ticks = [int(word) for word in words[1:9]]
        return ticks[3] + ticks[4], sum(ticks)
    except (OSError, ValueError, IndexError):
        return None
