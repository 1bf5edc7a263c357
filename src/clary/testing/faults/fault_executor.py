"""Executor of one fault: finds its target and strikes. The plan decides kind, time, duration and choice.

Where: `fault_run` calls `strike` and, at the fault's end, `Damage.mend`. A fault without a target (no job is at the
planned moment, a process has just ended) has no effect and is not counted.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from clary.base.processes import ProcessId
from clary.testing.faults import fault_database_strikes as database
from clary.testing.faults import fault_link_strikes as links
from clary.testing.faults import fault_restart_strikes as restarts
from clary.testing.faults import fault_state_strikes as state
from clary.testing.faults.fault_damage import Damage, choose, damage_of
from clary.testing.faults.fault_plan import Fault, FaultKind
from clary.testing.faults.fault_row_strikes import spoil_row
from clary.testing.faults.fault_world import FaultWorld

FILL_STEP_BYTES = 4 * 1024 * 1024

Strike = Callable[[FaultWorld, Fault, str], Damage | None]


def strike(world: FaultWorld, fault: Fault, job_name: str) -> Damage | None:
    """Inject a fault.

    Args:
        world: world of the service.
        fault: the fault.
        job_name: name of a job, at the fault's `moment` if one is there in time; empty if no job is in flight.

    Returns: the damage, which the caller mends at `mend_at_s`; None without a target.
    """
    try:
        return _STRIKES[fault.kind](world, fault, job_name)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return None  # another fault has filled the disk


def _kill_service(world: FaultWorld, fault: Fault, _: str) -> Damage | None:
    killed = world.service.kill()
    # The service is started again even if it had ended before the kill.
    return damage_of(fault, f"service {killed.pid if killed else '(gone)'}", mend=world.service.start)


def _agent(world: FaultWorld, fault: Fault, job_name: str) -> ProcessId | None:
    agents = world.agents(job_name)
    return agents.get(choose(sorted(agents), fault) or "")


def _program(world: FaultWorld, fault: Fault, job_name: str) -> ProcessId | None:
    return choose(world.programs(job_name), fault)


def _kill(fault: Fault, process: ProcessId | None, job_name: str = "") -> Damage | None:
    if process is None or not process.is_alive():
        return None
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
        return damage_of(fault, f"process {process.pid}", job_name=job_name)
    return None


def _pause(fault: Fault, process: ProcessId | None, job_name: str = "") -> Damage | None:
    if process is None or not process.is_alive():
        return None

    def go_on() -> None:
        if process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)

    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGSTOP)
        return damage_of(fault, f"process {process.pid}", job_name=job_name, mend=go_on)
    return None


def _fill(folder_name: str, world: FaultWorld, fault: Fault, _: str) -> Damage | None:
    folder: Path = world.home / folder_name
    ballast = folder / f"ballast-{fault.number}"
    with open(ballast, "wb", buffering=0) as file, suppress(OSError):
        facts = os.statvfs(folder)
        os.posix_fallocate(file.fileno(), 0, max(facts.f_bavail * facts.f_frsize - FILL_STEP_BYTES, 1))
        file.seek(0, os.SEEK_END)
        while file.write(b"\0" * 4096):
            pass
    return damage_of(fault, str(folder), mend=partial(ballast.unlink, missing_ok=True))


def _jump_clock(world: FaultWorld, fault: Fault, _: str) -> Damage | None:
    world.set_clock(fault.amount)
    return damage_of(fault, f"{fault.amount:+.0f} s off the machine's clock")


_STRIKES: dict[FaultKind, Strike] = {
    FaultKind.KILL_SERVICE: _kill_service,
    FaultKind.KILL_AGENT: lambda world, fault, job: _kill(fault, _agent(world, fault, job), job),
    FaultKind.KILL_PROGRAM: lambda world, fault, job: _kill(fault, _program(world, fault, job), job),
    FaultKind.KILL_NETWORK: lambda world, fault, job: _kill(fault, world.anchor(job), job),
    FaultKind.KILL_STORE: lambda world, fault, _: _kill(fault, world.store_process()),
    FaultKind.PAUSE_SERVICE: lambda world, fault, _: _pause(fault, world.service.process()),
    FaultKind.PAUSE_AGENT: lambda world, fault, job: _pause(fault, _agent(world, fault, job), job),
    FaultKind.PAUSE_PROGRAM: lambda world, fault, job: _pause(fault, _program(world, fault, job), job),
    FaultKind.PAUSE_STORE: lambda world, fault, _: _pause(fault, world.store_process()),
    FaultKind.CUT_AGENT_LINK: lambda world, fault, job: links.link_of_agent(world, fault, job).cut(fault),
    FaultKind.SLOW_AGENT_LINK: lambda world, fault, job: links.link_of_agent(world, fault, job).slow_down(fault),
    FaultKind.GARBLE_AGENT_LINK: lambda world, fault, job: links.link_of_agent(world, fault, job).garble(fault),
    FaultKind.SWALLOW_AGENT_LINK: lambda world, fault, job: links.link_of_agent(world, fault, job).swallow(fault),
    FaultKind.CUT_STORE_LINK: lambda world, fault, _: links.links_to_store(world).cut(fault),
    FaultKind.GARBLE_STORE_LINK: lambda world, fault, _: links.links_to_store(world).garble(fault),
    FaultKind.SLOW_STORE_LINK: lambda world, fault, _: links.links_to_store(world).slow_down(fault),
    FaultKind.CUT_HOSTS: links.cut_off_host,
    FaultKind.CUT_DATABASE: lambda world, fault, _: database.cut_connections(world, fault),
    FaultKind.KILL_DATABASE: lambda world, fault, _: database.kill_backend(world, fault),
    FaultKind.HOLD_DATABASE: lambda world, fault, _: database.hold_lock(world, fault),
    FaultKind.FILL_HOME: partial(_fill, ""),
    FaultKind.FILL_HOSTS: partial(_fill, "jobs"),
    FaultKind.JUMP_CLOCK: _jump_clock,
    FaultKind.SPOIL_ROW: spoil_row,
    FaultKind.DELETE_DATABASE: lambda world, fault, _: state.delete_database(world, fault),
    FaultKind.LOSE_DATABASE: lambda world, fault, _: restarts.lose_database(world, fault),
    FaultKind.DAMAGE_KEYS: lambda world, fault, _: state.damage_keys(world, fault),
    FaultKind.LOSE_KEYS: lambda world, fault, _: restarts.lose_keys(world, fault),
    FaultKind.DAMAGE_SERVICE_RECORD: lambda world, fault, _: state.damage_service_record(world, fault),
    FaultKind.DAMAGE_STORE_RECORD: lambda world, fault, _: state.damage_store_record(world, fault),
    FaultKind.DAMAGE_ENGINE_RECORD: state.damage_engine_record,
    FaultKind.DAMAGE_NETWORK_RECORD: state.damage_network_record,
    FaultKind.TEAR_LOG: lambda world, fault, _: restarts.tear_log(world, fault),
    FaultKind.TEAR_SPOOL: state.tear_spool,
}
