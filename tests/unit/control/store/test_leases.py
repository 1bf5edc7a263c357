"""The lease of a SQLite database: one service at a time writes, and a service that lost it leaves the jobs alone."""

import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest
from lease_contract import LeaseContract

from clary.control.store.store import Store


class TestLeaseOnSqlite(LeaseContract):
    """The contract against a database file."""

    @pytest.fixture
    def database_url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'clary.db'}"


async def test_a_lease_tells_when_its_former_holder_renewed_it_last(tmp_path: Path) -> None:
    store = await Store.open(f"sqlite:///{tmp_path / 'clary.db'}")
    try:
        began = datetime.now(UTC)
        lease = await store.acquire_lease("l", "a", 60)
        assert lease is not None
        assert lease.former_renewed_at is None
        lease = await store.renew_lease(lease, 60)
        after = await store.acquire_lease("l", "b", 60, ended=["a"])
        assert after is not None
        assert after.former_renewed_at is not None
        assert abs((after.former_renewed_at - began).total_seconds()) < 30
        await store.release_lease(after)
        third = await store.acquire_lease("l", "c", 60)
        assert third is not None
        assert third.former_renewed_at is None, "it ended in order"
    finally:
        await store.close()


async def test_a_damaged_end_of_a_lease_is_no_renewal(tmp_path: Path) -> None:
    store = await Store.open(f"sqlite:///{tmp_path / 'clary.db'}")
    try:
        assert await store.acquire_lease("l", "a", 60) is not None
        with sqlite3.connect(tmp_path / "clary.db") as database:
            database.execute("UPDATE leases SET expires_at = ?", (2**62,))
        after = await store.acquire_lease("l", "b", 60, ended=["a"])
        assert after is not None
        assert after.former_renewed_at is None
    finally:
        await store.close()
