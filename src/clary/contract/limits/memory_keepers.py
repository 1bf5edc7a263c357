"""Mechanisms that enforce hosts' memory limits: the agent tests which mechanism works, and the service shows it."""

from __future__ import annotations

from clary.base.string_enum import StrEnum


class MemoryKeeper(StrEnum):
    """Mechanism that ends a host, or one of its processes, above its memory limit."""

    CGROUP_1 = "cgroup-1"  # the kernel, by a cgroup of version 1
    CGROUP_2 = "cgroup-2"  # the kernel, by a cgroup of version 2 that root may make
    DELEGATED = "delegated"  # the kernel, by a cgroup of version 2 below a cgroup of the user
    WATCH = "watch"  # the agent, which adds up the memory of the host's processes
