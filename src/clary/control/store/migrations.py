"""Numbered migrations of the database, applied in order and in one transaction when a store opens.

Where: `Store.open` calls `migrate` after `database_life` has checked the database, before all other use. A released
migration is never edited: a change of the tables is a new migration at the end of `MIGRATIONS`, with the same change in
`tables`.

Why no migration tool: the list is short, runs the same on SQLite and PostgreSQL, must run unattended inside the
service, and needs no second description of the tables (docs/adr/0003-store-writer-and-migrations.md).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, func, insert, inspect, select, text, update

from clary.base.errors import StoreError
from clary.base.plain import from_plain
from clary.control.jobs.job_state import state_of
from clary.control.jobs.training_job import TrainingJob
from clary.control.store import job_cards, tables

# Name of the advisory lock against two services migrating a PostgreSQL database at once: "clary" in ASCII.
_MIGRATION_LOCK = 0x636C617279

# Spellings of column types that differ between the two databases. Names sort by code point in both, because a page
# continues correctly only if the database orders names as the page token compares them.
_WORDS = {
    "sqlite": {
        "bytes": "BLOB",
        "text": "TEXT",
        "double": "DOUBLE",
        "identity": "INTEGER PRIMARY KEY AUTOINCREMENT",
    },
    "postgresql": {
        "bytes": "BYTEA",
        "text": 'TEXT COLLATE "C"',
        "double": "DOUBLE PRECISION",
        "identity": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    },
}

_JOBS_AT_ONCE = 200  # jobs that a migration holds in memory


@dataclass(frozen=True, kw_only=True)
class Migration:
    """One step of the schema from version `number` - 1 to `number`."""

    number: int
    name: str
    apply: Callable[[Connection], None]


def migrate(connection: Connection, migrations: Sequence[Migration] | None = None) -> int:
    """Migrate the database to the newest version, inside the caller's open transaction; return that version.

    Args:
        connection: inside a transaction that can write; the caller commits, or rolls back on any error.
        migrations: in order, numbered from 1 without gaps; None for those of this release.

    Raises: StoreError if the database is newer than this release. Errors of a migration pass through; the caller's
        rollback then leaves the database at its old version.
    """
    steps = MIGRATIONS if migrations is None else migrations
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
    found = read_version(connection)
    newest = len(steps)
    if found > newest:
        raise StoreError(
            f"the database is at schema version {found}, this release of Clary knows versions up to {newest}: "
            f"install the release that wrote it, or name another database"
        )
    for step in steps[found:]:
        step.apply(connection)
        applied_at = tables.to_microseconds(datetime.now(UTC))
        connection.execute(
            insert(tables.schema_version).values(version=step.number, name=step.name, applied_at=applied_at)
        )
    return newest


def read_version(connection: Connection) -> int:
    """Return the schema version of the database; 0 if it has no table of Clary's yet."""
    if not inspect(connection).has_table("schema_version"):
        return 0
    return connection.execute(select(func.max(tables.schema_version.c.version))).scalar() or 0


def _create_first_tables(connection: Connection) -> None:
    words = _WORDS[connection.dialect.name]
    for statement in _FIRST_TABLES:
        connection.exec_driver_sql(statement.format(**words))
    connection.execute(insert(tables.properties).values(name="token_key", value=secrets.token_hex(32)))


_FIRST_TABLES = (
    "CREATE TABLE schema_version (version INTEGER PRIMARY KEY, name {text} NOT NULL, applied_at BIGINT NOT NULL)",
    "CREATE TABLE properties (name {text} PRIMARY KEY, value {text} NOT NULL)",
    """CREATE TABLE jobs (
        name {text} PRIMARY KEY,
        arn {text} NOT NULL,
        status {text} NOT NULL,
        secondary_status {text} NOT NULL,
        created_at BIGINT NOT NULL,
        modified_at BIGINT NOT NULL,
        training_ended_at BIGINT,
        is_terminal INTEGER NOT NULL,
        is_released INTEGER NOT NULL,
        version BIGINT NOT NULL,
        document {text} NOT NULL
    )""",
    "CREATE INDEX jobs_by_creation ON jobs (created_at, name)",
    "CREATE INDEX jobs_by_status ON jobs (status, name)",
    "CREATE INDEX jobs_unfinished ON jobs (created_at, name) WHERE is_terminal = 0 OR is_released = 0",
    """CREATE TABLE tags (
        arn {text} NOT NULL,
        tag_key {text} NOT NULL,
        tag_value {text} NOT NULL,
        PRIMARY KEY (arn, tag_key)
    )""",
    """CREATE TABLE metrics (
        id {identity},
        job_name {text} NOT NULL REFERENCES jobs (name) ON DELETE CASCADE,
        metric_name {text} NOT NULL,
        at BIGINT NOT NULL,
        value {double}
    )""",
    "CREATE INDEX metrics_by_time ON metrics (job_name, metric_name, at, id)",
    """CREATE TABLE leases (
        name {text} PRIMARY KEY,
        owner {text} NOT NULL,
        token BIGINT NOT NULL,
        expires_at BIGINT NOT NULL
    )""",
)


