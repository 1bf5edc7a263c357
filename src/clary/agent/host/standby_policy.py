"""Check whether a standby host can run a program, and the plan of the next standby host. Pure.

Where: `standby` calls the check; the agent of a pool makes the plan at the end of each program.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from clary.agent.host.mounts.mount_table import is_within
from clary.agent.host.sandbox import Bind, ProcessSpec, Sandbox
from clary.agent.host.zygote_process import MAX_PROCESSES
from clary.agent.zygote.interpreter_start import RANK_SHIM, start_variables
from clary.contract.launch_plan import Isolation
from clary.contract.ml_tree import OPT_ML

PRELOAD = ("torch",)
MOST_AHEAD = 16  # each rank that waits holds some 2 MB of its own
# Not compared here: the cgroup keeps the standby host's name, and binds are compared one by one.
_NOT_COMPARED = frozenset({"binds", "cgroup_name"})


@dataclass(frozen=True, kw_only=True)
class StandbyPlan:
    """The interpreter of a standby host."""

    python: str
    environment: Mapping[str, str]  # only variables that an interpreter reads at its start
    preload: tuple[str, ...]  # modules to import if the environment has them
    num_ahead: int  # ranks to fork before the next program is known


def plan_standby(
    processes: Sequence[ProcessSpec], *, preload: tuple[str, ...] = PRELOAD, moved: tuple[str, str] | None = None
) -> StandbyPlan | None:
    """Return the plan for ranks like the last program's, or None if that had no rank that can be forked.

    Args:
        processes: of the last program; the first process that can be forked is the model.
        preload: modules to import in advance.
        moved: path of `/opt/ml` in the last program's view and in the next program's view; None if both see `/opt/ml`.
            With plain processes PYTHONPATH and HOME contain it.
    """
    ranks = [process for process in processes if len(process.argv) > 2 and process.argv[1] == RANK_SHIM]
    if not ranks:
        return None
    environment = start_variables(ranks[0].environment)
    if moved is not None:
        environment = {name: value.replace(*moved) for name, value in environment.items()}
    num_ahead = min(len(ranks), MOST_AHEAD)
    return StandbyPlan(python=ranks[0].argv[0], environment=environment, preload=preload, num_ahead=num_ahead)


def late_binds(standing_by: Sandbox, wanted: Sandbox) -> tuple[Bind, ...]:
    """Return the binds that the standby host still lacks."""
    return tuple(bind for bind in wanted.binds if bind not in standing_by.binds)


def why_not_run(
    standing_by: Sandbox, wanted: Sandbox, processes: Sequence[ProcessSpec], *, late_roots: Sequence[str]
) -> str:
    """Return "", or the reason why a standby host cannot serve as the wanted host.

    Args:
        standing_by: sandbox of the standby host.
        wanted: sandbox that the program needs.
        processes: of the program.
        late_roots: folders that may contain sources of late binds.
    """
    if not processes:
        return "a program needs at least one process"
    if len(processes) > MAX_PROCESSES:
        return f"{len(processes)} processes are more than the {MAX_PROCESSES} that a host that stands by takes"
    for field in fields(Sandbox):
        present, needed = getattr(standing_by, field.name), getattr(wanted, field.name)
        if field.name not in _NOT_COMPARED and present != needed:
            return f"{field.name} is {needed}, and the host stands by with {present}"
    surplus = [bind for bind in standing_by.binds if bind not in wanted.binds]
    if surplus:
        return f"the host shows {surplus[0].target} already, from {surplus[0].source}, and the program does not want it"
    for bind in late_binds(standing_by, wanted):
        reason = _why_not_bind(bind, standing_by, late_roots=late_roots)
        if reason:
            return reason
    return ""


def _why_not_bind(bind: Bind, standing_by: Sandbox, *, late_roots: Sequence[str]) -> str:
    what = f"bind {bind.source} at {bind.target}"
    if standing_by.isolation is Isolation.PROCESSES:
        return f"{what}: plain processes have no mounts"
    if not any(is_within(os.path.normpath(bind.source), os.path.normpath(root)) for root in late_roots):
        below = ", ".join(late_roots) or "no folder"
        return f"{what}: only what lies below {below} can be shown by a host that stands by"
    for present in standing_by.binds:
        if is_within(os.path.normpath(present.target), os.path.normpath(bind.target)):
            return f"{what}: it would cover {present.target}, which the host shows already"
    if is_within(str(OPT_ML), os.path.normpath(bind.target)):
        return f"{what}: it would cover {OPT_ML}"
    return ""
