"""Findings of programs about their own training: values, pictures and progress, each stored once.

Where: the training gateway appends findings; the console's pages read them. Values are in the table of metrics,
together with the values of metric definitions and of BatchPutMetrics.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, exists, func, insert, select, text

from clary.base.plain import from_plain, to_plain
from clary.contract.training_values import TrainingProgress
from clary.control.jobs.training_job import FinalMetric
from clary.control.jobs.training_status import standing
from clary.control.store.damage import readable
from clary.control.store.errors import JobNotFound
from clary.control.store.series_blocks import Runner
from clary.control.store.tables import (
    from_microseconds,
    jobs,
    metrics,
    to_microseconds,
    training_ends,
)
from clary.control.store.training_pictures import (
    Picture,
    TagFacts,
    picture_by_id,
    pictures_of,
    put_pictures,
    tags_of,
)

_END_KEY = (training_ends.c.job_name, training_ends.c.attempt, training_ends.c.host)
MAX_POINTS = 10_000  # maximum number of values or pictures in one answer

_CLAIM_END = text(
    "INSERT INTO training_ends (job_name, attempt, host, next_finding, num_dropped)"
    " VALUES (:job_name, :attempt, :host, 0, 0) ON CONFLICT (job_name, attempt, host) DO NOTHING"
)
_SET_END = text(
    "INSERT INTO training_ends (job_name, attempt, host, next_finding, num_dropped, progress)"
    " VALUES (:job_name, :attempt, :host, :next_finding, :num_dropped, :progress) ON CONFLICT (job_name, attempt, host)"
    " DO UPDATE SET next_finding = excluded.next_finding, num_dropped = excluded.num_dropped,"
    " progress = excluded.progress"
)


@dataclass(frozen=True, kw_only=True)
class MetricFacts:
    """Facts about all values of one metric of a job."""

    name: str
    num_values: int
    first_at: datetime
    last_at: datetime
    least: float | None
    greatest: float | None


@dataclass(frozen=True, kw_only=True)
class HostProgress:
    """Progress of a host's program."""

    host: str
    progress: TrainingProgress


class TrainingRecords:
    """Findings of trainings in a database, as `Store.training`."""

    def __init__(self, *, read: Runner, write: Runner) -> None:
        self._read = read
        self._write = write

    async def append(
        self,
        job_name: str,
        attempt: int,
        host: str,
        *,
        first: int,
        findings: Sequence[FinalMetric | Picture],
        progress: TrainingProgress | None = None,
        num_dropped: int = 0,
    ) -> tuple[int, int]:
        """Store findings of a host, each once even if it is sent again.

        Args:
            job_name: job of the host.
            attempt: number of the attempt; the finding numbers of each attempt begin at 0.
            host: algo-N.
            first: number of the first finding; missing findings before it were dropped.
            findings: in order of their numbers.
            progress: replaces the stored progress if it takes precedence; None keeps the stored progress.
            num_dropped: number of findings that the agent has dropped.
        Returns: the number of the next expected finding, and how many of `findings` were stored already.
        Raises: JobNotFound.
        """
        owner = {"job_name": job_name, "attempt": attempt, "host": host}

        def put(connection: Connection) -> tuple[int, int]:
            # Lock the job against deletion until the findings are written; SQLite has only one writer anyway.
            holds = select(jobs.c.name).where(jobs.c.name == job_name).with_for_update(read=True, key_share=True)
            if connection.execute(holds).scalar() is None:
                raise JobNotFound(job_name)
            ends = select(training_ends.c.next_finding, training_ends.c.num_dropped, training_ends.c.progress).where(
                training_ends.c.job_name == job_name,
                training_ends.c.attempt == attempt,
                training_ends.c.host == host,
            )
            end_row = connection.execute(ends.with_for_update()).one_or_none()
            if end_row is None:
                # No row to lock exists yet: if two services store a host's first findings at once, the second waits
                # here.
                connection.execute(_CLAIM_END, owner)
                end_row = connection.execute(ends.with_for_update()).one()
            known, dropped, stood = end_row
            readable([end_row], _told_of, table=training_ends, key=lambda _: owner)
            num_known = min(len(findings), max(0, known - first))
            new = findings[num_known:]
            if values := [_metric_row(job_name, item) for item in new if isinstance(item, FinalMetric)]:
                connection.execute(insert(metrics), values)
            if pictures := [item for item in new if isinstance(item, Picture)]:
                put_pictures(connection, owner, pictures)
            end, told = max(known, first + len(findings)), _told(progress, stood)
            lost = max(dropped, num_dropped)
            if (end, lost, told) != (known, dropped, stood):
                connection.execute(_SET_END, {**owner, "next_finding": end, "num_dropped": lost, "progress": told})
            return end, num_known

        return await self._write(put)

    async def newest_job(self, metric_name: str) -> str | None:
        """Return the name of the newest job that has values of a metric; None if no job has."""
        has_values = exists().where(metrics.c.job_name == jobs.c.name, metrics.c.metric_name == metric_name)
        statement = select(jobs.c.name).where(has_values).order_by(jobs.c.created_at.desc()).limit(1)
        return await self._read(lambda connection: connection.execute(statement).scalar())

    async def progress_of(self, job_name: str, attempt: int) -> list[HostProgress]:
        """Return the progress of an attempt's hosts."""
        statement = select(*_END_KEY, training_ends.c.progress).where(
            training_ends.c.job_name == job_name,
            training_ends.c.attempt == attempt,
            training_ends.c.progress.is_not(None),
        )
        return await self._read(
            lambda connection: readable(connection.execute(statement), _progress_of, table=training_ends, key=_end_key)
        )

    async def metric_facts(self, job_name: str) -> list[MetricFacts]:
        """Return every metric of a job, by name."""
        statement = (
            select(
                metrics.c.metric_name,
                func.count(),
                func.min(metrics.c.at),
                func.max(metrics.c.at),
                func.min(metrics.c.value),
                func.max(metrics.c.value),
            )
            .where(metrics.c.job_name == job_name)
            .group_by(metrics.c.metric_name)
            .order_by(metrics.c.metric_name)
        )

        def ask(connection: Connection) -> list[MetricFacts]:
            return [
                MetricFacts(
                    name=name,
                    num_values=count,
                    first_at=from_microseconds(first),
                    last_at=from_microseconds(last),
                    least=None if least is None else float(least),
                    greatest=None if greatest is None else float(greatest),
                )
                for name, count, first, last, least, greatest in connection.execute(statement)
            ]

        return await self._read(ask)

    async def newest_values(self, job_name: str, metric_name: str, *, most: int) -> list[FinalMetric]:
        """Return the last values of a metric, oldest first.

        Args:
            job_name: name of any job.
            metric_name: as it was stored.
            most: number of values, up to `MAX_POINTS`.
        """
        statement = (
            select(metrics.c.at, metrics.c.value, metrics.c.step)
            .where(metrics.c.job_name == job_name, metrics.c.metric_name == metric_name)
            .order_by(metrics.c.at.desc(), metrics.c.id.desc())
            .limit(min(most, MAX_POINTS))
        )
        found = await self._read(lambda connection: values_of(connection.execute(statement), metric_name))
        return found[::-1]

    async def tags(self, job_name: str) -> list[TagFacts]:
        """Return every tag that has histograms or images."""
        return await self._read(lambda connection: tags_of(connection, job_name))

    async def pictures(self, job_name: str, kind: str, tag: str, *, most: int) -> list[Picture]:
        """Return the last pictures of a tag, oldest first; images come without their bytes.

        Args:
            job_name: name of any job.
            kind: a `FindingKind`, image or histogram.
            tag: tag of the pictures.
            most: number of pictures, up to `MAX_POINTS`.
        """
        most = min(most, MAX_POINTS)
        return await self._read(lambda connection: pictures_of(connection, job_name, kind, tag, most=most))

    async def picture(self, job_name: str, picture_id: int) -> Picture | None:
        """Return one picture, or None if the job has no picture with that id."""
        return await self._read(lambda connection: picture_by_id(connection, job_name, picture_id))