def _add_warm_pools(connection: Connection) -> None:
    words = _WORDS[connection.dialect.name]
    for statement in (
        "ALTER TABLE jobs ADD COLUMN warm_pool_status {text}",
        "ALTER TABLE jobs ADD COLUMN warm_pool {text}",
        "CREATE INDEX jobs_by_warm_pool ON jobs (warm_pool_status, name) WHERE warm_pool_status IS NOT NULL",
    ):
        connection.exec_driver_sql(statement.format(**words))


def _add_series(connection: Connection) -> None:
    words = _WORDS[connection.dialect.name]
    for statement in (
        """CREATE TABLE series_ends (
            job_name {text} NOT NULL REFERENCES jobs (name) ON DELETE CASCADE,
            attempt INTEGER NOT NULL,
            host {text} NOT NULL,
            next_row BIGINT NOT NULL,
            num_dropped BIGINT NOT NULL,
            PRIMARY KEY (job_name, attempt, host)
        )""",
        """CREATE TABLE series_blocks (
            id {identity},
            job_name {text} NOT NULL REFERENCES jobs (name) ON DELETE CASCADE,
            attempt INTEGER NOT NULL,
            host {text} NOT NULL,
            step_ms BIGINT NOT NULL,
            first_row BIGINT NOT NULL,
            start_ms BIGINT NOT NULL,
            end_ms BIGINT NOT NULL,
            num_rows BIGINT NOT NULL,
            is_rolled INTEGER NOT NULL,
            is_open INTEGER NOT NULL,
            data {bytes} NOT NULL
        )""",
        "CREATE INDEX series_by_time ON series_blocks (job_name, host, step_ms, end_ms)",
        "CREATE INDEX series_open ON series_blocks (job_name, attempt, host, step_ms, is_rolled, start_ms, num_rows)"
        " WHERE is_open = 1",
        "CREATE INDEX series_by_age ON series_blocks (step_ms, end_ms) WHERE is_rolled = 1",
    ):
        connection.exec_driver_sql(statement.format(**words))


def _add_training_findings(connection: Connection) -> None:
    words = _WORDS[connection.dialect.name]
    for statement in (
        "ALTER TABLE metrics ADD COLUMN step BIGINT",
        """CREATE TABLE training_ends (
            job_name {text} NOT NULL REFERENCES jobs (name) ON DELETE CASCADE,
            attempt INTEGER NOT NULL,
            host {text} NOT NULL,
            next_finding BIGINT NOT NULL,
            num_dropped BIGINT NOT NULL,
            progress {text},
            PRIMARY KEY (job_name, attempt, host)
        )""",
        """CREATE TABLE training_pictures (
            id {identity},
            job_name {text} NOT NULL REFERENCES jobs (name) ON DELETE CASCADE,
            attempt INTEGER NOT NULL,
            host {text} NOT NULL,
            kind {text} NOT NULL,
            tag {text} NOT NULL,
            at BIGINT NOT NULL,
            step BIGINT,
            file {text} NOT NULL,
            file_offset BIGINT NOT NULL,
            size_bytes BIGINT NOT NULL,
            data {bytes}
        )""",
        "CREATE INDEX training_pictures_by_tag ON training_pictures (job_name, kind, tag, id)",
    ):
        connection.exec_driver_sql(statement.format(**words))


