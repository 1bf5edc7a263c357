"""Who keeps the memory limits of hosts: the word between the agent that tries it out and the service that says it."""

from __future__ import annotations

from clary.base.string_enum import StrEnum


class MemoryKeeper(StrEnum):
    """Who ends a host, or one of its processes, when it uses more memory than it may."""

    CGROUP_1 = "cgroup-1"  # the kernel, by a cgroup of version 1
    CGROUP_2 = "cgroup-2"  # the kernel, by a cgroup of version 2 that root may make
    DELEGATED = "delegated"  # the kernel, by a cgroup of version 2 below one that belongs to the user
    WATCH = "watch"  # the agent, which adds up what the host's processes use
