"""An engine without hosts: its agents are entries of a table that a test marks as ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from clary.contract.launch_plan import Isolation, LaunchPlan, NetworkPlan
from clary.control.engines.interface import Capacity, CapacityEnds, CutOff, HeldAttempt, HostState, Released
from clary.control.scheduling.machine import Machine

GIB = 1024**3


class FakeEngine:
    """Provides hosts that do nothing.

    A test puts exceptions into `launch_errors`, `start_errors` and `release_errors`; each is raised once, in order.

    Args:
        machine: its capacity is divided among hosts.
    """

    def __init__(self, machine: Machine | None = None) -> None:
        self._machine = machine or Machine(num_cpus=2, memory_bytes=8192 * GIB)  # no job ever waits for memory
        self.launch_errors: list[Exception] = []
        self.start_errors: list[Exception] = []
        self.release_errors: list[Exception] = []
        self.launched: list[str] = []  # job/attempt of every call, in order
        self.started: list[str] = []
        self.released: list[str] = []
        self.released_pools: list[str] = []
        self.forgotten: list[str] = []
        self.fenced: list[str] = []  # job/attempt/host of every call, in order
        self.held: list[HeldAttempt] = []
        self.put_aside: list[str] = []
        self.kept_folders: list[str] = []  # names of ended jobs that still have folders
        self.cut_off_hosts: dict[str, str] = {}  # host name -> reason
        self.ends: dict[str, CapacityEnds] = {}  # host name -> why the engine takes it back
        self.links_well_at: dict[str, datetime] = {}  # host name -> when its link last worked, if known
        self.last_signs: dict[str, datetime] = {}  # host name -> last sign of life of a dead host, if known
        self._alive: dict[str, dict[str, bool]] = {}  # pool/1 -> host name -> whether its agent lives
        self._pools: dict[str, str] = {}  # attempt -> pool/1 of its agents

    def capacity(self) -> Capacity:
        """Return the machine that is divided among hosts; hosts are plain processes."""
        return Capacity(machine=self._machine, isolation=Isolation.PROCESSES)

    async def launch(self, plan: LaunchPlan) -> LaunchPlan:
        """Give every host an address."""
        self.launched.append(_key(plan.job_name, plan.attempt))
        _raise_next(self.launch_errors)
        hosts = tuple(replace(host, address=f"10.0.0.{host.index + 1}") for host in plan.hosts)
        return replace(plan, hosts=hosts, network=NetworkPlan(), work_folder=f"/fake/{plan.job_name}/{plan.attempt}")

    async def start_agents(self, plan: LaunchPlan, *, heard: Collection[str] = ()) -> None:
        """Mark every agent as alive, except ended ones of heard hosts."""
        key = _key(plan.job_name, plan.attempt)
        self.started.append(key)
        _raise_next(self.start_errors)
        self._pools[key] = _pool_key(plan)
        before = self._alive.get(_pool_key(plan), {})
        self._alive[_pool_key(plan)] = {
            host.name: host.name not in heard or before.get(host.name, False) for host in plan.hosts
        }

    async def hosts(self, plan: LaunchPlan) -> Mapping[str, HostState]:
        """Return host name -> whether its agent lives, and the test's `cut_off_hosts`."""
        alive = self._alive.get(_pool_key(plan), {})
        return {
            host.name: HostState(
                is_alive=alive.get(host.name, False),
                cut_off=CutOff(why=self.cut_off_hosts[host.name], last_well_at=self.links_well_at.get(host.name))
                if host.name in self.cut_off_hosts
                else None,
                capacity_ends=self.ends.get(host.name),
                last_sign_at=self.last_signs.get(host.name),
            )
            for host in plan.hosts
        }

    async def end_host(self, plan: LaunchPlan, host: str) -> None:
        """Mark the host's agent as ended."""
        self.fenced.append(f"{_key(plan.job_name, plan.attempt)}/{host}")
        self._alive[_pool_key(plan)][host] = False

    async def end_attempt(self, job_name: str, attempt: int) -> Released:
        """Record the attempt, and forget its agents if it used no warm pool."""
        self.released.append(_key(job_name, attempt))
        _raise_next(self.release_errors)
        self._alive.pop(_key(job_name, attempt), None)
        return Released()

    async def end(self, pool: str) -> Released:
        """Forget the pool's agents."""
        self.released_pools.append(pool)
        _raise_next(self.release_errors)
        self._alive.pop(_key(pool, 1), None)
        return Released()

    async def forget(self, job_name: str) -> None:
        """Record the name of a deleted job."""
        self.forgotten.append(job_name)

    async def unreleased(self) -> list[HeldAttempt]:
        """Return the test's `held` attempts that are not released."""
        return [held for held in self.held if _key(held.name, held.attempt) not in self.released]

    async def released_jobs(self) -> list[str]:
        """Return the test's `kept_folders`."""
        return [name for name in self.kept_folders if name not in self.put_aside]

    async def set_aside(self, job_name: str) -> str:
        """Record the name."""
        self.put_aside.append(job_name)
        return f"/fake/set-aside/{job_name}"

    async def leftovers(self) -> list[str]:
        """Return an empty list."""
        return []

    def alive(self, job_name: str, *, attempt: int = 1) -> Mapping[str, bool]:
        """Return host name -> whether its agent lives, for an attempt that this engine has started."""
        return dict(self._alive[self._pools[_key(job_name, attempt)]])

    def end_agent(self, job_name: str, host: str, *, attempt: int = 1) -> None:
        """Mark an agent of an attempt as ended.

        Args:
            job_name: name of the job that the agent runs.
            host: such as algo-1.
            attempt: number of an attempt that this engine has started.
        """
        self._alive[self._pools[_key(job_name, attempt)]][host] = False

    def end_pool_agent(self, pool: str, host: str) -> None:
        """Mark an agent of a pool as ended."""
        self._alive[_key(pool, 1)][host] = False

    def start_agent(self, pool: str, host: str) -> None:
        """Mark an agent of a pool as alive, as after a replacement node was granted."""
        self._alive[_key(pool, 1)][host] = True

    def end_all_agents(self, job_name: str, *, attempt: int = 1) -> None:
        """Mark all agents of an attempt as ended."""
        for host in self._alive[self._pools[_key(job_name, attempt)]]:
            self.end_agent(job_name, host, attempt=attempt)


def _pool_key(plan: LaunchPlan) -> str:
    folder = Path(plan.pool_folder)
    return f"{folder.parent.name}/{folder.name}"


def _key(job_name: str, attempt: int) -> str:
    return f"{job_name}/{attempt}"


def _raise_next(errors: list[Exception]) -> None:
    if errors:
        raise errors.pop(0)
