"""One service per state folder, one service per database."""

import asyncio

import pytest

from clary.base.errors import EngineError, Fault, StoreError
from clary.control.server import ownership
from clary.control.server.ownership import LEASE_NAME, cancel, database_lease, sole_owner
from clary.control.state_folder import StateFolder
from clary.control.store.store import Store


@pytest.fixture
def folder(tmp_path):
    folder = StateFolder(tmp_path / "state")
    folder.create()
    return folder


@pytest.fixture
async def store(tmp_path):
    store = await Store.open(f"sqlite:///{tmp_path}/clary.db")
    yield store
    await store.close()


def test_a_second_service_of_a_folder_is_refused_until_the_first_has_ended(folder):
    with sole_owner(folder):
        with pytest.raises(EngineError, match=r"another service runs for .*clary down") as refused, sole_owner(folder):
            pass
        assert refused.value.fault is Fault.USER
    with sole_owner(folder):
        pass


async def test_the_lease_is_held_and_released(store, folder):
    async with database_lease(store, folder, asyncio.Event()):
        assert await store.acquire_lease(LEASE_NAME, "stranger", 1.0) is None
    assert await store.acquire_lease(LEASE_NAME, "stranger", 1.0) is not None


async def test_a_database_whose_lease_another_service_keeps_is_refused_at_the_deadline(store, folder, monkeypatch):
    monkeypatch.setattr(ownership, "LEASE_TTL_S", 0.0)
    monkeypatch.setattr(ownership, "LEASE_RENEWAL_S", -1.0)
    assert await store.acquire_lease(LEASE_NAME, "stranger", 60.0) is not None
    with pytest.raises(StoreError, match="another service runs the jobs of this database"):
        async with database_lease(store, folder, asyncio.Event()):
            pass


async def test_a_service_that_loses_the_lease_shuts_down(store, folder, monkeypatch):
    monkeypatch.setattr(ownership, "LEASE_RENEWAL_S", 0.01)
    monkeypatch.setattr(ownership, "LEASE_TTL_S", 0.0)
    leave = asyncio.Event()
    async with database_lease(store, folder, leave):
        while await store.acquire_lease(LEASE_NAME, "stranger", 60.0) is None:
            await asyncio.sleep(0.01)
        await asyncio.wait_for(leave.wait(), 5)
    assert await store.acquire_lease(LEASE_NAME, "third", 1.0) is None, "the stranger's lease was given away"


async def test_a_database_that_fails_for_a_while_costs_no_service_its_lease(store, folder, monkeypatch):
    monkeypatch.setattr(ownership, "LEASE_RENEWAL_S", 0.01)
    renew, outcomes = store.renew_lease, []

    async def fail_twice(lease, ttl_s):
        outcomes.append("failed" if len(outcomes) < 2 else "renewed")
        if outcomes[-1] == "failed":
            raise StoreError("a write was not confirmed: the server closed the connection", retryable=True)
        return await renew(lease, ttl_s)

    monkeypatch.setattr(store, "renew_lease", fail_twice)
    leave = asyncio.Event()
    async with database_lease(store, folder, leave):
        async with asyncio.timeout(30):
            while "renewed" not in outcomes:
                await asyncio.sleep(0.01)
        assert not leave.is_set()


async def test_cancel_waits_until_the_task_has_ended():
    ended = []

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await cancel(task)
    assert ended == [True]
