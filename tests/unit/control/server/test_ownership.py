"""One service per state folder, one service per database."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from clary.base.errors import EngineError, Fault, StoreError
from clary.control.server import ownership
from clary.control.server.ownership import LEASE_NAME, FolderOwner, cancel, database_lease, sole_owner
from clary.control.state_folder import StateFolder
from clary.control.store.errors import StaleLease
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


def test_a_state_folder_of_backups_alone_can_be_owned(tmp_path):
    with sole_owner(StateFolder(tmp_path)) as owner:  # only backups were copied here: no service has made the rest
        owner.settle()
    assert (tmp_path / "run" / "service.lock").exists()


def test_a_lock_that_cannot_be_opened_is_an_error_that_names_the_folder(tmp_path):
    (tmp_path / "run").write_text("no folder")
    for root in (tmp_path, tmp_path / "missing"):
        with pytest.raises(EngineError, match=f"state folder {root}: .* cannot be opened: ") as refused:  # noqa: SIM117
            with sole_owner(StateFolder(root)):
                pass
        assert refused.value.fault is Fault.USER


def test_a_refused_service_leaves_the_name_of_the_living_one_in_the_lock(folder):
    with sole_owner(folder) as living:
        living.settle()
        with pytest.raises(EngineError), sole_owner(folder):
            pass
    with sole_owner(folder) as following:
        assert following.ended == (living.name,)


def test_every_service_has_a_name_of_its_own_and_knows_the_ended_ones_of_its_folder(folder):
    with sole_owner(folder) as first:
        assert first.ended == ()
        first.announce()
    with sole_owner(folder) as second:  # `first` was killed before or after it took the lease
        assert second.ended == (first.name,)
        second.announce()
    with sole_owner(folder) as third:
        assert third.ended == (first.name, second.name)
        third.announce()
        third.settle()
    with sole_owner(folder) as fourth:
        assert fourth.ended == (third.name,)
    assert len({first.name, second.name, third.name, fourth.name}) == 4


def test_a_lock_proves_nothing_about_services_of_other_machines(folder, monkeypatch):
    with sole_owner(folder) as owner:
        owner.settle()
    monkeypatch.setattr(ownership.socket, "gethostname", lambda: "another")
    with sole_owner(folder) as other:
        assert other.ended == ()


def test_a_damaged_lock_file_names_nobody(folder):
    (folder.root / "run" / "service.lock").write_bytes(b"\xff\x00\n" * 100_000)
    with sole_owner(folder) as owner:
        assert owner.ended == ()
        owner.settle()
    with sole_owner(folder) as following:
        assert following.ended == (owner.name,)


def test_a_name_that_cannot_be_recorded_is_logged(folder, caplog):
    owner = FolderOwner(path=folder.root, name="host:/folder:0")  # a folder cannot be written
    owner.announce()
    assert "the next service waits until the lease of this one has expired" in caplog.text


@pytest.fixture
def owner(folder):
    with sole_owner(folder) as owner:
        yield owner


async def test_the_lease_is_held_and_released(store, owner):
    async with database_lease(store, owner, asyncio.Event()) as lease:
        assert (lease.owner, lease.is_lost) == (owner.name, False)
        assert await store.acquire_lease(LEASE_NAME, "stranger", 1.0) is None
    assert await store.acquire_lease(LEASE_NAME, "stranger", 1.0) is not None


async def test_a_service_that_leaves_its_jobs_running_tells_when_and_releases_its_lease(store, owner):
    began = datetime.now(UTC)
    async with database_lease(store, owner, asyncio.Event(), jobs_go_on=lambda: True):
        pass
    lease = await store.acquire_lease(LEASE_NAME, "stranger", ownership.LEASE_TTL_S)
    assert lease is not None, "also a service on another folder need not wait"
    assert abs((lease.former_renewed_at - began).total_seconds()) < 5


async def test_a_service_that_ends_with_its_jobs_leaves_no_sign(store, owner):
    async with database_lease(store, owner, asyncio.Event()):
        pass
    lease = await store.acquire_lease(LEASE_NAME, "stranger", ownership.LEASE_TTL_S)
    assert lease.former_renewed_at is None


async def test_a_database_whose_lease_another_service_keeps_is_refused_at_the_deadline(store, owner, monkeypatch):
    monkeypatch.setattr(ownership, "LEASE_TTL_S", 0.0)
    monkeypatch.setattr(ownership, "LEASE_RENEWAL_S", -1.0)
    assert await store.acquire_lease(LEASE_NAME, "stranger", 60.0) is not None
    with pytest.raises(StoreError, match="another service runs the jobs of this database"):
        async with database_lease(store, owner, asyncio.Event()):
            pass


async def test_a_service_that_starts_after_a_kill_takes_over_at_once(store, folder):
    with sole_owner(folder) as killed:
        killed.announce()
        assert await store.acquire_lease(LEASE_NAME, killed.name, 60.0) is not None
    with sole_owner(folder) as following:
        async with asyncio.timeout(5), database_lease(store, following, asyncio.Event()) as lease:
            assert lease.owner == following.name
            assert lease.former_alive_at is not None
            assert abs((lease.former_alive_at - datetime.now(UTC)).total_seconds()) < 60


async def test_containers_with_the_same_name_and_path_are_two_owners(tmp_path, store, folder, monkeypatch):
    other_folder = StateFolder(tmp_path / "volume" / "state")
    other_folder.create()
    with sole_owner(folder) as living, sole_owner(other_folder) as other:
        # in the other container, the folder has the same path and the machine the same name
        same = replace(other, name=f"{living.name.rpartition(':')[0]}:{other.name.rpartition(':')[2]}")
        async with database_lease(store, living, asyncio.Event()):
            monkeypatch.setattr(ownership, "LEASE_RENEWAL_S", -ownership.LEASE_TTL_S)  # do not wait
            second = await Store.open(f"sqlite:///{store.file}")
            with pytest.raises(StoreError, match="another service runs the jobs of this database"):
                async with database_lease(second, same, asyncio.Event()):
                    pass
            await second.close()


async def test_a_row_that_a_sleeping_service_still_locks_is_waited_for(store, owner, monkeypatch):
    acquire, failures = store.acquire_lease, [StoreError("canceling statement due to lock timeout", retryable=True)]

    async def acquire_late(*arguments, **options):
        if failures:
            raise failures.pop()
        return await acquire(*arguments, **options)

    monkeypatch.setattr(store, "acquire_lease", acquire_late)
    async with asyncio.timeout(10), database_lease(store, owner, asyncio.Event()) as lease:
        assert lease.owner == owner.name


async def test_a_database_that_gives_no_lease_is_told_with_its_own_words(store, owner, monkeypatch):
    async def refuse(*arguments, **options):
        raise StoreError("no such table: leases")

    monkeypatch.setattr(store, "acquire_lease", refuse)
    with pytest.raises(StoreError, match="no such table"):
        async with database_lease(store, owner, asyncio.Event()):
            pass


@pytest.fixture
async def stranger(store):
    """The store of another service on the same database."""
    stranger = await Store.open(f"sqlite:///{store.file}")
    yield stranger
    await stranger.close()


async def test_a_service_that_loses_the_lease_shuts_down(store, stranger, owner, monkeypatch, caplog):
    monkeypatch.setattr(ownership, "LEASE_RENEWAL_S", 0.01)
    monkeypatch.setattr(ownership, "LEASE_TTL_S", 0.0)
    leave = asyncio.Event()
    async with database_lease(store, owner, leave) as lease:
        while await stranger.acquire_lease(LEASE_NAME, "stranger", 60.0) is None:
            await asyncio.sleep(0.01)
        await asyncio.wait_for(leave.wait(), 5)
        assert lease.is_lost
    assert await stranger.acquire_lease(LEASE_NAME, "third", 1.0) is None, "the stranger's lease was given away"
    told = [record.message for record in caplog.records if "the service leaves and touches no job" in record.message]
    assert len(told) == 1
    assert "was taken by 'stranger'" in told[0]


async def test_a_write_notices_the_loss_of_the_lease_before_the_next_renewal(store, stranger, owner):
    leave = asyncio.Event()
    async with database_lease(store, owner, leave) as lease:
        assert await stranger.acquire_lease(LEASE_NAME, "stranger", 60.0, ended=[owner.name]) is not None
        with pytest.raises(StaleLease):
            await store.set_tags("arn", {"key": "value"})
        await asyncio.wait_for(leave.wait(), 5)
        assert lease.is_lost


@pytest.mark.parametrize(
    "failure",
    [StoreError("a write was not confirmed: the server closed the connection", retryable=True), OSError("odd")],
)
async def test_a_database_that_fails_for_a_while_costs_no_service_its_lease(store, owner, monkeypatch, failure):
    monkeypatch.setattr(ownership, "LEASE_RENEWAL_S", 0.01)
    renew, outcomes = store.renew_lease, []

    async def fail_twice(lease, ttl_s):
        outcomes.append("failed" if len(outcomes) < 2 else "renewed")
        if outcomes[-1] == "failed":
            raise failure
        return await renew(lease, ttl_s)

    monkeypatch.setattr(store, "renew_lease", fail_twice)
    leave = asyncio.Event()
    async with database_lease(store, owner, leave):
        async with asyncio.timeout(30):
            while "renewed" not in outcomes:
                await asyncio.sleep(0.01)
        assert not leave.is_set()


async def test_a_database_that_stays_away_takes_one_line_of_the_log(store, owner, monkeypatch, caplog):
    """Renewals are tried again each second."""
    monkeypatch.setattr(ownership, "LEASE_RENEWAL_S", 0.001)
    tries = []

    async def fail(lease, ttl_s):
        tries.append(lease)
        raise StoreError("the server is away", retryable=True)

    monkeypatch.setattr(store, "renew_lease", fail)
    async with database_lease(store, owner, asyncio.Event()), asyncio.timeout(30):
        while len(tries) < 10:
            await asyncio.sleep(0.001)
    told = [record.getMessage() for record in caplog.records]
    assert told == ["the lease of the database could not be renewed, trying again: the server is away"]


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
