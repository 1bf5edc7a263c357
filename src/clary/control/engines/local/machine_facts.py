"""Measure this machine: CPUs, memory and GPUs that the service, and so its hosts, may use."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

from clary.control.scheduling.machine import Machine

KIB = 1024
_NO_LIMIT = 1 << 60  # cgroup version 1 writes "unlimited" as a huge number


def measure_machine(root: Path = Path("/")) -> Machine:
    """Return the part of the machine that this process may use: affinity and cgroup limits count.

    Args:
        root: folder that contains /proc, /sys and /dev; tests pass a temporary folder.
    """
    return Machine(num_cpus=_num_cpus(root), memory_bytes=_memory_bytes(root), num_gpus=_num_gpus(root))


def free_memory_bytes(root: Path = Path("/")) -> int:
    """Return the bytes of memory that programs could still allocate, at most the limit of this process."""
    match = re.search(r"^MemAvailable:\s+([0-9]+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    return min(int(match.group(1)) * KIB if match else 0, _memory_bytes(root))


def _num_cpus(root: Path) -> int:
    num_cpus = len(os.sched_getaffinity(0))
    quota = _read(root / "sys/fs/cgroup/cpu.max").split()
    if not quota:
        cpu = root / "sys/fs/cgroup/cpu"
        quota = [_read(cpu / "cpu.cfs_quota_us").strip(), _read(cpu / "cpu.cfs_period_us").strip()]
    if len(quota) == 2 and all(word.isdigit() for word in quota) and int(quota[1]):
        num_cpus = min(num_cpus, math.ceil(int(quota[0]) / int(quota[1])))
    return max(num_cpus, 1)


def _memory_bytes(root: Path) -> int:
    match = re.search(r"^MemTotal:\s+([0-9]+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    limits = [int(match.group(1)) * KIB] if match else []
    for path in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(root / path).strip()
        if text.isdigit() and int(text) < _NO_LIMIT:
            limits.append(int(text))
    return min(limits)


def _num_gpus(root: Path) -> int:
    """Count NVIDIA device nodes: present in containers too, and no driver library has to be loaded."""
    return sum(re.fullmatch(r"nvidia[0-9]+", path.name) is not None for path in (root / "dev").glob("nvidia[0-9]*"))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
