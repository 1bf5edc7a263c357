"""The store: all records except logs and objects in one database, durable when a call returns.

Where: services create and list jobs; the reconciler moves jobs from state to state. Writes go through one thread that
commits many at once (`group_commit`); reads run on a few threads with connections of their own and see every write that
was awaited. The store of a service writes under the service's lease: all its writes fail once another service has it.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, delete, insert, select, text
from sqlalchemy.exc import SQLAlchemyError

from clary.base.errors import Fault, StoreError
from clary.control.jobs.training_job import FinalMetric, TrainingJob
from clary.control.store import job_cards, job_documents, job_queries, job_rows, leases, tokens
from clary.control.store.damage import DAMAGE, DamagedRow, RowsUnreadable, readable, reason_of
from clary.control.store.damage_sweep import sweep_all, sweep_jobs
from clary.control.store.database import describe_failure, open_engines, parse_url
from clary.control.store.database_life import DatabaseLife
from clary.control.store.documents.numbered_documents import NumberedDocuments
from clary.control.store.errors import JobExists, JobNotFound, StaleLease
from clary.control.store.file_guard import FileGuard
from clary.control.store.group_commit import GroupCommitWriter
from clary.control.store.job_cards import JobCards
from clary.control.store.job_queries import JobPage, JobQuery
from clary.control.store.leases import Fence, Lease
from clary.control.store.metric_values.metric_aggregates import MetricAggregates
from clary.control.store.metric_values.metric_allowance import MetricAllowance
from clary.control.store.metric_values.metric_curves import MetricCurves
from clary.control.store.migrations import migrate
from clary.control.store.quarantine import Quarantine, hold_all, mend_from_memory
from clary.control.store.series_blocks import SeriesBlocks
from clary.control.store.tables import jobs, metrics, properties, tags, to_microseconds
from clary.control.store.tracking.experiments import ExperimentStore
from clary.control.store.tracking.tuning_records import TuningRecords, add_trial
from clary.control.store.training_records import TrainingRecords, select_values, values_of
from clary.control.tuning.tuning_job import Trial

T = TypeVar("T")

NUM_READERS = 4
READ_TIMEOUT_S = 30.0
_MOST_TRIES = 5  # attempts after which damaged rows are set aside; one more attempt follows

_KEY_BYTES = 32  # length of the key that signs page tokens

_SELECT_FOR_UPDATE = select(jobs.c.name, jobs.c.document, jobs.c.is_quarantined).with_for_update()
_SET_TAG = text(
    "INSERT INTO tags (arn, tag_key, tag_value) VALUES (:arn, :tag_key, :tag_value)"
    " ON CONFLICT (arn, tag_key) DO UPDATE SET tag_value = excluded.tag_value"
)


class Store:
    """All data that must survive a restart, except logs and objects.

    Use `await Store.open(url)`; one store serves one event loop, and any number of tasks on it. When a call returns,
    its effect is on disk. Every call raises StoreError when the database fails; then no change was written, unless the
    error says that the outcome is unknown. After `act_under`, every write may raise StaleLease.
    """

    def __init__(
        self, *, engines: tuple[Engine, Engine], token_key: bytes, place: str, file: Path | None = None
    ) -> None:
        self._write_engine, self._read_engine = engines
        self._token_key = token_key
        self.file = file  # file of a SQLite database; None for a server
        self._place = place  # the URL without its password, for error texts
        guard = None if file is None else FileGuard(file, engines).look
        self._writer = GroupCommitWriter(self._write_engine, before_commit=guard)
        self._readers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="clary-store-reader")
        self._is_closed = False
        self.quarantine = Quarantine(read=self._ask, write=self._writer.run)  # rows that cannot be read
        self.cards = JobCards(read=self._read, token_key=token_key)  # rows of lists of jobs
        self.curves = MetricCurves(read=self._read)  # metrics, with fewer points
        self.aggregates = MetricAggregates(read=self._read)  # metrics, by periods of time
        self.allowance = MetricAllowance()  # metrics that programs may add
        self.series = SeriesBlocks(  # measurements of hosts
            read=self._read, write=self._write, write_together=self._writer.run_together
        )
        self.experiments = ExperimentStore(read=self._read, write=self._write, token_key=token_key)
        self.tuning = TuningRecords(read=self._read, write=self._write, token_key=token_key)
        self.training = TrainingRecords(read=self._read, write=self._write)  # findings of programs about their training

    @classmethod
    async def open(cls, database_url: str | Path, *, life: DatabaseLife | None = None) -> Store:
        """Open a database, create or migrate its tables, and start the threads.

        Args:
            database_url: `sqlite:///PATH`, `postgresql://...` or `postgresql+psycopg://...`; a path is the file of a
                SQLite.
            life: the state folder's record of its database; None accepts any database, also a new one.

        Raises: StoreError for an invalid URL, and for a database that cannot be reached, is damaged, is not the
            folder's own or is newer than this release; then no thread is left running.
        """
        return await asyncio.to_thread(cls._open, database_url, life)

    @classmethod
    def _open(cls, database_url: str | Path, life: DatabaseLife | None) -> Store:
        url = parse_url(database_url)
        place = url.render_as_string(hide_password=True)
        file = Path(str(url.database)) if url.get_backend_name() == "sqlite" else None
        if life is not None and file is not None:
            life.prepare_file(file)
        way_out = life.way_out(file) if life is not None else ""
        engines = open_engines(url, num_readers=NUM_READERS)
        try:
            with engines[0].begin() as connection:
                if life is not None:
                    life.require_own(connection, place, way_out)
                migrate(connection)
                if life is not None:
                    life.take_note(connection, place, way_out)
                hold_all(connection, sweep_jobs(connection))
                key = _token_key(connection)
            return cls(engines=engines, token_key=key, place=place, file=file)
        except SQLAlchemyError as error:
            _dispose(engines)
            raise describe_failure(f"cannot open the database {place}", error) from error
        except OSError as error:
            _dispose(engines)
            raise StoreError(f"cannot open the database {place}: {error}", fault=Fault.INFRASTRUCTURE) from error
        except StoreError:
            _dispose(engines)
            raise

    async def close(self) -> None:
        """Finish pending writes and reads, end the threads and close the connections; closing twice does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._writer.close()
        finally:
            await asyncio.to_thread(self._readers.shutdown)
            await asyncio.to_thread(_dispose, (self._write_engine, self._read_engine))

    def documents(self, kind: str) -> NumberedDocuments:
        """Return the numbered documents of a kind, one of "dumps", "profiles" and "rehearsals"."""
        return NumberedDocuments(kind, read=self._read, write=self._write)

    async def create_job(self, job: TrainingJob, tags: Mapping[str, str], *, trial: Trial | None = None) -> None:
        """Store a new job and its tags.

        Args:
            job: the record.
            tags: tags of the job.
            trial: the tuning job's trial that the job belongs to, if any; stored in the job's transaction.
        Raises: JobExists with the ARN of the job that has the name, TrialRefused; then neither job nor trial is
            written.
        """
        row = job_documents.row_of(job)
        card = job_cards.card_row(job)
        tag_rows = _tag_rows(job.arn, tags)

        def create(connection: Connection) -> None:
            if connection.execute(job_documents.INSERT_JOB, row).rowcount == 0:
                existing = connection.execute(select(jobs.c.arn).where(jobs.c.name == job.name)).scalar_one()
                raise JobExists(job.name, existing_arn=existing)
            connection.execute(job_cards.UPSERT_CARD, card)
            if tag_rows:
                connection.execute(_SET_TAG, tag_rows)
            if trial is not None:
                add_trial(connection, trial)

        await self._writer.run(create)

    async def get_job(self, name: str) -> TrainingJob | None:
        """Return a job as it was last written, or None if no job has that name.

        Raises: JobUnreadable for a job that was set aside.
        """

        def get(connection: Connection) -> TrainingJob | None:
            rows = connection.execute(job_documents.SELECT_JOB, {"name": name}).all()
            if rows and rows[0].is_quarantined:
                raise job_documents.refuse(connection, name)
            found = readable(rows, job_documents.job_of_row, table=jobs, key=job_documents.key_of_row)
            return found[0] if found else None

        return await self._read(get)

    async def update_job(
        self,
        name: str,
        change: Callable[[TrainingJob], TrainingJob],
        *,
        known: TrainingJob | None = None,
    ) -> TrainingJob:
        """Read a job, change it and write it back in one transaction; return the stored job.

        Args:
            name: name of the job.
            change: a pure function, run on the writer's thread; it may be run again on a newer state. Returning the
                same object writes nothing. Its errors are raised here, and then nothing is written.
            known: the job in the caller's memory. It replaces a document that cannot be read, whose bytes are kept in
                quarantine.

        Raises: JobNotFound; without `known`, JobUnreadable for a job that was set aside or cannot be read.
        """

        def read_modify_write(connection: Connection) -> TrainingJob:
            row = connection.execute(_SELECT_FOR_UPDATE.where(jobs.c.name == name)).one_or_none()
            if row is None:
                raise JobNotFound(name)
            job, is_mended = _job_of_row_or(known, connection, row)
            changed = change(job)
            if changed is job and not is_mended:
                return job
            if (changed.name, changed.arn) != (job.name, job.arn):
                raise StoreError(
                    f"a change of job {name!r} returned {changed.name!r} ({changed.arn}): name and ARN of a job are "
                    f"for ever, create another job instead"
                )
            connection.execute(job_documents.UPDATE_JOB, job_documents.row_of(changed))
            card = job_cards.card_row(changed)
            if is_mended or card != job_cards.card_row(job):
                connection.execute(job_cards.UPSERT_CARD, card)
            return changed

        return await self._write(read_modify_write)

    async def list_jobs(self, query: JobQuery) -> JobPage:
        """Return one page of summaries.

        Raises: BadToken for a token that is forged or belongs to another query; StoreError for a bad `max_results`.
        """
        identity = query.identity()
        after = None
        if query.next_token is not None:
            after = tokens.read_token(self._token_key, query.next_token, query=identity)
        statement = job_queries.page_statement(query, after=after, dialect=self._read_engine.dialect.name)

        def find(connection: Connection) -> JobPage:
            rows = connection.execute(statement).all()
            next_token = None
            if len(rows) > query.max_results:
                rows = rows[: query.max_results]
                position = job_queries.key_of(rows[-1], query)
                next_token = tokens.make_token(self._token_key, query=identity, position=position)
            summaries = readable(rows, job_queries.summary_of, table=jobs, key=job_documents.key_of_row)
            return JobPage(summaries=tuple(summaries), next_token=next_token)

        return await self._read(find)

    async def unfinished_jobs(self) -> list[TrainingJob]:
        """Return the jobs that are not terminal or whose hosts may still exist, oldest first.

        Unreadable jobs are set aside and left out.
        """

        def find(connection: Connection) -> list[TrainingJob]:
            rows = connection.execute(job_documents.SELECT_UNFINISHED)
            return readable(rows, job_documents.job_of_row, table=jobs, key=job_documents.key_of_row)

        return await self._read(find)

    async def job_names(self) -> set[str]:
        """Return the names of all jobs, also of those whose record cannot be read."""
        return await self._read(lambda connection: set(connection.execute(select(jobs.c.name)).scalars()))

    async def jobs_with(
        self, *, name: str | None = None, status: str | None = None, after: str = "", limit: int
    ) -> list[TrainingJob]:
        """Return the jobs with the given name and status, sorted by name; None matches any.

        Args:
            name: the complete name.
            status: a TrainingJobStatus.
            after: jobs with names after this one; empty for all.
            limit: maximum number of jobs.
        """
        statement = select(*job_documents.READ_COLUMNS).where(jobs.c.name > after, jobs.c.is_quarantined == 0)
        statement = statement.order_by(jobs.c.name).limit(limit)
        for column, value in ((jobs.c.name, name), (jobs.c.status, status)):
            if value is not None:
                statement = statement.where(column == value)

        def find(connection: Connection) -> list[TrainingJob]:
            rows = connection.execute(statement)
            return readable(rows, job_documents.job_of_row, table=jobs, key=job_documents.key_of_row)

        return await self._read(find)

    async def delete_job(self, name: str) -> None:
        """Delete a job of any status with all its rows; after a failure, the job may remain with a part of its rows.

        Raises: JobNotFound.
        """
        birth = select(jobs.c.created_at).where(jobs.c.name == name)
        created_at = await self._read(lambda connection: connection.execute(birth).scalar())

        def require(connection: Connection) -> None:
            # Another call may have deleted the job meanwhile, and another job may have its name.
            if created_at is None or connection.execute(birth).scalar() != created_at:
                raise JobNotFound(name)

        def remove_piece(connection: Connection) -> bool:
            require(connection)
            return job_rows.remove_some(connection, name)

        def remove(connection: Connection) -> None:
            require(connection)
            arn = connection.execute(delete(jobs).where(jobs.c.name == name).returning(jobs.c.arn)).scalar()
            # only tags are deleted here: rows of other tables go with the row in `jobs`
            connection.execute(delete(tags).where(tags.c.arn == arn))

        while await self._writer.run(remove_piece):
            pass
        await self._writer.run(remove)

    async def set_tags(self, arn: str, new_tags: Mapping[str, str]) -> None:
        """Add tags to a resource; an existing key gets the new value."""
        rows = _tag_rows(arn, new_tags)
        if rows:
            await self._writer.run(lambda connection: _execute(connection, _SET_TAG, rows))

    async def get_tags(self, arn: str) -> dict[str, str]:
        """Return the tags of a resource, sorted by key; empty if it has no tags or does not exist."""
        statement = select(tags.c.tag_key, tags.c.tag_value).where(tags.c.arn == arn).order_by(tags.c.tag_key)
        rows = await self._read(lambda connection: connection.execute(statement).all())
        return {row.tag_key: row.tag_value for row in rows}

    async def remove_tags(self, arn: str, keys: Iterable[str]) -> None:
        """Remove tags by key; missing keys are ignored."""
        statement = delete(tags).where(tags.c.arn == arn, tags.c.tag_key.in_(list(keys)))
        await self._writer.run(lambda connection: _execute(connection, statement))

    async def add_metrics(self, job_name: str, values: Sequence[FinalMetric]) -> None:
        """Append values to the time series of a job's metrics; a value may be NaN or infinite.

        Raises: JobNotFound.
        """
        rows = [
            {
                "job_name": job_name,
                "metric_name": metric.name,
                "at": to_microseconds(metric.at),
                "value": None if math.isnan(metric.value) else metric.value,
                "step": metric.step,
            }
            for metric in values
        ]
        if not rows:
            return

        def add(connection: Connection) -> None:
            # Lock the job against deletion until the values are written; SQLite has only one writer anyway.
            holds = select(jobs.c.name).where(jobs.c.name == job_name).with_for_update(read=True, key_share=True)
            if connection.execute(holds).scalar() is None:
                raise JobNotFound(job_name)
            connection.execute(insert(metrics), rows)

        await self._writer.run(add)

    async def query_metrics(self, job_name: str, metric_name: str, start: datetime, end: datetime) -> list[FinalMetric]:
        """Return the values of one metric from `start` (inclusive) to `end` (exclusive), oldest first.

        Args:
            job_name: name of any job.
            metric_name: as it was stored, case included.
            start: begin of the span, inclusive.
            end: end of the span, exclusive.
        """
        statement = select_values(metrics.c.job_name == job_name, metric_name, start, end)
        return await self._read(lambda connection: values_of(connection.execute(statement), metric_name))

    async def acquire_lease(self, name: str, owner: str, ttl_s: float, *, ended: Collection[str] = ()) -> Lease | None:
        """Take a lease for `ttl_s`; return None while another owner holds it. `owner` must be unique to the process.

        Args: as `leases.acquire`.
        """

        def acquire(connection: Connection) -> Lease | None:
            return leases.acquire(connection, name, owner=owner, ttl_s=ttl_s, ended=ended)

        return await self._writer.run(acquire, is_fenced=False)

    def act_under(self, lease: Lease, *, on_loss: Callable[[StaleLease], None]) -> None:
        """From now on, write only while nobody else has taken `lease`; all other writes raise StaleLease.

        Args:
            lease: as returned by `acquire_lease`; it may expire and be renewed.
            on_loss: called once, on the event loop, after the first write that was refused.
        """
        self._writer.set_fence(Fence(lease, on_loss))

    async def require_lease(self) -> None:
        """Check that this store may still write. Raises: StaleLease if another owner has taken its lease."""
        await self._writer.run(lambda _: None)

    async def renew_lease(self, lease: Lease, ttl_s: float) -> Lease:
        """Hold a lease for `ttl_s` from now, under the same token.

        Raises: StaleLease if another owner has taken it.
        """
        return await self._writer.run(lambda connection: leases.renew(connection, lease, ttl_s=ttl_s))

    async def release_lease(self, lease: Lease, *, renewed_for_s: float = 0.0) -> None:
        """Release a lease; does nothing if another owner has taken it.

        Args:
            lease: as last returned.
            renewed_for_s: `ttl_s` of a last renewal, of which the next holder learns because the work goes on; 0: it
                ends.
        """
        await self._writer.run(
            lambda connection: leases.release(connection, lease, renewed_for_s=renewed_for_s), is_fenced=False
        )

    async def _read(self, question: Callable[[Connection], T]) -> T:
        """Run a query; if it meets unreadable rows, set them aside and run it again."""
        for _ in range(_MOST_TRIES):
            try:
                return await self._ask(question)
            except RowsUnreadable as unreadable:
                await self.quarantine.hold(unreadable.rows)
            except DAMAGE:
                # A value had the wrong type or range: the sweep finds its row.
                if await self._writer.run(lambda connection: hold_all(connection, sweep_all(connection))) == 0:
                    raise
        return await self._ask(question)

    async def _write(self, operation: Callable[[Connection], T]) -> T:
        """Run a change; if it meets unreadable rows, set them aside and run it again."""
        for _ in range(_MOST_TRIES):
            try:
                return await self._writer.run(operation)
            except RowsUnreadable as unreadable:
                await self.quarantine.hold(unreadable.rows)
        return await self._writer.run(operation)

    async def _ask(self, question: Callable[[Connection], T]) -> T:
        if self._is_closed:
            raise StoreError(f"the store {self._place} is closed: nothing can be read any more")

        def ask() -> T:
            with self._read_engine.connect() as connection:
                return question(connection)

        limit = asyncio.timeout(READ_TIMEOUT_S)
        try:
            async with limit:
                return await asyncio.get_running_loop().run_in_executor(self._readers, ask)
        except SQLAlchemyError as error:
            raise describe_failure(f"cannot read from {self._place}", error, nothing_changed=True) from error
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise StoreError(
                f"{self._place} gave no answer within {READ_TIMEOUT_S:g} s: try again, and look for a slow disk or a "
                "database server that hangs",
                fault=Fault.INFRASTRUCTURE,
                retryable=True,
            ) from error


