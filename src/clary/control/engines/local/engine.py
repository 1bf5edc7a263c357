"""Hosts on this machine: one network per pool, one agent process per host.

Where: the reconciler calls it through `engines.interface.Engine`. Every process that it starts outlives the service and
is recorded in the pool's folder, so that the next service finds it and ends it later:

    <home>/jobs/<pool>/1/   engine.json  network.json  network-ready.json  anchor.log  released
    <home>/jobs/<pool>/1/<host>/   agent.log: output of the agent outside of attempts
    <home>/jobs/<job>/<attempt>/   engine.json, which names the pool; released
    <home>/jobs/<job>/<attempt>/<host>/   agent.log, and files of the agent

A pool ends with the attempt for which it was made, or stays for other attempts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from clary.base.errors import EngineError
from clary.base.processes import ProcessId
from clary.contract.failure_reasons import FULL_DISK
from clary.contract.launch_plan import Isolation, LaunchPlan
from clary.control import full_disks
from clary.control.egress.outlets import outlets_of
from clary.control.egress.policy import EgressPolicy
from clary.control.engines.interface import Capacity, CutOff, HeldAttempt, HostState, Released
from clary.control.engines.local import (
    agent_processes,
    anchors,
    attempt_leftovers,
    attempt_processes,
    attempt_record,
    cleaning,
    killing,
    record_recovery,
    rehearsal_records,
)
from clary.control.engines.local.agent_processes import LastingProcess
from clary.control.engines.local.attempt_record import POOL_ATTEMPT, AttemptRecord
from clary.control.engines.local.fork_server import ForkServer
from clary.control.engines.local.isolation import choose_isolation
from clary.control.engines.local.last_signs import last_signs
from clary.control.engines.local.machine_facts import measure_machine
from clary.control.engines.local.memory_limits import memory_limits
from clary.control.engines.local.network import link_watch
from clary.control.engines.local.network.network_spec import RELEASED_FILE, RelaySpec
from clary.control.settings import Settings

JOBS_FOLDER = "jobs"
SET_ASIDE_FOLDER = "set-aside"  # below the state folder: folders of jobs that are missing from the database

T = TypeVar("T")

_log = logging.getLogger(__name__)


class LocalEngine:
    """Hosts as namespaces of this machine, or as plain processes.

    Args:
        settings: settings of the service.
        service_url: URL for agents' reports and for programs' AWS requests: http://ADDRESS:PORT.
        relayed_urls: other URLs of the service that programs inside hosts must reach; none by default.
        environ: variables that agents inherit, without the service's own; None stands for this process's environment.
        egress: policy on the targets in the owner's network that hosts may reach; None: no target.
    """

    def __init__(
        self,
        settings: Settings,
        service_url: str,
        *,
        relayed_urls: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        egress: EgressPolicy | None = None,
    ) -> None:
        self._settings = settings
        self._relayed_urls = (service_url, *relayed_urls)
        self._egress = egress
        self._environ = dict(os.environ if environ is None else environ)
        self._isolation: tuple[Isolation, tuple[str, ...]] | None = None
        self._fork_server = ForkServer(agent_processes.own_environment(self._environ))
        self._locks: dict[Path, asyncio.Lock] = {}
        self._children: dict[int, LastingProcess] = {}
        self._records: dict[Path, AttemptRecord] = {}  # records as on disk, of pools whose agents this service watches

    def close(self) -> None:
        """End the process from which agents are forked. Hosts stay, as they do at any other end of the service."""
        self._fork_server.close()

    def capacity(self) -> Capacity:
        """Return the part of the machine that this process may use; the first call may make a network as a test."""
        if self._isolation is None:
            environment = agent_processes.process_environment(self._environ, "probe")
            self._isolation = choose_isolation(self._settings.isolation, environment)
        isolation, gaps = self._isolation
        return Capacity(machine=measure_machine(), isolation=isolation, gaps=gaps)

    def memory_limits(self, *, looks_only: bool = False) -> str:
        """Return a sentence on the mechanism that enforces hosts' memory limits.

        Args:
            looks_only: if true, the probe moves no process of this cgroup.
        """
        return memory_limits(agent_processes.process_environment(self._environ, "probe"), looks_only=looks_only)

    async def launch(self, plan: LaunchPlan) -> LaunchPlan:
        """Make the attempt's folder and its pool's network, unless they exist."""
        folder, pool = self._folder(plan.job_name, plan.attempt), Path(plan.pool_folder)
        held, record = await asyncio.gather(
            self._locked(pool, lambda: self._make_network(plan, pool)),
            self._locked(folder, lambda: _make_place(plan, folder)),
        )
        held = replace(held, work_folder=str(folder))
        return held if record.master_port is None else anchors.without_network(held, master_port=record.master_port)

    async def start_agents(self, plan: LaunchPlan, *, heard: Collection[str] = ()) -> None:
        """Start the agents of the pool that were not started yet, or have ended unheard.

        Args:
            plan: result of `launch`.
            heard: hosts whose agents are not started again, and whose folders keep what those left.
        """
        folder = Path(plan.pool_folder)
        await self._locked(folder, lambda: self._start_agents(plan, folder, heard))

    async def hosts(self, plan: LaunchPlan) -> Mapping[str, HostState]:
        """Return host name -> whether its agent runs, and whether the anchor's link watch found the host cut off."""
        alive, cut_off = await self._agents_alive(plan), await self._cut_off(plan)
        dead = [name for name, lives in alive.items() if not lives]
        signs = await asyncio.to_thread(last_signs, plan, dead) if dead else {}
        return {
            name: HostState(is_alive=lives, cut_off=cut_off.get(name), last_sign_at=signs.get(name))
            for name, lives in alive.items()
        }

    async def end_host(self, plan: LaunchPlan, host: str) -> None:
        """Kill a host's agent; the host's first process then ends all other processes of the host."""
        folder = Path(plan.pool_folder)
        await self._locked(folder, lambda: attempt_processes.end_agent(folder, host))

    async def end_attempt(self, job_name: str, attempt: int) -> Released:
        """End all processes of the attempt and remove its leftovers."""
        folder = self._folder(job_name, attempt)
        if not folder.is_dir() and not await asyncio.to_thread(record_recovery.restore, folder):
            return Released()
        try:
            released = await self._locked(folder, lambda: self._release(folder))
        finally:
            self._reap()
        self._records.pop(folder, None)
        self._locks.pop(folder, None)
        return released

    async def end(self, pool: str) -> Released:
        """End all processes of a pool and remove its leftovers; its folder stays only if a log is not empty."""
        released = await self.end_attempt(pool, int(POOL_ATTEMPT))
        folder = self._folder(pool, int(POOL_ATTEMPT))
        if not any(path.stat().st_size for path in folder.rglob("*.log")):
            await self.forget(pool)
        return released

    async def forget(self, job_name: str) -> None:
        """Remove the folders of a job's released attempts, logs of agents included; its name can be used again."""
        await asyncio.to_thread(_forget, self._settings.home_folder / JOBS_FOLDER / job_name)

    async def unreleased(self) -> list[HeldAttempt]:
        """Return the attempts and pools below the state folder that are not released."""

        def find() -> list[HeldAttempt]:
            folders = attempt_record.attempt_folders(self._settings.home_folder / JOBS_FOLDER)
            return [
                HeldAttempt(name=folder.parent.name, attempt=int(folder.name))
                for folder in folders
                if folder.name.isdecimal() and folder.is_dir() and not attempt_record.is_released(folder)
            ]

        return await asyncio.to_thread(find)

    async def released_jobs(self) -> list[str]:
        """Return the names of the jobs below the state folder of which every attempt is released."""

        def find() -> list[str]:
            states: dict[str, bool] = {}
            for folder in attempt_record.attempt_folders(self._settings.home_folder / JOBS_FOLDER):
                if folder.name.isdecimal() and folder.is_dir():
                    name = folder.parent.name
                    states[name] = states.get(name, True) and attempt_record.is_released(folder)
            return [name for name, is_released in states.items() if is_released]

        return await asyncio.to_thread(find)

    async def set_aside(self, job_name: str) -> str:
        """Move the folder of a released, unknown job aside, so that a new job can have its name.

        Raises: EngineError if it cannot be moved; the folder then stays in place.
        """
        folder = self._settings.home_folder / JOBS_FOLDER / job_name
        place = self._settings.home_folder / SET_ASIDE_FOLDER / JOBS_FOLDER
        target = place / f"{job_name}.{datetime.now(UTC):%Y%m%dT%H%M%S%f}"

        def move() -> None:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.rename(target)

        try:
            await asyncio.to_thread(move)
        except OSError as error:
            raise EngineError(f"{folder} cannot be moved to {target}: {error.strerror}", retryable=True) from error
        return str(target)

    async def leftovers(self) -> list[str]:
        """Return sentences on leftovers of released attempts, and of attempts whose folder is gone."""
        return await asyncio.to_thread(attempt_leftovers.leftovers, self._settings.home_folder / JOBS_FOLDER)

    async def unclaimed_memory(self) -> list[str]:
        """Return sentences on shared memory that plain processes may have left; its creator is unknown."""
        return await asyncio.to_thread(attempt_leftovers.unclaimed_memory, self._settings.home_folder / JOBS_FOLDER)

    async def _agents_alive(self, plan: LaunchPlan) -> Mapping[str, bool]:
        self._reap()
        folder = Path(plan.pool_folder)
        record = self._records.get(folder)
        if record is None:
            record = await asyncio.to_thread(_sound_record, folder)
            if record is not None:
                self._records[folder] = record
        agents = record.agents if record is not None and record.boot_id == attempt_record.boot_id() else {}
        return {host.name: host.name in agents and agents[host.name].is_alive() for host in plan.hosts}

    async def _cut_off(self, plan: LaunchPlan) -> Mapping[str, CutOff]:
        path = Path(plan.pool_folder) / link_watch.CUT_OFF_FILE
        if not path.exists():  # nearly always absent; this check is cheaper than a thread
            return {}
        why = f"its link has carried nothing from or to the job's other hosts for {link_watch.CUT_OFF_AFTER_S:g} s"
        found = await asyncio.to_thread(link_watch.read_cut_off, str(path))
        now, now_s = datetime.now(UTC), time.monotonic()
        return {
            name: CutOff(
                why=why, last_well_at=None if at_s is None else now - timedelta(seconds=max(0.0, now_s - at_s))
            )
            for name, at_s in found.items()
        }

    def _folder(self, job_name: str, attempt: int) -> Path:
        return self._settings.home_folder / JOBS_FOLDER / job_name / str(attempt)

    async def _locked(self, folder: Path, work: Callable[[], T]) -> T:
        """Do blocking work on one attempt or pool in a thread, one call at a time.

        The work is shielded, because a thread cannot be cancelled: the lock is held until the thread has ended.
        """

        def mended() -> T:
            record_recovery.mend(folder)
            return work()

        async def run() -> T:
            async with self._locks.setdefault(folder, asyncio.Lock()):
                return await asyncio.to_thread(mended)

        return await asyncio.shield(asyncio.create_task(run()))

    def _make_network(self, plan: LaunchPlan, folder: Path) -> LaunchPlan:
        if attempt_record.is_released(folder):
            raise _is_over(plan)
        _make_folder(folder)
        _require_space(folder)
        record = attempt_record.create_record(folder)
        if not attempt_record.living_agents(folder):
            self._fork_server.prepare()
        if plan.isolation is Isolation.PROCESSES:
            return plan
        # EnableNetworkIsolation: programs may connect only to the other hosts of their job, and not even to AWS.
        relays = () if plan.network_isolation else self._relays(plan)
        spec = anchors.network_spec(plan, folder, relays)

        def start(command: Sequence[str], log_path: Path) -> LastingProcess:
            environment = agent_processes.process_environment(self._environ, record.mark)
            return self._start(command, log_path, environment)

        return anchors.with_network(plan, anchors.ensure_anchor(spec, start=start), folder)

    def _relays(self, plan: LaunchPlan) -> tuple[RelaySpec, ...]:
        """Return the relays out of the hosts: to the service, and to targets that the owner allows."""
        own = anchors.relays_to(self._relayed_urls)
        if self._egress is None:
            return own
        found = outlets_of(self._egress, taken=anchors.NETWORK)
        for text in found.missing:
            _log.warning("job %s: its hosts reach this through the proxy at most: %s", plan.job_name, text)
        return own + anchors.relays_of(found.places, own)

    def _start_agents(self, plan: LaunchPlan, folder: Path, heard: Collection[str]) -> None:
        if attempt_record.is_released(folder):
            raise _is_over(plan)
        record = attempt_record.create_record(folder)
        agents = dict(record.agents)
        if record.may_have_unknown_agents:
            # Adopted agents are alive; a recorded agent of the same host may be dead.
            agents |= attempt_processes.adopted_agents(record.mark)
        dead = {name: agent for name, agent in agents.items() if name not in heard and not agent.is_alive()}
        for name in dead:
            attempt_processes.clear_host(folder, name)
            del agents[name]
        places = _once((*record.cgroup_places, *cleaning.own_cgroup_places()))
        record = replace(record, agents=agents, may_have_unknown_agents=True, cgroup_places=places)
        attempt_record.write_record(folder, record)
        for host in plan.hosts:
            if host.name in agents or host.name in heard:
                continue
            host_folder = folder / host.name
            host_folder.mkdir(exist_ok=True)
            environment = agent_processes.agent_environment(self._environ, record.mark, plan)
            command = agent_processes.agent_command(plan, host.name)
            log_path = host_folder / agent_processes.AGENT_LOG
            agent = self._fork_server.fork(command, log_path=log_path, environment=environment)
            if agent is None:
                child = self._start(command, log_path, environment)
                agent = ProcessId.of(child.pid)
                if agent is None:
                    raise EngineError(self._ended_early(host_folder, host.name, ProcessId(child.pid, "")))
            agents[host.name] = agent
        record = replace(record, agents=agents, may_have_unknown_agents=False)
        attempt_record.write_record(folder, record)
        self._records[folder] = record

    def _release(self, folder: Path) -> Released:
        record = attempt_record.read_record(folder)
        killed: list[str] = []
        removed: list[str] = []
        problems: list[str] = []
        if record is not None and record.boot_id == attempt_record.boot_id():
            killed += attempt_processes.end_processes(folder, record)
        # The anchor ends by itself when it sees this file, and the attempt is never launched again.
        (folder / RELEASED_FILE).touch()
        ready = attempt_record.read_ready(folder)
        if ready is not None and record is not None and record.boot_id == attempt_record.boot_id():
            killing.kill(ready.anchor)  # the process is expected to run, so it is not reported
        removed += cleaning.unmount_below(folder)
        hosts = attempt_leftovers.folders_in(folder)
        cgroups = attempt_leftovers.cgroups_of(folder, hosts, record)
        gone = cleaning.remove_empty_cgroups(cgroups)
        problems += [f"cgroup {path} still holds processes" for path in cgroups if path not in gone]
        removed += gone
        for host in hosts:
            rehearsal_records.keep(folder / host)
            removed += cleaning.remove_trees(folder / host)
        problems += [f"{point} is still mounted" for point in cleaning.mounts_below(folder)]
        if problems:
            raise EngineError(f"attempt in {folder} is not released yet: {'; '.join(problems)}", retryable=True)
        return Released(killed=tuple(killed), removed=tuple(removed))

    def _start(self, command: Sequence[str], log_path: Path, environment: Mapping[str, str]) -> LastingProcess:
        child = agent_processes.start(command, log_path=log_path, environment=environment)
        self._children[child.pid] = child
        return child

    def _ended_early(self, host_folder: Path, host: str, agent: ProcessId) -> str:
        child = self._children.get(agent.pid)
        code = child.poll() if child is not None else None
        how = "ended" if code is None else f"ended with exit code {code}"
        said = agent_processes.last_words(host_folder / agent_processes.AGENT_LOG)
        return f"the agent of {host} {how} before it reported: {said}"

    def _reap(self) -> None:
        """Reap children that have ended, which would otherwise stay as zombies."""
        for pid, child in list(self._children.items()):
            if child.poll() is not None:
                self._children.pop(pid, None)


