"""Limits on the processes and threads of hosts, so that no host takes the machine's last process id.

Where: `cgroups` writes these limits. Pure. A kernel gives out 32,768 process ids where it has few processors, threads
counted, and a cgroup may have fewer: a limit of a host that is no smaller ends nothing.
"""

from __future__ import annotations

from typing import NamedTuple

MOST_OF_ONE = 32_768  # however many the machine has; a fork bomb ends there
LEAST_OF_ONE = 256  # a program with a few threads a processor runs


class ProcessLimits(NamedTuple):
    """Most processes of one host, and of all hosts together."""

    of_one: int
    of_all: int


def process_limits(most: int) -> ProcessLimits:
    """Return the limits where `most` processes can be had: a quarter of them for a host, another for the machine."""
    of_one = max(LEAST_OF_ONE, min(MOST_OF_ONE, most // 4))
    return ProcessLimits(of_one=of_one, of_all=max(of_one, most * 3 // 4))
