"""Rows that cannot be read, set aside with a name, a reason and every byte until the owner decides.

Where: `Store` sets aside the rows that `damage.readable` or the sweep found, and repeats its query; users list, release
and drop entries with `clary quarantine`. A job's row stays in its table with a mark: metrics and logs belong to it, and
no new job may have its name. A row of another table is moved.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, text, update

from clary.base.errors import Fault, StoreError
from clary.control.jobs.soundness import complaint
from clary.control.jobs.training_job import TrainingJob
from clary.control.store import job_cards, job_documents
from clary.control.store.damage import DAMAGE, DamagedRow, reason_of, storable
from clary.control.store.series_blocks import Runner
from clary.control.store.tables import (
    JOBS_SOURCE,
    from_microseconds,
    jobs,
    metadata,
    quarantine,
    tags,
    to_microseconds,
)
from clary.control.store.tables import job_cards as cards_table

# A card is derived from its job: an unreadable one is made anew, and its bytes need not be kept.
_DERIVED = cards_table.name
_SQLITE_CASTS = {
    "text": "CAST(:{0} AS TEXT)",
    "integer": "CAST(CAST(:{0} AS TEXT) AS INTEGER)",
    "real": "CAST(CAST(:{0} AS TEXT) AS REAL)",
    "blob": ":{0}",
}


@dataclass(frozen=True, kw_only=True)
class QuarantineEntry:
    """One row that was set aside, or repaired."""

    id: int
    source: str  # table
    name: str  # of the job, or the row's key in words
    reason: str
    found_at: datetime
    is_held: bool  # whether the row waits for a decision; else the entry keeps the old bytes of a repaired row


class NoSuchEntry(StoreError):
    """No entry has this number."""

    default_fault = Fault.USER

    def __init__(self, number: int) -> None:
        super().__init__(f"there is no entry {number} in quarantine; see: clary quarantine list")


class Quarantine:
    """The entries of a database, as `Store.quarantine`."""

    def __init__(self, *, read: Runner, write: Runner) -> None:
        self._read = read
        self._write = write
        self._on_job: Callable[[str], None] = lambda name: None

    def listen(self, on_job: Callable[[str], None]) -> None:
        """Register `on_job`, which is called with the name of every job whose row is found damaged.

        A service that has the job in memory can then repair its row.
        """
        self._on_job = on_job

    async def entries(self) -> list[QuarantineEntry]:
        """Return all entries, oldest first."""
        statement = select(quarantine).order_by(quarantine.c.id)
        return await self._read(lambda connection: [_entry_of(row) for row in connection.execute(statement)])

    async def num_held(self) -> int:
        """Return the number of rows that wait for a decision."""
        statement = select(func.count()).select_from(quarantine).where(quarantine.c.is_held == 1)
        return await self._read(lambda connection: int(connection.execute(statement).scalar_one()))

    async def contents(self, number: int) -> Mapping[str, Mapping[str, str]]:
        """Return an entry's column -> type and base64 bytes; raises NoSuchEntry."""
        row = await self._read(lambda connection: _require(connection, number))
        found: Mapping[str, Mapping[str, str]] = json.loads(row.contents)
        return found

    async def hold(self, rows: Sequence[DamagedRow]) -> None:
        """Set rows aside; skip rows that were deleted or set aside already."""
        await self._write(lambda connection: hold_all(connection, rows))
        for row in rows:
            if row.table == JOBS_SOURCE:
                self._on_job(row.name)

    async def release(self, number: int) -> TrainingJob | None:
        """Put a row back; return the job if it is the row of a job. Delete the entry, also that of a repaired row.

        Raises: NoSuchEntry; StoreError if the row can still not be read, or a new row has its key.
        """

        def take_back(connection: Connection) -> TrainingJob | None:
            entry = _require(connection, number)
            job = None
            if entry.is_held:
                if entry.source == JOBS_SOURCE:
                    job = _release_job(connection, entry)
                else:
                    _put_back(connection, entry)
            connection.execute(delete(quarantine).where(quarantine.c.id == number))
            return job

        return await self._write(take_back)

    async def drop(self, number: int) -> QuarantineEntry:
        """Delete an entry and its row, for a held job also all its data in the database; raises NoSuchEntry."""

        def give_up(connection: Connection) -> QuarantineEntry:
            entry = _require(connection, number)
            connection.execute(delete(quarantine).where(quarantine.c.id == number))
            if entry.is_held and entry.source == JOBS_SOURCE:
                at = (jobs.c.name == entry.name) & (jobs.c.is_quarantined == 1)
                arn = connection.execute(delete(jobs).where(at).returning(jobs.c.arn)).scalar()
                connection.execute(delete(tags).where(tags.c.arn == arn))
            return _entry_of(entry)

        return await self._write(give_up)


