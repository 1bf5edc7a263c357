"""Test that determines how hosts' memory limits are enforced on this machine: by cgroups or by the agent.

Where: the local engine runs this as a program before the first job; the service, `clary up` and `clary doctor` report
the result. Run: `python -m clary.agent.host.limits.memory_support [--look]` prints one JSON object: `kept_by` and
`why`. With `--look` no process is moved into another cgroup, although limits for the first host of a service may
require such a move.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from clary.agent.host.limits.cgroups import HostCgroup, can_move_into_leaf
from clary.contract.launch_plan import Resources
from clary.contract.limits.memory_keepers import MemoryKeeper

_PROBE_BYTES = 64 * 1024 * 1024


def main(arguments: Sequence[str]) -> None:
    """Make a cgroup with a memory limit, remove it, and print how limits are enforced."""
    may_move = "--look" not in arguments
    resources = Resources(num_cpus=float(os.cpu_count() or 1), memory_bytes=_PROBE_BYTES)
    cgroup = HostCgroup.create(f"probe-{os.getpid()}", resources, may_move=may_move)
    keeper = keeper_of(
        is_limited=cgroup.limits_memory,
        version=cgroup.version_of("memory"),
        is_root=os.geteuid() == 0,
        could_move=not may_move and not cgroup.limits_memory and can_move_into_leaf(),
    )
    why = "" if keeper is not MemoryKeeper.WATCH else cgroup.why_memory_is_not_limited
    cgroup.remove()
    print(json.dumps({"kept_by": keeper.value, "why": why}))


def keeper_of(*, is_limited: bool, version: int | None, is_root: bool, could_move: bool) -> MemoryKeeper:
    """Return how memory limits are enforced. Pure.

    Args:
        is_limited: whether a cgroup accepted a limit.
        version: of the cgroups with the memory controller; None if there are none.
        is_root: whether this process is root; otherwise the cgroup was delegated to this user.
        could_move: whether a cgroup would accept a limit after this cgroup's processes were moved into a leaf.
    """
    if not is_limited:
        return MemoryKeeper.DELEGATED if could_move else MemoryKeeper.WATCH
    if version == 1:
        return MemoryKeeper.CGROUP_1
    return MemoryKeeper.CGROUP_2 if is_root else MemoryKeeper.DELEGATED


if __name__ == "__main__":
    main(sys.argv[1:])