def _is_over(plan: LaunchPlan) -> EngineError:
    """Return the error for starting a released attempt again, for example after a job's record was repaired."""
    return EngineError(
        f"the hosts of attempt {plan.attempt} were taken back, as those of a job whose record cannot be read are when "
        "the service starts; a released attempt is not begun again"
    )


def _sound_record(folder: Path) -> AttemptRecord | None:
    record_recovery.mend(folder)
    return attempt_record.read_record(folder)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise EngineError(f"{folder}: cannot be made: {error.strerror}", retryable=True) from error


def _make_place(plan: LaunchPlan, folder: Path) -> AttemptRecord:
    """Create the folder of an attempt and return its record.

    If hosts share the machine's network, each attempt gets a master port of its own, where its ranks meet.
    """
    if attempt_record.is_released(folder):
        raise _is_over(plan)
    _make_folder(folder)
    of_pool = attempt_record.read_record(Path(plan.pool_folder))
    places = (*(of_pool.cgroup_places if of_pool is not None else ()), *cleaning.own_cgroup_places())
    port = _free_port() if plan.isolation is Isolation.PROCESSES else None
    record = attempt_record.create_record(folder, pool=plan.pool, master_port=port, cgroup_places=_once(places))
    whole = replace(record, cgroup_places=_once((*record.cgroup_places, *places)))
    if whole != record:  # agents were started before, by a service in another cgroup
        attempt_record.write_record(folder, whole)
    return whole


def _once(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _forget(job_folder: Path) -> None:
    """Remove a job's folders, and the folders of its released pools."""
    for folder in job_folder.iterdir() if job_folder.is_dir() else ():
        with contextlib.suppress(EngineError):  # a damaged record names no pool
            pool = attempt_record.pool_folder(folder)
            if pool is not None and attempt_record.is_released(pool):
                shutil.rmtree(pool.parent, ignore_errors=True)
    shutil.rmtree(job_folder, ignore_errors=True)


def _require_space(folder: Path) -> None:
    """Refuse to start hosts on a full disk, on which agents could not even report why they fail."""
    if why := full_disks.why_full(folder):
        raise EngineError(f"{FULL_DISK}: {why}", retryable=True)


def _free_port() -> int:
    """Return a port that is free now on 127.0.0.1, for programs that share the machine's network."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
