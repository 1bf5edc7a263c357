"""Tuning jobs and their trials on SQLite: the contract."""

from pathlib import Path

import pytest
from tuning_contract import TuningContract


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'clary.db'}"


class TestTuningRecordsOnSqlite(TuningContract):
    """Runs the contract against a database file."""
