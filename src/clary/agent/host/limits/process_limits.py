"""Limits on the processes and threads of hosts, so that no host uses up the machine's process ids.

Where: `cgroups` writes these limits. Pure. A kernel with few processors has 32,768 process ids, threads included, and a
cgroup may have fewer: a host's limit has to be smaller to have an effect.
"""

from __future__ import annotations

from typing import NamedTuple

MOST_OF_ONE = 32_768  # upper limit even on large machines; stops a fork bomb
LEAST_OF_ONE = 256  # lower limit: enough for a program with a few threads per processor


class ProcessLimits(NamedTuple):
    """Maximum number of processes of one host, and of all hosts together."""

    of_one: int
    of_all: int


def process_limits(most: int) -> ProcessLimits:
    """Return the limits for `most` available processes: a quarter per host, three quarters for all hosts."""
    of_one = max(LEAST_OF_ONE, min(MOST_OF_ONE, most // 4))
    return ProcessLimits(of_one=of_one, of_all=max(of_one, most * 3 // 4))
