"""Detection of hosts that are lost or cut off, from facts of the engine and the gateway. Pure.

Where: the reconciler calls it on every pass for running jobs. `jobs.deadlines` finds silent hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from clary.contract.agent_protocol import HostPhase
from clary.control.engines.interface import CutOff
from clary.control.jobs import attempts, events
from clary.control.jobs.job_names import host_of_stream
from clary.control.jobs.training_job import TrainingJob

EMPTY: Mapping[str, str] = {}


def last_signs(job: TrainingJob, heard: Mapping[str, datetime]) -> dict[str, datetime]:
    """Return host -> last time when it certainly worked: from `heard`, else from the host's record."""
    return {**{host: record.facts.phase_started_at for host, record in job.hosts.items()}, **heard}


def dead_agents(
    job: TrainingJob, alive: Mapping[str, bool], *, signs: Mapping[str, datetime], words: Mapping[str, str] = EMPTY
) -> list[events.HostLost]:
    """Return the hosts whose agents have ended without an order to leave.

    Args:
        job: record of the job.
        alive: host -> whether its agent runs.
        signs: result of `last_signs`.
        words: host -> the engine's reason for the end of its agent.
    """
    return [
        events.HostLost(
            host=name,
            why=f"{name} was lost: {words.get(name) or _ended(record.facts.phase)}",
            last_sign_at=signs[name],
        )
        for name, record in job.hosts.items()
        if record.facts.phase not in (HostPhase.LOST, HostPhase.RELEASED) and not alive.get(name, False)
    ]


def _ended(phase: HostPhase) -> str:
    return f"its agent ended in phase {phase.value} without leave"


def cut_off_hosts(
    job: TrainingJob, cut_off: Mapping[str, CutOff], *, before: datetime
) -> list[events.HostLost | events.HostCutOff]:
    """Return the hosts that their gang cannot reach.

    Such a host is lost to the others while a program runs; afterwards it may still send results, and the cut counts
    only if it explains a failure.

    Args:
        job: record of the job.
        cut_off: host -> the engine's facts about the cut.
        before: time when links certainly worked, for hosts for which the engine reports no time.
    """
    found = [
        (name, f"{name} was lost: {host.why}", host.last_well_at or before)
        for name, host in cut_off.items()
        if name in job.hosts
    ]
    if attempts.awaits_evidence(job):
        return [events.HostCutOff(host=name, why=why, last_sign_at=at) for name, why, at in found]
    return [
        events.HostLost(host=name, why=why, last_sign_at=at, is_cut_off=True)
        for name, why, at in found
        if job.hosts[name].facts.phase is HostPhase.RUNNING
    ]


def may_lack_agents(job: TrainingJob) -> bool:
    """Whether a launch may have been interrupted: a host has not reported."""
    return any(record.report_number == 0 for record in job.hosts.values())


def heard_hosts(job: TrainingJob, log_ends: Mapping[str, int]) -> frozenset[str]:
    """Return the hosts whose agents have reported, or have sent lines of their logs, in the current attempt.

    Such a host gets no second agent in its attempt: that would count its reports and its lines from the beginning, and
    they would be dropped as repetitions.

    Args:
        job: record of the job.
        log_ends: log stream -> number of its next line.
    """
    reported = {name for name, record in job.hosts.items() if record.report_number > 0}
    wrote = {host_of_stream(stream) for stream, end in log_ends.items() if end > job.log_bases.get(stream, 0)}
    return frozenset(reported | (wrote & job.hosts.keys()))


def can_repeat_launch(heard: frozenset[str], alive: Mapping[str, bool]) -> bool:
    """Whether an interrupted launch can be repeated in its attempt: every heard host still has its agent.

    Otherwise a host is lost, and the attempt ends. Running agents are not started again.

    Args:
        heard: result of `heard_hosts`.
        alive: host -> whether its agent runs.
    """
    return all(alive.get(name, False) for name in heard)


def is_unheard(job: TrainingJob) -> bool:
    """Whether no agent of the attempt has reported yet."""
    return all(record.report_number == 0 for record in job.hosts.values())
