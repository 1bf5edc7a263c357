"""Faults of connections: between agents and the service, to the object store, between the hosts of a job.

Where: `fault_executor` calls it; `fault_links` changes single connections.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress

from clary.base.errors import EngineError
from clary.base.processes import ProcessId
from clary.control.engines.local.network_faults import partition
from clary.testing.faults import fault_links
from clary.testing.faults.fault_damage import Damage, choose, damage_of
from clary.testing.faults.fault_plan import Fault
from clary.testing.faults.fault_world import FaultWorld

STEP_S = 0.02  # seconds between searches for new connections of a cut link
SWALLOW_WAIT_S = 0.5  # seconds in which bytes can arrive


class Link:
    """Connections of several processes to one port.

    Args:
        processes: processes that opened the connections; None stands for an ended process.
        port: port at the other end.
        job_name: job that the link belongs to; empty if it belongs to no single job.
    """

    def __init__(self, processes: Sequence[ProcessId | None], port: int, job_name: str = "") -> None:
        self._pids = [process.pid for process in processes if process is not None]
        self._wanted = fault_links.leads_to_port(port)
        self._job_name = job_name

    def cut(self, fault: Fault) -> Damage | None:
        """Cut the open connections, and new connections until the fault ends."""
        deadline = time.monotonic() + fault.duration_s
        num_cut = 0
        while True:
            for pid in self._pids:
                with fault_links.connections_of(pid, self._wanted) as items:
                    num_cut += len(items)
                    for item in items:
                        fault_links.cut(item)
            if time.monotonic() >= deadline:
                break
            time.sleep(STEP_S)
        return self._damage(fault, num_cut, f"{num_cut} connections")

    def slow_down(self, fault: Fault) -> Damage | None:
        """Slow down sending until the fault ends."""
        num_paced = self._pace(fault_links.SLOW_BYTES_PER_S)
        if not num_paced:
            return None
        target = f"{num_paced} connections"
        mend = lambda: self._pace(fault_links.NO_PACING)  # noqa: E731 - one call, later
        return damage_of(fault, target, job_name=self._job_name, mend=mend)

    def garble(self, fault: Fault) -> Damage | None:
        """Send random bytes that follow from the plan's seed."""
        noise = hashlib.shake_128(str(fault.choice).encode()).digest(int(fault.amount))
        num_garbled = 0
        for pid in self._pids:
            with fault_links.connections_of(pid, self._wanted) as items:
                num_garbled += len(items)
                for item in items:
                    fault_links.garble(item, noise)
        return self._damage(fault, num_garbled, f"{len(noise)} bytes into {num_garbled} connections")

    def swallow(self, fault: Fault) -> Damage | None:
        """Remove bytes of an answer and leave the connections open."""
        deadline = time.monotonic() + SWALLOW_WAIT_S
        num_swallowed = 0
        while not num_swallowed and time.monotonic() < deadline:
            for pid in self._pids:
                with fault_links.connections_of(pid, self._wanted) as items:
                    num_swallowed += sum(fault_links.swallow(item, int(fault.amount)) for item in items)
        return self._damage(fault, num_swallowed, f"{num_swallowed} bytes")

    def _pace(self, bytes_per_s: int) -> int:
        num_paced = 0
        for pid in self._pids:
            with fault_links.connections_of(pid, self._wanted) as items:
                num_paced += len(items)
                for item in items:
                    fault_links.slow_down(item, bytes_per_s)
        return num_paced

    def _damage(self, fault: Fault, num_struck: int, target: str) -> Damage | None:
        return damage_of(fault, target, job_name=self._job_name) if num_struck else None


def link_of_agent(world: FaultWorld, fault: Fault, job_name: str) -> Link:
    """Return the link between the service and one of the job's agents.

    Args:
        world: the service that faults strike, and its jobs.
        fault: its choice picks the agent.
        job_name: name of a job; if its agent has ended, the link has no connections.
    """
    agents = world.agents(job_name)
    return Link([agents.get(choose(sorted(agents), fault) or "")], world.service_port(), job_name)


def links_to_store(world: FaultWorld) -> Link:
    """Return the links of the service and of all agents to the object store."""
    agents = [
        ProcessId.of(pid)
        for commands in world.processes_of_jobs().values()
        for pid, command in commands.items()
        if "clary.agent" in command
    ]
    return Link([world.service.process(), *agents], world.store_record()["ports"].get("s3", 0))


def cut_off_host(world: FaultWorld, fault: Fault, job_name: str) -> Damage | None:
    """Cut a host off from its job's other hosts.

    Args:
        world: the service that faults strike, and its jobs.
        fault: its choice picks the host.
        job_name: name of the job.
    Returns: the damage, whose `mend` connects the host again; None if the job has no agent or network now.
    """
    host = choose(sorted(world.agents(job_name)), fault)
    folder = world.pool_folder(job_name)
    if host is None or folder is None or world.anchor(job_name) is None:
        return None

    def connect(*, up: bool) -> None:
        with suppress(EngineError):  # the job may have ended meanwhile, and its network too
            asyncio.run(partition(str(folder), host, up=up))

    connect(up=False)
    return damage_of(fault, f"{host} of", job_name=job_name, mend=lambda: connect(up=True))