def _add_job_cards(connection: Connection) -> None:
    words = _WORDS[connection.dialect.name]
    for statement in (
        """CREATE TABLE job_cards (
            name {text} PRIMARY KEY REFERENCES jobs (name) ON DELETE CASCADE,
            arn {text} NOT NULL,
            status {text} NOT NULL,
            secondary_status {text} NOT NULL,
            created_at BIGINT NOT NULL,
            started_at BIGINT,
            ended_at BIGINT,
            num_hosts BIGINT NOT NULL,
            instance_type {text} NOT NULL,
            failure_reason {text} NOT NULL,
            metrics {text} NOT NULL,
            words {text} NOT NULL
        )""",
        "CREATE INDEX job_cards_by_creation ON job_cards (created_at, name)",
        "CREATE INDEX job_cards_by_status ON job_cards (status, created_at, name)",
    ):
        connection.exec_driver_sql(statement.format(**words))
    names = list(connection.execute(select(tables.jobs.c.name)).scalars())
    for first in range(0, len(names), _JOBS_AT_ONCE):
        some = names[first : first + _JOBS_AT_ONCE]
        documents = connection.execute(select(tables.jobs.c.document).where(tables.jobs.c.name.in_(some))).scalars()
        cards = [job_cards.card_row(from_plain(TrainingJob, json.loads(document))) for document in documents]
        # Cards have a state only from migration 9 on.
        cards_of_then = [{name: value for name, value in card.items() if name != "state"} for card in cards]
        columns, values = ", ".join(cards_of_then[0]), ", ".join(f":{name}" for name in cards_of_then[0])
        insertion = text(f"INSERT INTO job_cards ({columns}) VALUES ({values})")  # noqa: S608 - names of columns
        connection.execute(insertion, cards_of_then)


def _add_experiments(connection: Connection) -> None:
    words = _WORDS[connection.dialect.name]
    for statement in (
        """CREATE TABLE tracked (
            kind {text} NOT NULL,
            name_key {text} NOT NULL,
            name {text} NOT NULL,
            arn {text} NOT NULL,
            parent_key {text} NOT NULL,
            source_key {text} NOT NULL,
            label {text} NOT NULL,
            created_at BIGINT NOT NULL,
            modified_at BIGINT NOT NULL,
            document {text} NOT NULL,
            PRIMARY KEY (kind, name_key)
        )""",
        "CREATE UNIQUE INDEX tracked_by_arn ON tracked (arn)",
        "CREATE INDEX tracked_by_creation ON tracked (kind, created_at, name_key)",
        "CREATE INDEX tracked_by_parent ON tracked (kind, parent_key)",
        "CREATE INDEX tracked_by_source ON tracked (kind, source_key)",
        """CREATE TABLE trial_members (
            trial_key {text} NOT NULL,
            component_key {text} NOT NULL,
            joined_at BIGINT NOT NULL,
            PRIMARY KEY (trial_key, component_key)
        )""",
        "CREATE INDEX trial_members_by_component ON trial_members (component_key)",
        """CREATE TABLE component_metrics (
            id {identity},
            component_key {text} NOT NULL,
            metric_name {text} NOT NULL,
            at BIGINT NOT NULL,
            step BIGINT,
            value {double}
        )""",
        "CREATE INDEX component_metrics_by_time ON component_metrics (component_key, metric_name, at, id)",
        """CREATE TABLE associations (
            source_arn {text} NOT NULL,
            destination_arn {text} NOT NULL,
            association_type {text} NOT NULL,
            source_type {text} NOT NULL,
            destination_type {text} NOT NULL,
            source_name {text} NOT NULL,
            destination_name {text} NOT NULL,
            created_at BIGINT NOT NULL,
            PRIMARY KEY (source_arn, destination_arn)
        )""",
        "CREATE INDEX associations_by_destination ON associations (destination_arn)",
    ):
        connection.exec_driver_sql(statement.format(**words))


def _add_training_tags(connection: Connection) -> None:
    words = _WORDS[connection.dialect.name]
    for statement in (
        """CREATE TABLE training_tags (
            job_name {text} NOT NULL REFERENCES jobs (name) ON DELETE CASCADE,
            kind {text} NOT NULL,
            tag {text} NOT NULL,
            num_seen BIGINT NOT NULL,
            num_kept BIGINT NOT NULL,
            kept_bytes BIGINT NOT NULL,
            last_step BIGINT,
            PRIMARY KEY (job_name, kind, tag)
        )""",
        "INSERT INTO training_tags (job_name, kind, tag, num_seen, num_kept, kept_bytes, last_step)"
        " SELECT job_name, kind, tag, count(*), count(*), coalesce(sum(length(data)), 0), max(step)"
        " FROM training_pictures GROUP BY job_name, kind, tag",
    ):
        connection.exec_driver_sql(statement.format(**words))


