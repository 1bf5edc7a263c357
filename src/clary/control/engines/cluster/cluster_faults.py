"""Faults for hosts of a rehearsal on other machines: a host can be killed, other faults are refused.

Where: `server.actions.rehearsal_actions` uses it instead of `engines.local.rehearsal_faults`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from clary.base.errors import EngineError, Fault
from clary.contract.launch_plan import LaunchPlan
from clary.control.engines.cluster.cluster_engine import ClusterEngine

_WHY = "hosts are other machines here, whose processes, links and disks this service does not touch"


class ClusterFaults:
    """Injects faults into hosts of a cluster."""

    def __init__(self, engine: ClusterEngine) -> None:
        self._engine = engine

    def refusals(self) -> Mapping[str, str]:
        """Return kind of fault -> reason why it is not available on a cluster."""
        return dict.fromkeys(("kill-rank", "partition", "slow", "disk-full"), _WHY)

    def largest_disk_bytes(self) -> int:
        """Return 0: hosts of a cluster get no disks of their own."""
        return 0

    def why_no_disks(self, size_bytes: int) -> str:
        """Return the reason why disks of this total size are not available on a cluster."""
        del size_bytes
        return _WHY

    async def kill_host(self, plan: LaunchPlan, host: str) -> None:
        """Kill all processes of a host at once. Raises: EngineError."""
        await self._engine.end_host(plan, host)

    async def kill_rank(self, plan: LaunchPlan, rank: int) -> None:
        """Refuse the fault. Raises: EngineError."""
        _refuse(plan, f"rank {rank}")

    async def connect(self, plan: LaunchPlan, hosts: Sequence[str], *, up: bool) -> None:
        """Refuse the fault. Raises: EngineError.

        Args: as `Faults.connect`.
        """
        _refuse(plan, f"links of {', '.join(hosts)}, up: {up}")

    async def connect_two(self, plan: LaunchPlan, hosts: tuple[str, str], *, up: bool) -> None:
        """Refuse the fault. Raises: EngineError.

        Args: as `Faults.connect_two`.
        """
        _refuse(plan, f"the link of {' and '.join(hosts)}, up: {up}")

    async def fill_disk(self, plan: LaunchPlan, host: str, *, is_full: bool) -> None:
        """Refuse the fault. Raises: EngineError.

        Args: as `Faults.fill_disk`.
        """
        _refuse(plan, f"the disk of {host}, full: {is_full}")

    async def set_rate(self, plan: LaunchPlan, host: str, rate_mbit_s: float | None) -> None:
        """Refuse the fault. Raises: EngineError.

        Args: as `Faults.set_rate`.
        """
        _refuse(plan, f"the link of {host}, {rate_mbit_s} Mbit/s")

    async def records(self, job_name: str, attempt: int) -> list[dict[str, Any]]:
        """Return an empty result: the records of programs stay on their nodes."""
        del job_name, attempt
        return []


def _refuse(plan: LaunchPlan, what: str) -> NoReturn:
    raise EngineError(f"job {plan.job_name}: {what}: {_WHY}", fault=Fault.USER)
