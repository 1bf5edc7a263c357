"""Sums the time of a job: every second of every host, by use. Pure.

Where: `clary describe` and the job's page call it; `time_parts` cuts the time into parts, `billing` computes the money.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from clary.control.analysis.time_parts import Stretch, TimePart, cut_time
from clary.control.jobs.training_job import TrainingJob


@dataclass(frozen=True, kw_only=True)
class HostTime:
    """One host's time, in seconds; parts without time are left out."""

    name: str
    seconds: Mapping[str, float]  # value of TimePart -> seconds


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """A job's time from its creation to its end, or to the moment of the request."""

    until: datetime
    wall_s: float  # wall time of the job, to which each host's parts add up
    hosts: tuple[HostTime, ...]
    seconds: Mapping[str, float]  # sums over all hosts, in the order of TimePart
    goodput: float  # productive time divided by the time of all hosts, 0 to 1
    num_attempts: int  # number of attempts that have begun
    num_reclaimed: int  # attempts that ended because their capacity was reclaimed
    num_restarted: int  # attempts that ended by a failure and were followed by another attempt


def ledger(job: TrainingJob, *, now: datetime) -> Ledger:
    """Add up a job's time.

    Args:
        job: the record.
        now: end of the counted time of a job that has not ended.
    """
    of_hosts = cut_time(job, now=now)
    wall = max(
        (stretches[-1].end - job.created_at for stretches in of_hosts.values() if stretches), default=timedelta()
    )
    everything = [stretch for stretches in of_hosts.values() for stretch in stretches]
    total = _add_up(everything)
    all_time = wall * len(of_hosts)
    kinds = [attempt.kind.value for attempt in job.past_attempts]
    return Ledger(
        until=job.created_at + wall,
        wall_s=wall.total_seconds(),
        hosts=tuple(HostTime(name=name, seconds=_seconds(_add_up(own))) for name, own in of_hosts.items()),
        seconds=_seconds(total),
        goodput=total.get(TimePart.PRODUCTIVE, timedelta()) / all_time if all_time else 0.0,
        num_attempts=job.attempt,
        num_reclaimed=kinds.count("reclaimed"),
        num_restarted=kinds.count("restarted"),
    )


def _add_up(stretches: Iterable[Stretch]) -> dict[TimePart, timedelta]:
    total: dict[TimePart, timedelta] = {}
    for stretch in stretches:
        total[stretch.part] = total.get(stretch.part, timedelta()) + stretch.length
    return total


def _seconds(total: Mapping[TimePart, timedelta]) -> dict[str, float]:
    return {part.value: total[part].total_seconds() for part in TimePart if part in total}
