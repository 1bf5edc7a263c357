"""The contracts of series, of trainings' findings and of experiments on a real PostgreSQL server of their own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The contracts lie beside the unit tests of the store, which run them against SQLite.
_CONTRACT_FOLDER = Path(__file__).parents[1] / "unit" / "control" / "store"
sys.path.insert(0, str(_CONTRACT_FOLDER))
pytest.register_assert_rewrite(
    "experiments_contract", "series_contract", "training_contract", "store_contract", "crash_nursery"
)

from experiments_contract import ExperimentsContract  # noqa: E402
from postgres_server import PostgresServer  # noqa: E402
from series_contract import SeriesContract  # noqa: E402
from training_contract import TrainingContract  # noqa: E402


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