def hold_all(connection: Connection, rows: Iterable[DamagedRow]) -> int:
    """Set rows aside inside a transaction; return the number of rows that were set aside or repaired."""
    return sum(_hold(connection, row) for row in rows)


def mend_from_memory(connection: Connection, name: str, *, reason: str) -> None:
    """Keep the bytes of a job's row before it is rewritten from the service's memory.

    Args:
        connection: inside the transaction that rewrites the row.
        name: name of the job.
        reason: why the row cannot be read; empty if it was set aside already.
    """
    if reason:
        _keep(connection, DamagedRow(table=JOBS_SOURCE, key={"name": name}, name=name, reason=reason), is_held=False)
    entries = (quarantine.c.source == JOBS_SOURCE) & (quarantine.c.name == name)
    connection.execute(update(quarantine).where(entries).values(is_held=0))
    connection.execute(update(jobs).where(jobs.c.name == name).values(is_quarantined=0))


def _hold(connection: Connection, row: DamagedRow) -> bool:
    if row.table == JOBS_SOURCE:
        return _hold_job(connection, row)
    if row.table != _DERIVED and not _keep(connection, row, is_held=True):
        return False
    condition, values = _condition(row.key)
    taken = connection.execute(text(f"DELETE FROM {row.table} WHERE {condition}"), values)  # noqa: S608 - our tables
    if row.table == _DERIVED:
        _mend_card(connection, row)
    return taken.rowcount > 0


def _hold_job(connection: Connection, row: DamagedRow) -> bool:
    """Mark a job's row; if only its columns are damaged, repair it from its document."""
    if "name" in row.key and _reads_again(connection, row.key["name"]):
        return False  # another call has repaired it
    condition, values = _condition(row.key)
    where = f"{condition} AND is_quarantined = 0"
    document = connection.execute(text(f"SELECT document FROM jobs WHERE {where}"), values).scalar()  # noqa: S608
    mended = _job_behind(document, row)
    if not _keep(connection, row, is_held=mended is None, extra=" AND is_quarantined = 0"):
        return False
    if mended is not None:
        connection.execute(job_documents.UPDATE_JOB, job_documents.row_of(mended))
        connection.execute(job_cards.UPSERT_CARD, job_cards.card_row(mended))
        return True
    connection.execute(text(f"UPDATE jobs SET is_quarantined = 1 WHERE {where}"), values)  # noqa: S608
    connection.execute(delete(cards_table).where(cards_table.c.name == row.name))
    return True


def _reads_again(connection: Connection, name: Any) -> bool:
    found = connection.execute(job_documents.SELECT_JOB, {"name": name}).one_or_none()
    try:
        return found is not None and job_documents.job_of_row(found).name == name
    except DAMAGE:
        return False


def _job_behind(document: Any, row: DamagedRow) -> TrainingJob | None:
    """Return the job of a row whose document is intact and whose columns alone are damaged; None otherwise.

    A contradiction between intact columns and the document is not repaired: either may be right.
    """
    if "rowid" not in row.key:
        return None
    try:
        job = job_documents.job_of(document)
    except DAMAGE:
        return None
    return job if job.name == row.name and not complaint(job) else None


def _mend_card(connection: Connection, row: DamagedRow) -> None:
    """Make a card anew from its job, if the job can be read."""
    found = connection.execute(job_documents.SELECT_JOB, {"name": row.key.get("name", row.name)}).one_or_none()
    if found is None or found.is_quarantined:
        return
    try:
        connection.execute(job_cards.UPSERT_CARD, job_cards.card_row(job_documents.job_of_row(found)))
    except DAMAGE:
        return  # reading the job will report the damage


def _keep(connection: Connection, row: DamagedRow, *, is_held: bool, extra: str = "") -> bool:
    """Copy a row's bytes; return whether the row exists."""
    condition, values = _condition(row.key)
    contents = _raw(connection, row.table, condition + extra, values)
    if contents is None:
        return False
    connection.execute(
        insert(quarantine).values(
            source=row.table,
            name=storable(row.name),
            reason=storable(row.reason),
            found_at=to_microseconds(datetime.now(UTC)),
            is_held=int(is_held),
            contents=json.dumps(contents),
        )
    )
    return True