def _add_quarantine(connection: Connection) -> None:
    words = _WORDS[connection.dialect.name]
    for statement in (
        "ALTER TABLE jobs ADD COLUMN is_quarantined INTEGER NOT NULL DEFAULT 0",
        """CREATE TABLE quarantine (
            id {identity},
            source {text} NOT NULL,
            name {text} NOT NULL,
            reason {text} NOT NULL,
            found_at BIGINT NOT NULL,
            is_held INTEGER NOT NULL,
            contents {text} NOT NULL
        )""",
        "CREATE INDEX quarantine_by_name ON quarantine (source, name)",
    ):
        connection.exec_driver_sql(statement.format(**words))
    connection.execute(insert(tables.properties).values(name="database_id", value=secrets.token_hex(16)))


def _add_states_of_cards(connection: Connection) -> None:
    """Set the states of cards from their statuses alone; the documents may be damaged and are not read."""
    words = _WORDS[connection.dialect.name]
    connection.exec_driver_sql("ALTER TABLE job_cards ADD COLUMN state {text} NOT NULL DEFAULT ''".format(**words))
    cards = tables.job_cards.c
    both = (cards.status, cards.secondary_status)
    for status, secondary in connection.execute(select(*both).distinct()).all():
        try:
            state = state_of(status, secondary).value
        except ValueError:  # damaged: will be set aside like any row that cannot be read
            continue
        connection.execute(
            update(tables.job_cards)
            .where(cards.status == status, cards.secondary_status == secondary)
            .values(state=state, words=cards.words + f"\n{state.lower()}")
        )
    connection.exec_driver_sql("CREATE INDEX job_cards_by_state ON job_cards (state, created_at, name)")


def _add_numbered_documents(connection: Connection) -> None:
    words = _WORDS[connection.dialect.name]
    statement = """CREATE TABLE numbered_documents (
        id {identity},
        job_name {text} NOT NULL REFERENCES jobs (name) ON DELETE CASCADE,
        kind {text} NOT NULL,
        number BIGINT NOT NULL,
        name {text} NOT NULL,
        document {text} NOT NULL,
        UNIQUE (job_name, kind, number, name)
    )"""
    connection.exec_driver_sql(statement.format(**words))


def _add_tuning_jobs(connection: Connection) -> None:
    words = _WORDS[connection.dialect.name]
    for statement in (
        """CREATE TABLE tuning_jobs (
            name {text} PRIMARY KEY,
            status {text} NOT NULL,
            created_at BIGINT NOT NULL,
            modified_at BIGINT NOT NULL,
            is_terminal INTEGER NOT NULL,
            document {text} NOT NULL
        )""",
        # A trial stays when its training job is deleted: otherwise its number would be used again.
        """CREATE TABLE tuning_trials (
            tuning_job {text} NOT NULL REFERENCES tuning_jobs (name) ON DELETE CASCADE,
            number BIGINT NOT NULL,
            document {text} NOT NULL,
            PRIMARY KEY (tuning_job, number)
        )""",
        "CREATE INDEX tuning_jobs_by_time ON tuning_jobs (created_at, name)",
    ):
        connection.exec_driver_sql(statement.format(**words))


MIGRATIONS: tuple[Migration, ...] = (
    Migration(number=1, name="jobs, tags, metrics, leases", apply=_create_first_tables),
    Migration(number=2, name="warm pools of jobs", apply=_add_warm_pools),
    Migration(number=3, name="series", apply=_add_series),
    Migration(number=4, name="findings of trainings", apply=_add_training_findings),
    Migration(number=5, name="cards of jobs", apply=_add_job_cards),
    Migration(number=6, name="experiments", apply=_add_experiments),
    Migration(number=7, name="tags of pictures", apply=_add_training_tags),
    Migration(number=8, name="quarantine", apply=_add_quarantine),
    Migration(number=9, name="states of cards", apply=_add_states_of_cards),
    Migration(number=10, name="numbered documents", apply=_add_numbered_documents),
    Migration(number=11, name="tuning jobs", apply=_add_tuning_jobs),
)
