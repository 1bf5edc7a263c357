"""The contracts of series, trainings, documents, experiments, tuning jobs and the lease, on a PostgreSQL server."""

from collections.abc import Iterator

import pytest
from documents_contract import DocumentsContract
from experiments_contract import ExperimentsContract
from lease_contract import LeaseContract
from postgres_server import PostgresServer
from series_contract import SeriesContract
from training_contract import TrainingContract
from tuning_contract import TuningContract


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture
def database_url(server: PostgresServer) -> Iterator[str]:
    name = server.create_database()
    yield server.url(name)
    server.drop_database(name)


class TestSeriesOnPostgres(SeriesContract):
    """The contract against a server."""


class TestTrainingRecordsOnPostgres(TrainingContract):
    """The contract against a server."""


class TestExperimentsOnPostgres(ExperimentsContract):
    """The contract against a server."""


class TestNumberedDocumentsOnPostgres(DocumentsContract):
    """The contract against a server."""


class TestLeaseOnPostgres(LeaseContract):
    """The contract against a server."""


class TestTuningRecordsOnPostgres(TuningContract):
    """The contract against a server."""
