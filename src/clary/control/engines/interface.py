"""The interface of engines: give hosts to an attempt of a job, start agents on them, take them back.

Where: the reconciler drives it with launch plans; the code above is the same for every engine. Engines make no
decisions about jobs. Every method may be called again with the same arguments, after a crash of the service too; a
repeated call changes nothing that is done already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from clary.contract.launch_plan import Isolation, LaunchPlan
from clary.control.scheduling.machine import Machine


@dataclass(frozen=True, kw_only=True)
class Released:
    """Processes killed and things removed by a release; empty if the attempt had left nothing."""

    killed: tuple[str, ...] = ()  # processes, in words
    removed: tuple[str, ...] = ()  # mounts, cgroups and folders


@dataclass(frozen=True, kw_only=True)
class CutOff:
    """The facts of a host that has lost its network."""

    why: str  # in words
    last_well_at: datetime | None = None  # when its link certainly worked; None if unknown


@dataclass(frozen=True, kw_only=True)
class HeldAttempt:
    """An attempt or a pool that was not released: processes of it may still exist."""

    name: str  # of the job or of the pool
    attempt: int


@dataclass(frozen=True, kw_only=True)
class CapacityEnds:
    """The end of a host's capacity, which the engine takes back."""

    why: str  # in words, such as "Slurm job 4711 was preempted"
    ends_at: datetime | None = None  # aware, UTC; None if unknown


@dataclass(frozen=True, kw_only=True)
class HostState:
    """An engine's knowledge of one host that it gave."""

    is_alive: bool  # whether its agent runs, or may run; false if it was never started
    why_dead: str = ""  # reason, if the engine knows more than that its agent has ended
    capacity_ends: CapacityEnds | None = None  # set if the engine takes the host back
    cut_off: CutOff | None = None  # set if the host has lost its network, though its agent may still report


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """The resources and the isolation of an engine."""

    machine: Machine  # to divide among hosts; for an engine of many nodes their sum, for pages
    isolation: Isolation  # the best that hosts have
    gaps: tuple[str, ...] = ()  # sentences on all resources that are not isolated


class Engine(Protocol):
    """A source of hosts.

    Raises: EngineError from every method; its message names the missing resource and the remedy. `retryable` is set if
        the same call can succeed later.
    """

    def capacity(self) -> Capacity:
        """Return machine and isolation; the first call may take a moment to find out about isolation."""

    async def launch(self, plan: LaunchPlan) -> LaunchPlan:
        """Build the pool's network and return the plan with network, addresses and work folder filled in.

        No process that runs code of a user is started. State after failure: all parts that were made stay until they
        are released.
        """

    async def start_agents(self, plan: LaunchPlan) -> None:
        """Start one agent per host of a plan that `launch` returned, unless it runs."""

    async def hosts(self, plan: LaunchPlan) -> Mapping[str, HostState]:
        """Return host name -> state, for every host of a plan; cheap enough to be asked twice a second per job."""

    async def end_host(self, plan: LaunchPlan, host: str) -> None:
        """End the agent of a host that was given up, and with it all processes of the host.

        A host that its job has given up, because it is silent or cut off, must not train any further.
        """

    async def end_attempt(self, job_name: str, attempt: int) -> Released:
        """End the attempt's remaining processes and remove its mounts, cgroups and host folders.

        The agents and the network are its pool's and stay.

        Only processes that were recorded, or that certainly belong to the attempt, are signalled. Logs
        of the attempt stay. After this the attempt can not be launched again.
        """

    async def end(self, pool: str) -> Released:
        """End the agents of a pool and all processes on its hosts, and remove the pool's network."""

    async def forget(self, job_name: str) -> None:
        """Remove the folders of a job's released attempts; called when the job itself is deleted."""

    async def unreleased(self) -> list[HeldAttempt]:
        """Return this service's attempts and pools that are not released, even if its database lacks them."""

    async def set_aside(self, job_name: str) -> str:
        """Move the folder of a released job that the database does not know aside; return its new path.

        The job's name can be used again then.
        """

    async def leftovers(self) -> list[str]:
        """Return sentences on leftovers of released or vanished attempts on the machine."""