def _job_of_row_or(known: TrainingJob | None, connection: Connection, row: Any) -> tuple[TrainingJob, bool]:
    """Return the job of a row that will be changed, and whether `known` replaces the row's unreadable job.

    Raises: without `known`, JobUnreadable for a row that was set aside, RowsUnreadable for a damaged row.
    """
    if row.is_quarantined and known is None:
        raise job_documents.refuse(connection, row.name)
    try:
        if not row.is_quarantined:
            return job_documents.job_of(row.document), False
        mend_from_memory(connection, row.name, reason="")
    except DAMAGE as error:
        if known is None:
            found = DamagedRow(table=jobs.name, key={"name": row.name}, name=row.name, reason=reason_of(error))
            raise RowsUnreadable([found]) from error
        mend_from_memory(connection, row.name, reason=reason_of(error))
    assert known is not None, "a row that is set aside is refused above"
    return known, True


def _token_key(connection: Connection) -> bytes:
    """Return the key that signs page tokens; replace an unreadable key, which makes old tokens invalid."""
    kept = connection.execute(select(properties.c.value).where(properties.c.name == "token_key")).scalar()
    try:
        return bytes.fromhex(str(kept))
    except ValueError:
        made = secrets.token_hex(_KEY_BYTES)
        connection.execute(delete(properties).where(properties.c.name == "token_key"))
        connection.execute(insert(properties).values(name="token_key", value=made))
        return bytes.fromhex(made)


def _tag_rows(arn: str, new_tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"arn": arn, "tag_key": key, "tag_value": value} for key, value in new_tags.items()]


def _execute(connection: Connection, statement: Any, rows: Any = None) -> None:
    connection.execute(statement, rows)


def _dispose(engines: tuple[Engine, Engine]) -> None:
    for engine in engines:
        engine.dispose()
