"""The interface of engines: provide hosts for an attempt of a job, start agents on them, release them.

Where: the reconciler calls it with launch plans, in the same way for every engine. Engines make no decisions about
jobs. Every method is idempotent: it may be called again with the same arguments, also after a crash of the service.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from clary.contract.launch_plan import Isolation, LaunchPlan
from clary.control.scheduling.machine import Machine


@dataclass(frozen=True, kw_only=True)
class Released:
    """Processes that a release killed and resources that it removed; empty without leftovers."""

    killed: tuple[str, ...] = ()  # texts on processes
    removed: tuple[str, ...] = ()  # mounts, cgroups and folders


@dataclass(frozen=True, kw_only=True)
class CutOff:
    """The facts of a host that has lost its network."""

    why: str  # in words
    last_well_at: datetime | None = None  # last time at which its link certainly worked; None if unknown


@dataclass(frozen=True, kw_only=True)
class HeldAttempt:
    """An attempt or a pool that was not released: its processes may still exist."""

    name: str  # name of the job or of the pool
    attempt: int


@dataclass(frozen=True, kw_only=True)
class CapacityEnds:
    """The end of a host's capacity, which the engine reclaims."""

    why: str  # in words, such as "Slurm job 4711 was preempted"
    ends_at: datetime | None = None  # aware, UTC; None if unknown


@dataclass(frozen=True, kw_only=True)
class HostState:
    """An engine's knowledge of one host that it provided."""

    is_alive: bool  # whether the agent runs, or may run; False if it was never started
    last_sign_at: datetime | None = None  # of a dead host's last sign of life, if the engine knows one
    why_dead: str = ""  # reason of the end, if the engine knows more than that the agent has ended
    capacity_ends: CapacityEnds | None = None  # set if the engine reclaims the host
    cut_off: CutOff | None = None  # set if the host has lost its network, though its agent may still report


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """The resources and the isolation of an engine."""

    machine: Machine  # resources to divide among hosts; for an engine with many nodes their sum, for display
    isolation: Isolation  # the best isolation that hosts have
    gaps: tuple[str, ...] = ()  # sentences on all resources that are not isolated


class Engine(Protocol):
    """A source of hosts.

    Raises: EngineError from every method; its message names the missing resource and the remedy. `retryable` is set if
        the same call can succeed later.
    """

    def capacity(self) -> Capacity:
        """Return machine and isolation; the first call may take a moment to test the isolation."""

    async def launch(self, plan: LaunchPlan) -> LaunchPlan:
        """Build the pool's network and return the plan with network, addresses and work folder filled in.

        No process that runs a user's code is started. State after failure: all parts that were made stay until `end`.
        """

    async def start_agents(self, plan: LaunchPlan, *, heard: Collection[str] = ()) -> None:
        """Start one agent per host of a plan that `launch` returned, unless the agent runs.

        Args:
            plan: result of `launch`.
            heard: hosts whose agents the service has heard in this attempt; if such an agent has ended, its host is
                lost, and its folder stays as it is.
        """

    async def hosts(self, plan: LaunchPlan) -> Mapping[str, HostState]:
        """Return host name -> state, for every host of a plan; cheap enough for two calls per second and job."""

    async def end_host(self, plan: LaunchPlan, host: str) -> None:
        """End the agent of a host that was given up, and all processes of the host.

        A host that its job has given up, because it is silent or cut off, must not train any further.
        """

    async def end_attempt(self, job_name: str, attempt: int) -> Released:
        """End the attempt's remaining processes and remove its mounts, cgroups and host folders.

        The agents and the network belong to the pool and stay.

        Only processes that were recorded, or that certainly belong to the attempt, are signalled. Logs of the attempt
        stay. Afterwards the attempt cannot be launched again.
        """

    async def end(self, pool: str) -> Released:
        """End the agents of a pool and all processes on its hosts, and remove the pool's network."""

    async def forget(self, job_name: str) -> None:
        """Remove the folders of a job's released attempts; called when the job itself is deleted."""

    async def unreleased(self) -> list[HeldAttempt]:
        """Return this service's attempts and pools that are not released, even if its database lacks them."""

    async def released_jobs(self) -> list[str]:
        """Return the names of jobs that have folders here and of which every attempt is released."""

    async def set_aside(self, job_name: str) -> str:
        """Move aside the folder of a released job that is missing from the database; return its new path.

        The job's name can then be used again.
        """

    async def leftovers(self) -> list[str]:
        """Return sentences on leftovers of released attempts, and of attempts without a folder, on the machine."""