def _raw(
    connection: Connection, table: str, condition: str, values: Mapping[str, Any]
) -> dict[str, dict[str, str]] | None:
    """Return column -> type and bytes of a row, as stored in the database."""
    names = [column.name for column in metadata.tables[table].c]
    if connection.dialect.name == "sqlite":
        parts = ", ".join(f"typeof({name}), CAST({name} AS BLOB)" for name in names)
        found = connection.execute(text(f"SELECT {parts} FROM {table} WHERE {condition}"), values).first()  # noqa: S608
        if found is None:
            return None
        pairs = [(found[2 * index], found[2 * index + 1]) for index in range(len(names))]
    else:
        found = connection.execute(text(f"SELECT {', '.join(names)} FROM {table} WHERE {condition}"), values).first()  # noqa: S608
        if found is None:
            return None
        pairs = [_typed(value) for value in found]
    return {
        name: {"type": kind, "base64": base64.b64encode(bytes(data or b"")).decode()}
        for name, (kind, data) in zip(names, pairs, strict=True)
    }


def _typed(value: Any) -> tuple[str, bytes]:
    match value:
        case None:
            return "null", b""
        case bytes() | memoryview():
            return "blob", bytes(value)
        case int():
            return "integer", str(value).encode()
        case float():
            return "real", repr(value).encode()
    return "text", str(value).encode("utf-8", "surrogateescape")


def _put_back(connection: Connection, entry: Row[Any]) -> None:
    """Insert a moved row again, byte for byte; raises StoreError if the table does not accept it any more."""
    columns: dict[str, dict[str, str]] = json.loads(entry.contents)
    is_sqlite = connection.dialect.name == "sqlite"
    parts, values = [], {}
    for name, cell in columns.items():
        kind, data = cell["type"], base64.b64decode(cell["base64"])
        if kind == "null":
            parts.append("NULL")
            continue
        parts.append(_SQLITE_CASTS[kind].format(name) if is_sqlite else f":{name}")
        values[name] = data if is_sqlite else _value(kind, data)
    overriding = "" if is_sqlite else " OVERRIDING SYSTEM VALUE"
    statement = f"INSERT INTO {entry.source} ({', '.join(columns)}){overriding} VALUES ({', '.join(parts)})"  # noqa: S608
    connection.execute(text(statement), values)


def _value(kind: str, data: bytes) -> Any:
    match kind:
        case "integer":
            return int(data)
        case "real":
            return float(data)
        case "blob":
            return data
    return data.decode()


def _release_job(connection: Connection, entry: Row[Any]) -> TrainingJob:
    document = connection.execute(
        select(jobs.c.document).where(jobs.c.name == entry.name, jobs.c.is_quarantined == 1)
    ).scalar()
    if document is None:
        raise StoreError(
            f"job {entry.name!r} has no row that is set aside: it was deleted; give the entry up with: "
            f"clary quarantine drop {entry.id}",
            fault=Fault.USER,
        )
    try:
        job = job_documents.job_of(document)
        wrong = complaint(job) or ("" if job.name == entry.name else f"it is that of job {job.name!r}")
    except DAMAGE as error:
        wrong = reason_of(error)
    if wrong:
        raise StoreError(
            f"the record of job {entry.name!r} can still not be read: {wrong}. Mend the column `document` of its row "
            f"in the table `jobs`, or give it up with: clary quarantine drop {entry.id}",
            fault=Fault.USER,
        )
    connection.execute(update(jobs).where(jobs.c.name == entry.name).values(is_quarantined=0))
    connection.execute(job_documents.UPDATE_JOB, job_documents.row_of(job))  # columns are set from the document
    connection.execute(job_cards.UPSERT_CARD, job_cards.card_row(job))
    return job


def _condition(key: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    return " AND ".join(f"{column} = :key_{column}" for column in key), {
        f"key_{column}": value for column, value in key.items()
    }


def _require(connection: Connection, number: int) -> Row[Any]:
    row = connection.execute(select(quarantine).where(quarantine.c.id == number)).one_or_none()
    if row is None:
        raise NoSuchEntry(number)
    return row


def _entry_of(row: Row[Any]) -> QuarantineEntry:
    return QuarantineEntry(
        id=row.id,
        source=row.source,
        name=row.name,
        reason=row.reason,
        found_at=from_microseconds(row.found_at),
        is_held=bool(row.is_held),
    )
