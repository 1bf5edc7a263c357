"""Faults that strike the hosts of a rehearsal on this machine.

Where: `server.actions.rehearsal_actions` decides whether faults may be injected into a job; this module injects them.
Nothing is recorded: the service detects the effects of an injected fault as it detects those of a real fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clary.base.errors import EngineError
from clary.base.processes import exec_deadline, has_variable, read_arguments
from clary.contract.launch_plan import Isolation, LaunchPlan
from clary.control.engines.local import attempt_record, disk_faults, killing, network_faults, rehearsal_records
from clary.control.engines.local.engine import JOBS_FOLDER, LocalEngine
from clary.control.engines.local.machine_facts import free_memory_bytes
from clary.control.engines.local.network.network_building import is_network_admin

_MIB = 1024 * 1024
_RANK_SHIM = "clary_rank.py"
_NO_DISK = (
    "only a service that runs as root, and may mount, gives hosts disks of their own; the machine's is not filled"
)


class LocalFaults:
    """Injects faults into hosts of one engine.

    Args:
        engine: the engine that runs the hosts.
        home_folder: home folder of the service.
    """

    def __init__(self, engine: LocalEngine, home_folder: Path) -> None:
        self._engine = engine
        self._home = home_folder

    def refusals(self) -> Mapping[str, str]:
        """Return kind of fault -> reason why it is not available here; available kinds are left out."""
        if self._engine.capacity().isolation is Isolation.NAMESPACES:
            if is_network_admin():
                return {}
            return {"disk-full": _NO_DISK}
        why = "hosts are plain processes here and have no network of their own; it takes root or user namespaces"
        return {"partition": why, "slow": why, "disk-full": _NO_DISK}

    def largest_disk_bytes(self) -> int:
        """Return the largest total size of a rehearsal's disks, which lie in this machine's memory."""
        return free_memory_bytes() // 2

    def why_no_disks(self, size_bytes: int) -> str:
        """Return the reason why disks of this total size are not available here; empty if they are."""
        if refusal := self.refusals().get("disk-full", ""):
            return refusal
        largest_bytes = self.largest_disk_bytes()
        if size_bytes <= largest_bytes:
            return ""
        return (
            f"together they would take {size_bytes // _MIB} MiB, more than half of the machine's free memory, in which "
            f"they lie: at most {largest_bytes // _MIB} MiB; ask for smaller ones"
        )

    async def kill_host(self, plan: LaunchPlan, host: str) -> None:
        """Kill all processes of a host at once; raises EngineError."""
        await self._engine.end_host(plan, host)

    async def kill_rank(self, plan: LaunchPlan, rank: int) -> None:
        """Kill the processes of one rank; raises EngineError if no process is found."""
        await asyncio.to_thread(_kill_rank, Path(plan.pool_folder), rank)

    async def connect(self, plan: LaunchPlan, hosts: Sequence[str], *, up: bool) -> None:
        """Cut hosts off their job's network, or connect them again; raises EngineError.

        Args: as `Faults.connect`.
        """
        for host in hosts:
            await network_faults.partition(plan.pool_folder, host, up=up)

    async def connect_two(self, plan: LaunchPlan, hosts: tuple[str, str], *, up: bool) -> None:
        """Cut two hosts off from each other, or connect them again; raises EngineError.

        Args: as `Faults.connect_two`.
        """
        await network_faults.part(plan, hosts, up=up)

    async def fill_disk(self, plan: LaunchPlan, host: str, *, is_full: bool) -> None:
        """Leave no free space on a host's private disk, or restore the space; raises EngineError.

        Args: as `Faults.fill_disk`.
        """
        await (disk_faults.fill if is_full else disk_faults.free)(plan, host)

    async def set_rate(self, plan: LaunchPlan, host: str, rate_mbit_s: float | None) -> None:
        """Limit the link of a host, as `network_faults.limit`; None restores the plan's rate; raises EngineError.

        Args: as `Faults.set_rate`.
        """
        await network_faults.limit(plan, host, rate_mbit_s=rate_mbit_s)

    async def records(self, job_name: str, attempt: int) -> list[dict[str, Any]]:
        """Return the records of the programs of an ended attempt."""
        folder = self._home / JOBS_FOLDER / job_name / str(attempt)
        return await asyncio.to_thread(rehearsal_records.read, folder)


def _kill_rank(folder: Path, rank: int) -> None:
    below = [
        process for agent in attempt_record.living_agents(folder).values() for process in killing.descendants(agent)
    ]
    deadline = exec_deadline()
    ours = [process for process in below if has_variable(process.pid, "RANK", str(rank), deadline)]
    if not ours and rank == 0:  # a single process has no rank
        ours = [
            process for process in below if any(_RANK_SHIM in part for part in read_arguments(process.pid, deadline))
        ]
    try:
        for process in ours:
            killing.kill(process)
    except (OSError, TimeoutError) as error:
        raise EngineError(f"rank {rank} of {folder} could not be killed: {error}") from error
    if not ours:
        raise EngineError(f"no process of rank {rank} runs")
