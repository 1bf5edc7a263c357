"""Experiments on SQLite: the contract."""

from pathlib import Path

import pytest
from experiments_contract import ExperimentsContract


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'clary.db'}"


class TestExperimentsOnSqlite(ExperimentsContract):
    """Runs the contract against a database file."""
