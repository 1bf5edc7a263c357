"""A sentence on the mechanism that enforces the memory limits of hosts on this machine.

Where: the service calls it once when it starts, so that `clary up` and `clary doctor` can show the sentence before the
first job; `clary doctor` calls it itself while no service runs. The probe runs the agent's own check
(`clary.agent.host.limits.memory_support`), which tries to set a limit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from clary.base.limited_runs import RunTooLong, run_limited
from clary.contract.limits.memory_keepers import MemoryKeeper

PROBE_COMMAND = (sys.executable, "-P", "-S", "-m", "clary.agent.host.limits.memory_support")
PROBE_TIMEOUT_S = 20.0

_KEPT = {
    MemoryKeeper.CGROUP_1: "kept by the kernel (cgroups of version 1)",
    MemoryKeeper.CGROUP_2: "kept by the kernel (cgroups of version 2)",
    MemoryKeeper.DELEGATED: "kept by the kernel (a cgroup of version 2 that belongs to this user)",
    MemoryKeeper.WATCH: (
        "kept by watching: the agent adds up what the processes of a host use and ends the host soon after it passes "
        "its limit"
    ),
}
_ADVICE = (
    "For the kernel to keep them, start the service as root, or on a machine with systemd by: "
    "systemd-run --user --scope -p Delegate=yes clary up"
)


def memory_limits(environ: Mapping[str, str], *, looks_only: bool = False) -> str:
    """Return a sentence on how memory limits are enforced; if not by the kernel, with the reason and the remedy.

    Args:
        environ: environment variables of agents, passed to the probe.
        looks_only: if true, the probe moves no process to another cgroup.
    """
    try:
        command = [*PROBE_COMMAND, *(["--look"] if looks_only else [])]
        done = run_limited(command, limit_s=PROBE_TIMEOUT_S, variables=environ)
    except (OSError, RunTooLong) as error:
        return f"not known: the probe did not run: {error}"
    try:
        answer = json.loads(done.output)
        return in_words(MemoryKeeper(answer["kept_by"]), answer["why"])
    except (ValueError, KeyError, TypeError):
        return f"not known: the probe ended with exit code {done.code}: {done.errors.strip()[-500:]}"


def in_words(keeper: MemoryKeeper, why: str) -> str:
    """Return the sentence for a mechanism; `why` is the reason why no cgroup limits memory. Pure."""
    if keeper is not MemoryKeeper.WATCH:
        return _KEPT[keeper]
    return f"{_KEPT[keeper]}, because no cgroup can limit it ({why or 'no reason given'}). {_ADVICE}"
