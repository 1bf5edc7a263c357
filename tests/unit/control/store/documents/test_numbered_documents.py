"""Numbered documents on SQLite: the contract."""

from pathlib import Path

import pytest
from documents_contract import DocumentsContract


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'clary.db'}"


class TestNumberedDocumentsOnSqlite(DocumentsContract):
    """Runs the contract against a database file."""
