"""Findings of trainings on SQLite: the contract."""

from pathlib import Path

import pytest
from training_contract import TrainingContract


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'clary.db'}"


class TestTrainingRecordsOnSqlite(TrainingContract):
    """Runs the contract against a database file."""
