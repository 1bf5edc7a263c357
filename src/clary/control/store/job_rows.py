"""Deletes the rows of a job in batches, because all other writes wait during each batch.

Where: `Store.delete_job` calls it, with one transaction per batch; it deletes the last few rows together with the job's
row.
"""

from __future__ import annotations

from sqlalchemy import Connection, delete, select

from clary.contract.training_values import FindingKind
from clary.control.store.tables import metrics, numbered_documents, series_blocks, training_pictures

# Each batch takes some tens of milliseconds; 250 MB of pictures in one transaction blocked the writer for 2.5 s.
_PIECES = (
    (training_pictures, (training_pictures.c.kind == FindingKind.IMAGE.value,), 40),
    (training_pictures, (), 1_000),
    (series_blocks, (), 200),
    (numbered_documents, (), 40),
    (metrics, (), 10_000),
)


def remove_some(connection: Connection, job_name: str) -> bool:
    """Remove up to one batch of a job's rows from each table, until a batch is full; return whether one was full."""
    for table, conditions, most in _PIECES:
        some = select(table.c.id).where(table.c.job_name == job_name, *conditions).limit(most)
        if connection.execute(delete(table).where(table.c.id.in_(some))).rowcount == most:
            return True
    return False