def select_values(of_jobs: ColumnElement[bool], metric_name: str, start: datetime, end: datetime) -> Select[Any]:
    """Return the query for values of a metric, oldest first, whose rows `values_of` takes.

    Args:
        of_jobs: condition on the column `metrics.c.job_name`.
        metric_name: as it was stored, case included.
        start: begin of the span, inclusive.
        end: end of the span, exclusive.
    """
    is_within = metrics.c.at >= to_microseconds(start), metrics.c.at < to_microseconds(end)
    return (
        select(metrics.c.at, metrics.c.value, metrics.c.step)
        .where(of_jobs, metrics.c.metric_name == metric_name, *is_within)
        .order_by(metrics.c.at, metrics.c.id)
    )


def values_of(rows: Iterable[Any], metric_name: str) -> list[FinalMetric]:
    """Return rows of time, value and step as values of a metric; raises one of `damage.DAMAGE` for a damaged row."""
    return [
        FinalMetric(
            name=metric_name, value=math.nan if value is None else float(value), at=from_microseconds(at), step=step
        )
        for at, value, step in rows
    ]


def _progress_of(row: Row[Any]) -> HostProgress:
    return HostProgress(host=row.host, progress=from_plain(TrainingProgress, json.loads(row.progress)))


def _end_key(row: Row[Any]) -> Mapping[str, Any]:
    return {"job_name": row.job_name, "attempt": row.attempt, "host": row.host}


def _told_of(row: Row[Any]) -> None:
    """Check a row of `training_ends`; raises one of `damage.DAMAGE` if it is damaged."""
    if not isinstance(row.next_finding, int) or not isinstance(row.num_dropped, int):
        raise TypeError(f"next_finding is {row.next_finding!r}, num_dropped is {row.num_dropped!r}")
    _told(None, row.progress)


def _told(new: TrainingProgress | None, stood: str | None) -> str | None:
    """Return the new or the stored progress, whichever takes precedence, as JSON; None if both are absent."""
    counts = standing(new, None if stood is None else from_plain(TrainingProgress, json.loads(stood)))
    return None if counts is None else json.dumps(to_plain(counts))


def _metric_row(job_name: str, metric: FinalMetric) -> dict[str, Any]:
    return {
        "job_name": job_name,
        "metric_name": metric.name,
        "at": to_microseconds(metric.at),
        "value": None if math.isnan(metric.value) else metric.value,
        "step": metric.step,
    }
