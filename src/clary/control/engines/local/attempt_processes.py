"""Finds and ends the processes of an attempt on this machine.

Where: `LocalEngine` calls it in a thread, one call at a time per attempt: before agents are started again, when a host
is fenced, and on release. An attempt is identified by its folder, in which the engine records the processes that it
starts.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from clary.base.errors import EngineError
from clary.base.processes import ProcessId, exec_deadline, read_arguments
from clary.control.engines.local import attempt_leftovers, attempt_record, killing
from clary.control.engines.local.agent_processes import MARK_VARIABLE
from clary.control.engines.local.attempt_record import AttemptRecord, NetworkReady

LEAVE_TIMEOUT_S = 3.0  # wait for programs whose agent was killed: each host's first process ends them
MAX_KILL_ROUNDS = 20  # each round finds processes that were forked during the previous round


def adopted_agents(mark: str) -> dict[str, ProcessId]:
    """Return, by host name, agents that a service started and could not record before its own end."""
    found = {}
    deadline = exec_deadline()
    for process in killing.with_variable(MARK_VARIABLE, mark):
        command = read_arguments(process.pid, deadline)
        if "clary.agent" in command and "--host" in command[:-1]:
            found[command[command.index("--host") + 1]] = process
    return found


def end_agent(folder: Path, host: str) -> None:
    """Kill the agent of a host, if it is alive.

    Raises: EngineError if it cannot be killed.
    """
    agent = attempt_record.living_agents(folder).get(host)
    if agent is None:
        return
    try:
        killing.kill(agent)
    except (OSError, TimeoutError) as error:
        raise EngineError(f"the agent of {host} in {folder} could not be ended: {error}", retryable=True) from error


def clear_host(folder: Path, host: str) -> None:
    """End the processes that a dead agent of a pool's host has left in the host's network and cgroup.

    Raises: EngineError if a process cannot be ended.
    """
    ready = attempt_record.read_ready(folder)
    cgroups = attempt_leftovers.cgroups_of(folder, [host], attempt_record.read_record(folder))
    try:
        found = killing.in_cgroups(cgroups)
        if ready is not None and host in ready.namespaces:
            found += _in_networks(replace(ready, namespaces={host: ready.namespaces[host]}))
        for process in killing.wait_until_gone(set(found), timeout_s=LEAVE_TIMEOUT_S):
            killing.kill(process)
    except (OSError, TimeoutError) as error:
        raise EngineError(f"{host} in {folder}: a process could not be ended: {error}", retryable=True) from error


def end_processes(folder: Path, record: AttemptRecord) -> list[str]:
    """Kill agents, then the processes that do not end with them; return texts on the killed processes.

    Raises: EngineError if a process cannot be killed.
    """
    agents = dict(record.agents)
    if record.may_have_unknown_agents:
        agents = adopted_agents(record.mark) | agents
    ready = attempt_record.read_ready(folder)
    below = [process for agent in agents.values() for process in killing.descendants(agent)]
    killed = []
    try:
        for host, agent in agents.items():
            if killing.kill(agent):
                killed.append(f"agent of {host}, process {agent.pid}")
        left = killing.wait_until_gone({*below, *_found(folder, record, ready)}, timeout_s=LEAVE_TIMEOUT_S)
        for _ in range(MAX_KILL_ROUNDS):
            for process in left:
                command = " ".join(read_arguments(process.pid))[:100]
                if killing.kill(process):
                    killed.append(f"process {process.pid} ({command})")
            left = _found(folder, record, ready)
            if not left:
                return killed
    except (OSError, TimeoutError) as error:
        raise EngineError(f"attempt in {folder}: a process could not be ended: {error}", retryable=True) from error
    raise EngineError(
        f"attempt in {folder}: {len(left)} processes come back faster than they are killed", retryable=True
    )


def _found(folder: Path, record: AttemptRecord, ready: NetworkReady | None) -> list[ProcessId]:
    """Return the attempt's processes, found by mark, network and cgroup, regardless of their parents."""
    # Orphaned plain processes, whose agent and host keeper (`agent.host.keeper`) died, are found only by the host's
    # cgroup.
    cgroups = attempt_leftovers.cgroups_of(folder, attempt_leftovers.folders_in(folder), record)
    marked = [] if record.pool else _marked(record, ready)  # an attempt's processes carry its pool's mark
    found = [*marked, *_in_networks(ready), *killing.in_cgroups(cgroups)]
    return list(dict.fromkeys(found))


def _marked(record: AttemptRecord, ready: NetworkReady | None) -> list[ProcessId]:
    """Return the processes that carry the attempt's mark, without the holders of its network."""
    holders = {ready.anchor, *killing.descendants(ready.anchor)} if ready is not None else set()
    return [process for process in killing.with_variable(MARK_VARIABLE, record.mark) if process not in holders]


def _in_networks(ready: NetworkReady | None) -> list[ProcessId]:
    """Return the processes inside the attempt's network namespaces, which are known only while the anchor lives."""
    if ready is None or not ready.anchor.is_alive():
        return []
    inodes = []
    for descriptor in ready.namespaces.values():
        try:
            inodes.append(os.stat(f"/proc/{ready.pid}/fd/{descriptor}").st_ino)
        except OSError:
            return []
    return killing.in_network_namespaces(inodes) if ready.anchor.is_alive() else []
