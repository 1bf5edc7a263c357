"""Series on SQLite: the contract."""

from pathlib import Path

import pytest
from series_contract import SeriesContract


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'clary.db'}"


class TestSeriesOnSqlite(SeriesContract):
    """The contract against a file."""
