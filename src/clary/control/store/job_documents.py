"""Jobs in the table `jobs`: a document that holds the whole job, and columns for what is asked for.

Where: `store` writes and reads them, in transactions of its own.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import text

from clary.contract.plain import from_plain, to_plain
from clary.control.jobs.training_job import TrainingJob
from clary.control.store.tables import to_microseconds

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
SELECT_DOCUMENT = text("SELECT document FROM jobs WHERE name = :name")
# Spelled as the partial index spells it, or SQLite would not use that index.
SELECT_UNFINISHED = text("SELECT document FROM jobs WHERE is_terminal = 0 OR is_released = 0 ORDER BY created_at, name")


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
    """Return the job that a document holds."""
    return from_plain(TrainingJob, json.loads(document))
