"""The order to a host's first process: a sandbox and its processes as plain data.

Where: `first_process` writes it, `init` reads it. Pure.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from clary.agent.host.limits.cgroups import HostCgroup
from clary.agent.host.sandbox import ProcessSpec, Sandbox
from clary.contract.launch_plan import Isolation


def host_order(
    processes: Sequence[ProcessSpec],
    sandbox: Sandbox,
    *,
    scratch_folder: str,
    cgroup: HostCgroup,
    output_fds: Sequence[int],
    standby: Mapping[str, Any] | None = None,
    late_roots: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the order as JSON-serialisable data.

    Args:
        processes: the processes to start.
        sandbox: the host.
        scratch_folder: new, empty folder for the host's temporary files.
        cgroup: the host's cgroup.
        output_fds: write end of each process's output pipe, as inherited by the first process.
        standby: interpreter to prepare before the processes are known.
        late_roots: folders that may contain sources of the processes' late binds.
    """
    return {
        "isolation": sandbox.isolation.value,
        "hostname": sandbox.hostname,
        "scratch_folder": os.path.realpath(scratch_folder),
        "ml_folder": sandbox.ml_folder,
        "network_namespace_path": sandbox.network_namespace_path,
        "user_namespace_path": sandbox.user_namespace_path,
        "mapped_users": None if sandbox.mapped_users is None else vars(sandbox.mapped_users),
        "hosts_file": dict(sandbox.hosts_file),
        "memory_bytes": sandbox.resources.memory_bytes,
        "most_processes": cgroup.most_processes,
        "with_gpus": bool(sandbox.resources.gpu_indices),
        "cgroup_files": list(cgroup.entry_files),
        "cgroup_views": dict(cgroup.visible_folders),
        "cgroup_folders": list(cgroup.folders),
        "cgroup_home_files": list(cgroup.home_files),
        "binds": [vars(bind) for bind in sandbox.binds],
        "visible_folders": list(sandbox.visible_folders),
        "shows_whole_machine": sandbox.shows_whole_machine,
        "hidden_folders": list(sandbox.hidden_folders),
        "not_isolated": [*_shared_by_plan(sandbox), *cgroup.not_enforced],
        "late_roots": [os.path.realpath(folder) for folder in late_roots],
        "standby": None if standby is None else dict(standby),
        "processes": process_orders(processes, output_fds),
    }


def process_orders(
    processes: Sequence[ProcessSpec], output_fds: Sequence[int], *, forks: Sequence[bool] | None = None
) -> list[dict[str, Any]]:
    """Return one order for each process that the host's first process must start.

    Args:
        processes: the processes to start.
        output_fds: write end of each process's output pipe.
        forks: for each process, whether it can be forked from the standby interpreter; None: no process can.
    """
    marks = [False] * len(processes) if forks is None else forks
    return [
        {
            "argv": list(process.argv),
            "environment": dict(process.environment),
            "working_folder": process.working_folder,
            "output_fd": output_fd,
            "forks": is_forked,
        }
        for process, output_fd, is_forked in zip(processes, output_fds, marks, strict=True)
    ]


def _shared_by_plan(sandbox: Sandbox) -> list[str]:
    """Return sentences about everything that the sandbox shares with the machine."""
    if sandbox.isolation is Isolation.PROCESSES:
        return [
            "Nothing is kept apart: the program runs as plain processes of the agent's user and shares files, network, "
            "process list, hostname and shared memory with this machine. It can read the keys of the service and of "
            "other jobs."
        ]
    sentences = []
    if sandbox.network_namespace_path is None:
        sentences.append("Network: the program shares this machine's network and its ports.")
    if sandbox.shows_whole_machine:
        sentences.append(
            "Files: the program sees every folder of this machine, as setting machine_view says, and reads there what "
            "its user may."
        )
    return sentences
