"""The lease of a SQLite database: one service at a time writes, and a service that lost it leaves the jobs alone."""

from pathlib import Path

import pytest
from lease_contract import LeaseContract


class TestLeaseOnSqlite(LeaseContract):
    """The contract against a database file."""

    @pytest.fixture
    def database_url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'clary.db'}"
