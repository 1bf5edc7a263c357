"""Jobs in the table `jobs`: a document with the whole job, and columns for queries.

Where: `store` writes and reads them, in transactions of its own. A row whose document cannot be read, or contradicts
its columns, raises `RowsUnreadable`. A row that was set aside raises `JobUnreadable` if it is read by name; every list
omits it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, select, text

from clary.base.plain import from_plain, to_plain
from clary.control.jobs.soundness import complaint
from clary.control.jobs.training_job import TrainingJob
from clary.control.store.damage import JobUnreadable
from clary.control.store.tables import JOBS_SOURCE, from_microseconds, jobs, quarantine, to_microseconds

INSERT_JOB = text(
    "INSERT INTO jobs (name, arn, status, secondary_status, created_at, modified_at, training_ended_at,"
    " is_terminal, is_released, warm_pool_status, warm_pool, version, document)"
    " VALUES (:name, :arn, :status, :secondary_status, :created_at, :modified_at, :training_ended_at,"
    " :is_terminal, :is_released, :warm_pool_status, :warm_pool, 1, :document) ON CONFLICT (name) DO NOTHING"
)
UPDATE_JOB = text(
    "UPDATE jobs SET status = :status, secondary_status = :secondary_status, created_at = :created_at,"
    " modified_at = :modified_at, training_ended_at = :training_ended_at, is_terminal = :is_terminal,"
    " is_released = :is_released, warm_pool_status = :warm_pool_status, warm_pool = :warm_pool,"
    " version = version + 1, document = :document WHERE name = :name"
)
# The columns that `job_of_row` needs.
READ_COLUMNS = (jobs.c.name, jobs.c.status, jobs.c.is_terminal, jobs.c.is_released, jobs.c.document)
_READ = "SELECT name, status, is_terminal, is_released, document, is_quarantined FROM jobs"
SELECT_JOB = text(f"{_READ} WHERE name = :name")
# Spelled as in the partial index: otherwise SQLite would not use it.
SELECT_UNFINISHED = text(
    f"{_READ} WHERE (is_terminal = 0 OR is_released = 0) AND is_quarantined = 0 ORDER BY created_at, name"
)


def row_of(job: TrainingJob) -> dict[str, Any]:
    """Return the row of a job, for `INSERT_JOB` and `UPDATE_JOB`."""
    return {
        "name": job.name,
        "arn": job.arn,
        "status": job.status.value,
        "secondary_status": job.secondary_status.value,
        "created_at": to_microseconds(job.created_at),
        "modified_at": to_microseconds(job.modified_at),
        "training_ended_at": None if job.training_ended_at is None else to_microseconds(job.training_ended_at),
        "is_terminal": int(job.is_terminal),
        "is_released": int(job.is_released),
        "warm_pool_status": None if job.warm_pool is None else job.warm_pool.status.value,
        "warm_pool": None if job.warm_pool is None else json.dumps(to_plain(job.warm_pool)),
        "document": json.dumps(to_plain(job), separators=(",", ":")),
    }


def job_of(document: str) -> TrainingJob:
    """Return the job in a document. Raises: one of `damage.DAMAGE` for a damaged document."""
    document.encode()  # bytes that are not UTF-8 were read as lone surrogates, which JSON would accept
    return from_plain(TrainingJob, json.loads(document))


def job_of_row(row: Row[Any]) -> TrainingJob:
    """Return the job of a row; raises one of `damage.DAMAGE` if it is damaged."""
    job = job_of(row.document)
    if (wrong := complaint(job)) != "":
        raise ValueError(wrong)
    said = (job.name, job.status.value, int(job.is_terminal), int(job.is_released))
    if (row.name, row.status, row.is_terminal, row.is_released) != said:
        raise ValueError(
            f"its columns name {row.name!r}, {row.status!r}, terminal {row.is_terminal!r}, released "
            f"{row.is_released!r}; its document says {said[0]!r}, {said[1]!r}, terminal {said[2]}, released {said[3]}"
        )
    return job


def key_of_row(row: Row[Any]) -> Mapping[str, Any]:
    """Return the key (column -> value) of a job's row."""
    return {"name": row.name}


def refuse(connection: Connection, name: str) -> JobUnreadable:
    """Return the error that tells why the job called `name` was set aside."""
    at = (quarantine.c.source == JOBS_SOURCE) & (quarantine.c.name == name) & (quarantine.c.is_held == 1)
    entry = connection.execute(select(quarantine).where(at).order_by(quarantine.c.id.desc()).limit(1)).one_or_none()
    if entry is None:  # the row is marked, but has no entry in the quarantine
        return JobUnreadable(name, entry=0, reason="it is marked, and nothing says why", found_at="an unknown day")
    found_at = from_microseconds(entry.found_at).strftime("%Y-%m-%d %H:%M UTC")
    return JobUnreadable(name, entry=entry.id, reason=entry.reason, found_at=found_at)
