"""Reads the measurements of a job's hosts for profiler rules and reports.

Where: `profiler_rules` calls it while jobs run and at their end, `server.pages.profiler_report_page` when a user opens
a report.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from clary import __version__
from clary.base.errors import ContractError
from clary.control.analysis.ledger import ledger
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import TrainingJob
from clary.control.profiling.measurements import JUDGED_NAMES, MS_PER_S, NAMES, HostShape, Measurements, measurements_of
from clary.control.profiling.report.facts import ReportFacts, ReportHost
from clary.control.reconcile.job_stragglers import whole_verdict
from clary.control.series.queries import FINE_MS, MAX_POINTS, SeriesAnswer, SeriesQuery

MOST_POINTS, LEAST_POINTS = 720, 60  # points of one series
POINTS_OF_A_LOOK = 360
LONG_STEP_MS = 2_000  # from this step on, roll-ups of 10 s are read, 1/20 as many as rows
DEFAULT_INTERVAL_S = 0.5
# estimates; if an answer would be too long, the query is repeated with fewer points
_SERIES_OF_HOST, _SERIES_OF_RANK, _SERIES_OF_GPU = 25, 14, 8
_MOST_TRIES = 6


class SeriesReader(Protocol):
    """The part of the series store that is used here."""

    async def query(self, query: SeriesQuery) -> SeriesAnswer:
        """Return the points of a query; raises ContractError if they are too many."""


@dataclass(frozen=True, kw_only=True)
class JobMeasurements:
    """Measurements, and facts about missing ones."""

    measurements: Measurements
    num_dropped: int = 0
    damaged: tuple[str, ...] = ()


async def look_at(series: SeriesReader, job: TrainingJob, *, now: datetime) -> JobMeasurements:
    """Return the measurements for rules that can fire, coarser than for a report. Raises: StoreError.

    Args:
        series: reader of the series of all jobs.
        job: a job whose program has begun.
        now: end of the span while the job runs.
    """
    return await read_measurements(series, job, now=now, names=JUDGED_NAMES, most_points=POINTS_OF_A_LOOK)


async def read_measurements(
    series: SeriesReader, job: TrainingJob, *, now: datetime, names: str = NAMES, most_points: int = MOST_POINTS
) -> JobMeasurements:
    """Return all measurements of a job, coarse enough for one answer.

    Args:
        series: reader of the series of all jobs.
        job: a job that runs or has ended.
        now: end of the span while the job runs.
        names: patterns of the series to read, separated by commas.
        most_points: largest number of points of a series; less for jobs of many hosts.
    Raises: StoreError.
    """
    start_ms = int((job.training_started_at or job.created_at).timestamp() * MS_PER_S)
    end_ms = max(start_ms + 1, int((job.training_ended_at or now).timestamp() * MS_PER_S) + MS_PER_S)
    hosts = _planned_hosts(job)
    interval_s = (job.plan or {}).get("metrics_interval_s") or DEFAULT_INTERVAL_S
    step_ms = _step_ms(end_ms - start_ms, min(most_points, _num_points(hosts)), max(1, round(interval_s * MS_PER_S)))
    for _ in range(_MOST_TRIES):
        query = SeriesQuery(job_name=job.name, start_ms=start_ms, end_ms=end_ms, step_ms=step_ms, names=names)
        try:
            answer = await series.query(query)
        except ContractError:  # more series than expected
            step_ms *= 2
            continue
        shapes = [HostShape(name=host.name, num_cpus=host.num_cpus, num_gpus=host.num_gpus) for host in hosts]
        measured = await asyncio.to_thread(  # there may be many points
            measurements_of,
            answer.series,
            shapes,
            step_ms=step_ms,
            until_ms=min(end_ms, _ms(now)),
            breaks_ms=[_ms(attempt.ended_at) for attempt in job.past_attempts],
            is_over=job.is_terminal,
        )
        return JobMeasurements(measurements=measured, num_dropped=answer.num_dropped, damaged=answer.damaged)
    shapes = [HostShape(name=host.name, num_cpus=host.num_cpus, num_gpus=host.num_gpus) for host in hosts]
    nothing = measurements_of([], shapes, step_ms=step_ms, until_ms=end_ms, is_over=job.is_terminal)
    return JobMeasurements(measurements=nothing, damaged=("the job has more series than one answer holds",))


def report_facts(job: TrainingJob, measured: JobMeasurements, *, now: datetime) -> ReportFacts:
    """Return the facts of a job that its report shows in addition to the series.

    Args:
        job: a job that runs or has ended.
        measured: result of `read_measurements`.
        now: time of the report, and end of unfinished spans.
    """
    request = JobRequest(job.request)
    spent = ledger(job, now=now)
    seconds_of = {host.name: host.seconds for host in spent.hosts}
    environment = (job.plan or {}).get("environment") or {}
    straggler = whole_verdict(measured.measurements)
    return ReportFacts(
        job_name=job.name,
        status=job.status.value,
        secondary_status=job.secondary_status.value,
        image=request.image,
        environment=environment.get("name", ""),
        failure_reason="" if job.failure is None else job.failure.reason,
        created_at=job.created_at,
        started_at=job.training_started_at,
        ended_at=job.training_ended_at,
        written_at=now,
        wall_s=spent.wall_s,
        goodput=spent.goodput,
        seconds=spent.seconds,
        num_attempts=spent.num_attempts,
        hosts=[
            ReportHost(
                name=host.name,
                instance_type=host.instance_type,
                num_cpus=host.num_cpus,
                num_gpus=host.num_gpus,
                num_processes=host.num_processes,
                seconds=seconds_of.get(host.name, {}),
            )
            for host in _planned_hosts(job)
        ],
        num_dropped=measured.num_dropped,
        damaged=measured.damaged,
        straggler=straggler.text,
        straggler_evidence=straggler.evidence,
        has_straggler=straggler.is_found,
        version=__version__,
    )


def _planned_hosts(job: TrainingJob) -> list[ReportHost]:
    """Return the hosts of the current attempt; without a current attempt, the hosts of the last attempt."""
    hosts: Sequence[Mapping[str, Any]]
    if job.plan is not None:
        hosts = job.plan.get("hosts", ())
    else:
        hosts = job.past_attempts[-1].planned_hosts if job.past_attempts else ()
    return [
        ReportHost(
            name=host["name"],
            instance_type=host["instance_type"],
            num_cpus=float(host["resources"]["num_cpus"]),
            num_gpus=len(host["resources"].get("gpu_indices") or ()),
            num_processes=host["processes_per_host"],
        )
        for host in hosts
    ]


def _num_points(hosts: list[ReportHost]) -> int:
    """Return the largest number of points of a series, so that all series fit into one answer."""
    num_series = sum(
        _SERIES_OF_HOST + _SERIES_OF_RANK * host.num_processes + _SERIES_OF_GPU * host.num_gpus for host in hosts
    )
    return max(LEAST_POINTS, min(MOST_POINTS, MAX_POINTS // max(1, num_series)))


def _step_ms(span_ms: int, num_points: int, interval_ms: int) -> int:
    """Return a step in ms that is a multiple of the row interval, or of the roll-up step for long spans."""
    step_ms = math.ceil(span_ms / num_points)
    unit_ms = FINE_MS if step_ms > LONG_STEP_MS else interval_ms
    return max(unit_ms, math.ceil(step_ms / unit_ms) * unit_ms)


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * MS_PER_S)
