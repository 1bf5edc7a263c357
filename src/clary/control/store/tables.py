"""Tables of the database, for queries; `migrations` creates them.

Times are whole microseconds since 1970 (UTC) in a BIGINT, milliseconds in columns named `..._ms`: exact, sortable and
the same in SQLite and PostgreSQL.
Truth values are 0 and 1 in an INTEGER, so that the partial index over unfinished jobs has the same definition in both
databases.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import BigInteger, Column, Double, Integer, LargeBinary, MetaData, Table, Text

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

metadata = MetaData()
JOBS_SOURCE = "jobs"  # `quarantine.source` of rows of `jobs`

jobs = Table(
    "jobs",
    metadata,
    Column("name", Text, primary_key=True),
    Column("arn", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("secondary_status", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("modified_at", BigInteger, nullable=False),
    Column("training_ended_at", BigInteger),
    Column("is_terminal", Integer, nullable=False),
    Column("is_released", Integer, nullable=False),
    Column("warm_pool_status", Text),
    Column("warm_pool", Text),  # the job's WarmPool as JSON; NULL for a job that never used a warm pool
    Column("version", BigInteger, nullable=False),  # number of the last change
    Column("document", Text, nullable=False),  # the whole TrainingJob as JSON; the columns above repeat parts of it
    Column("is_quarantined", Integer, nullable=False),  # whether the row cannot be read and is left out
)

job_cards = Table(
    "job_cards",
    metadata,
    Column("name", Text, primary_key=True),
    Column("arn", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("secondary_status", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),  # of the training
    Column("ended_at", BigInteger),
    Column("num_hosts", BigInteger, nullable=False),
    Column("instance_type", Text, nullable=False),
    Column("failure_reason", Text, nullable=False),
    Column("metrics", Text, nullable=False),  # JSON: names and last values of the first few metrics
    Column("words", Text, nullable=False),  # searched text, in lower case
)

tags = Table(
    "tags",
    metadata,
    Column("arn", Text, primary_key=True),
    Column("tag_key", Text, primary_key=True),
    Column("tag_value", Text, nullable=False),
)

metrics = Table(
    "metrics",
    metadata,
    Column("id", BigInteger, primary_key=True),  # order of arrival, for values of the same moment
    Column("job_name", Text, nullable=False),
    Column("metric_name", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("value", Double),  # NULL stands for NaN: SQLite keeps no NaN
    Column("step", BigInteger),  # of the training, if known
)

training_ends = Table(
    "training_ends",
    metadata,
    Column("job_name", Text, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("host", Text, primary_key=True),
    Column("next_finding", BigInteger, nullable=False),  # findings with lower numbers are stored or were dropped
    Column("num_dropped", BigInteger, nullable=False),  # findings that the agent dropped
    Column("progress", Text),  # the newest TrainingProgress as JSON
)

training_pictures = Table(
    "training_pictures",
    metadata,
    Column("id", BigInteger, primary_key=True),
    Column("job_name", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("host", Text, nullable=False),
    Column("kind", Text, nullable=False),  # contract.training_values.FindingKind, without scalars
    Column("tag", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("step", BigInteger),
    Column("file", Text, nullable=False),  # path below the host's /opt/ml
    Column("file_offset", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("data", LargeBinary),  # NULL for a picture that is too large to store
)

tuning_jobs = Table(
    "tuning_jobs",
    metadata,
    Column("name", Text, primary_key=True),
    Column("status", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("modified_at", BigInteger, nullable=False),
    Column("is_terminal", Integer, nullable=False),
    Column("document", Text, nullable=False),  # the whole TuningJob as JSON
)

tuning_trials = Table(
    "tuning_trials",
    metadata,
    Column("tuning_job", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("document", Text, nullable=False),  # the whole Trial as JSON
)

# Requests for dumps, profiles and rehearsals, and hosts' answers; control/store/documents/numbered_documents.py.
numbered_documents = Table(
    "numbered_documents",
    metadata,
    Column("id", BigInteger, primary_key=True),
    Column("job_name", Text, nullable=False),
    Column("kind", Text, nullable=False),  # dumps, profiles, rehearsals
    Column("number", BigInteger, nullable=False),
    Column("name", Text, nullable=False),  # unique for a job, kind and number
    Column("document", Text, nullable=False),  # JSON in ASCII
)

training_tags = Table(
    "training_tags",
    metadata,
    Column("job_name", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("tag", Text, primary_key=True),
    Column("num_seen", BigInteger, nullable=False),  # received pictures
    Column("num_kept", BigInteger, nullable=False),  # stored pictures
    Column("kept_bytes", BigInteger, nullable=False),
    Column("last_step", BigInteger),
)

series_ends = Table(
    "series_ends",
    metadata,
    Column("job_name", Text, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("host", Text, primary_key=True),
    Column("next_row", BigInteger, nullable=False),  # rows with lower numbers are stored or were dropped
    Column("num_dropped", BigInteger, nullable=False),  # rows that the agent dropped
)

series_blocks = Table(
    "series_blocks",
    metadata,
    Column("id", BigInteger, primary_key=True),
    Column("job_name", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("host", Text, nullable=False),
    Column("step_ms", BigInteger, nullable=False),  # 0: rows as received, not aggregated
    # Number of its first row, by which blocks are ordered: times may be equal, and clocks may be set back.
    Column("first_row", BigInteger, nullable=False),
    Column("start_ms", BigInteger, nullable=False),  # times of the first and the last row
    Column("end_ms", BigInteger, nullable=False),
    Column("num_rows", BigInteger, nullable=False),
    Column("is_rolled", Integer, nullable=False),  # whether coarser blocks have the same values, or are not needed
    Column("is_open", Integer, nullable=False),  # whether it may be joined with other blocks
    Column("data", LargeBinary, nullable=False),  # control/series/codec.py
)

# Experiments, trials, trial components and artifacts; control/store/tracking/experiment_rows.py.
tracked = Table(
    "tracked",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("name_key", Text, primary_key=True),  # in lower case: names must differ in more than case
    Column("name", Text, nullable=False),
    Column("arn", Text, nullable=False),
    Column("parent_key", Text, nullable=False),  # experiment of a trial; empty for other kinds
    Column("source_key", Text, nullable=False),  # ARN of a component's job, URI of an artifact
    Column("label", Text, nullable=False),  # type of an artifact; empty for other kinds
    Column("created_at", BigInteger, nullable=False),
    Column("modified_at", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
)

trial_members = Table(
    "trial_members",
    metadata,
    Column("trial_key", Text, primary_key=True),
    Column("component_key", Text, primary_key=True),
    Column("joined_at", BigInteger, nullable=False),
)

component_metrics = Table(
    "component_metrics",
    metadata,
    Column("id", BigInteger, primary_key=True),  # order of arrival, for values of the same moment
    Column("component_key", Text, nullable=False),
    Column("metric_name", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("step", BigInteger),
    Column("value", Double),  # NULL stands for NaN: SQLite keeps no NaN
)

associations = Table(
    "associations",
    metadata,
    Column("source_arn", Text, primary_key=True),
    Column("destination_arn", Text, primary_key=True),
    Column("association_type", Text, nullable=False),  # empty if the association has no type
    Column("source_type", Text, nullable=False),
    Column("destination_type", Text, nullable=False),
    Column("source_name", Text, nullable=False),
    Column("destination_name", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

# Rows that cannot be read. Rows of jobs stay in their table with a mark, since other rows refer to them and their names
# stay reserved; rows of other tables are moved here. In both cases `contents` has the bytes of every column.
quarantine = Table(
    "quarantine",
    metadata,
    Column("id", BigInteger, primary_key=True),
    Column("source", Text, nullable=False),  # table
    Column("name", Text, nullable=False),  # of the job, or the row's key in words
    Column("reason", Text, nullable=False),
    Column("found_at", BigInteger, nullable=False),
    Column("is_held", Integer, nullable=False),  # 0: the row was repaired; `contents` has its old bytes
    Column("contents", Text, nullable=False),  # JSON: column -> type, and bytes in base64
)

leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("token", BigInteger, nullable=False),  # grows with every grant, never falls, even after a release
    Column("expires_at", BigInteger, nullable=False),  # by the database's clock, which all services share
)

properties = Table(
    "properties",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

schema_version = Table(
    "schema_version",
    metadata,
    Column("version", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("applied_at", BigInteger, nullable=False),
)


def to_microseconds(moment: datetime) -> int:
    """Return an aware time as whole microseconds since 1970."""
    return (moment - EPOCH) // _MICROSECOND


def from_microseconds(microseconds: int) -> datetime:
    """Return the aware time in UTC, `microseconds` after the beginning of 1970."""
    return EPOCH + timedelta(microseconds=microseconds)
