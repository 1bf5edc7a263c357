"""Contract of the lease for every database of the store: two services share a database, and one of them owns its jobs.

A test class inherits `LeaseContract` and provides a `database_url` fixture: a fresh, empty database.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from store_contract import START, count_up, make_job

from clary.base.errors import NOTHING_CHANGED, Fault, WireError
from clary.contract.agent_protocol import HostPhase
from clary.contract.launch_plan import LaunchPlan
from clary.contract.statuses import TrainingJobStatus
from clary.control.jobs.training_job import FinalMetric
from clary.control.server.ownership import FolderOwner, HeldLease, database_lease
from clary.control.server.service import end_work
from clary.control.settings import Settings
from clary.control.store.errors import StaleLease
from clary.control.store.leases import Lease
from clary.control.store.log_files.logs import LogStore
from clary.control.store.store import Store
from clary.testing.control_plane import ControlPlane
from clary.testing.fake_clock import FakeClock
from clary.testing.fake_engine import FakeEngine


@dataclass(frozen=True, kw_only=True)
class Service:
    """One of two services that share a database."""

    plane: ControlPlane
    lease: HeldLease
    leave: asyncio.Event


class NoRehearsals:
    """Rehearsals of a service without any."""

    async def interrupt(self) -> None:
        """Do nothing."""


class LeaseContract:
    """Tests that need only the URL of an empty database."""

    @pytest.fixture
    async def store(self, database_url: str) -> AsyncIterator[Store]:
        store = await Store.open(database_url)
        yield store
        await store.close()

    @pytest.fixture
    async def other_store(self, store: Store, database_url: str) -> AsyncIterator[Store]:
        """The store of a second service on the same database."""
        other = await Store.open(database_url)
        yield other
        await other.close()

    # The lease itself

    async def test_a_lease_has_one_holder_at_a_time(self, store: Store, other_store: Store) -> None:
        results = await asyncio.gather(
            *((store if number % 2 else other_store).acquire_lease("l", f"owner-{number}", 60) for number in range(8))
        )
        (lease,) = [result for result in results if result is not None]
        assert await store.acquire_lease("l", "somebody", 60) is None
        assert await store.acquire_lease("another", "somebody", 60) is not None
        assert lease.expires_at > datetime.now(UTC)

    async def test_fencing_tokens_grow_with_every_holder_of_the_lease(self, store: Store) -> None:
        first = await store.acquire_lease("l", "a", 60)
        again = await store.acquire_lease("l", "a", 60)
        assert first is not None
        assert again is not None
        await store.release_lease(again)
        second = await store.acquire_lease("l", "b", 60)
        assert second is not None
        assert first.token < again.token < second.token

    async def test_the_lease_of_an_owner_that_has_ended_is_taken_at_once(self, store: Store) -> None:
        first = await store.acquire_lease("l", "a", 60)
        assert first is not None
        assert await store.acquire_lease("l", "b", 60, ended=["c"]) is None
        second = await store.acquire_lease("l", "b", 60, ended=["c", "a"])
        assert second is not None
        assert second.token > first.token

    async def test_a_renewed_lease_keeps_its_token_and_lives_longer(self, store: Store) -> None:
        lease = await store.acquire_lease("l", "a", 1)
        assert lease is not None
        renewed = await store.renew_lease(lease, 600)
        assert renewed.token == lease.token
        assert renewed.expires_at > lease.expires_at + timedelta(seconds=500)

    # Writes under a lease

    async def test_a_store_without_a_lease_writes_as_before(self, store: Store, other_store: Store) -> None:
        assert await other_store.acquire_lease("l", "a", 60) is not None
        await store.create_job(make_job("j"), {})
        assert (await store.update_job("j", count_up)).attempt == 1
        await store.require_lease()

    async def test_an_expired_lease_that_nobody_has_taken_still_allows_writes(self, store: Store) -> None:
        lease = await store.acquire_lease("l", "a", 0.001)
        assert lease is not None
        store.act_under(lease, on_loss=_must_not_be_lost)
        await asyncio.sleep(0.05)
        await store.create_job(make_job("j"), {})
        assert (await store.update_job("j", count_up)).attempt == 1
        await store.require_lease()

    async def test_no_write_of_any_kind_succeeds_under_a_lease_that_another_owner_has_taken(
        self, store: Store, other_store: Store
    ) -> None:
        job = make_job("j")
        await store.create_job(job, {"kept": "1"})
        old = await store.acquire_lease("l", "a", 0.001)
        assert old is not None
        losses: list[StaleLease] = []
        store.act_under(old, on_loss=losses.append)
        await store.documents("dumps").put("j", 1, {"request": "first"})
        new = await _acquire_soon(other_store, "l", "b", ttl_s=60)
        other_store.act_under(new, on_loss=_must_not_be_lost)
        writes: list[Callable[[], Awaitable[object]]] = [
            lambda: store.update_job("j", count_up),
            lambda: store.update_job("j", lambda job: job),  # changes nothing, and must not look like a success either
            lambda: store.update_job("j", count_up, known=job),
            lambda: store.create_job(make_job("new"), {}),
            lambda: store.delete_job("j"),
            lambda: store.set_tags(job.arn, {"more": "2"}),
            lambda: store.remove_tags(job.arn, ["kept"]),
            lambda: store.add_metrics("j", [FinalMetric(name="loss", value=1.0, at=START)]),
            lambda: store.documents("dumps").put("j", 1, {"request": "second"}),
            lambda: store.renew_lease(old, 60),
            store.require_lease,
        ]
        for write in writes:
            with pytest.raises(StaleLease, match=r"'a' with token 1 was taken by 'b' with token 2") as refused:
                await write()
            assert refused.value.fault is Fault.INFRASTRUCTURE
            assert refused.value.retryable
            assert refused.value.details[NOTHING_CHANGED]
        results = await asyncio.gather(*(write() for write in writes), return_exceptions=True)  # in common transactions
        assert {type(result) for result in results} == {StaleLease}
        assert await store.get_job("j") == job
        assert await store.get_job("new") is None
        assert await store.get_tags(job.arn) == {"kept": "1"}
        assert await store.documents("dumps").read_one("j", 1, "request") == "first"
        assert len(losses) == 1
        await store.release_lease(old)  # the caller no longer holds it, and must not release it
        assert await other_store.acquire_lease("l", "c", 60) is None
        assert (await other_store.update_job("j", count_up)).attempt == 1

    async def test_a_lease_can_be_acquired_in_the_same_transaction_as_refused_writes(
        self, store: Store, other_store: Store
    ) -> None:
        await store.create_job(make_job("j"), {})
        old = await store.acquire_lease("l", "a", 0.001)
        assert old is not None
        store.act_under(old, on_loss=lambda _: None)
        await _acquire_soon(other_store, "l", "b", ttl_s=60)
        refused, taken = await asyncio.gather(
            store.update_job("j", count_up), store.acquire_lease("another", "a", 60), return_exceptions=True
        )
        assert isinstance(refused, StaleLease)
        assert isinstance(taken, Lease)

    async def test_a_write_under_a_lease_that_was_never_taken_is_refused(self, store: Store) -> None:
        await store.create_job(make_job("j"), {})
        store.act_under(Lease(name="nothing", owner="a", token=1, expires_at=START), on_loss=lambda _: None)
        with pytest.raises(StaleLease, match="taken by nobody"):
            await store.update_job("j", count_up)

    async def test_a_lease_outlives_a_restart_of_the_store(self, store: Store, database_url: str) -> None:
        await store.create_job(make_job("j"), {})
        lease = await store.acquire_lease("l", "a", 60)
        assert lease is not None
        await store.close()
        again = await Store.open(database_url)
        try:
            again.act_under(lease, on_loss=_must_not_be_lost)
            assert (await again.update_job("j", count_up)).attempt == 1
        finally:
            await again.close()

    # Two services of one database

    async def test_a_service_that_lost_its_lease_stops_no_job_of_its_successor(
        self, store: Store, other_store: Store, tmp_path: Path
    ) -> None:
        async with _service(store, tmp_path / "a") as first:
            await first.plane.create()
            await first.plane.passes()
            async with _successor(first, other_store, tmp_path / "b", engine=first.plane.engine) as second:
                await second.plane.passes(2)
                with pytest.raises(WireError) as refused:  # `first` has noticed nothing yet
                    await first.plane.stop()
                assert (refused.value.code, refused.value.http_status) == ("ServiceUnavailable", 503)
                assert refused.value.details[NOTHING_CHANGED]
                await asyncio.wait_for(first.leave.wait(), 5)
                await end_work(first.lease, NoRehearsals(), first.plane.hub, first.plane.reconciler)
                job = await second.plane.job()
                assert (job.status, job.end_cause) == (TrainingJobStatus.IN_PROGRESS, None)
                assert not second.leave.is_set()

    async def test_a_service_that_is_told_to_stop_before_it_notices_the_loss_stops_no_job_either(
        self, store: Store, other_store: Store, tmp_path: Path
    ) -> None:
        async with _service(store, tmp_path / "a") as first:
            await first.plane.create()
            await first.plane.passes()
            async with _successor(first, other_store, tmp_path / "b", engine=first.plane.engine) as second:
                await second.plane.passes(2)
                await end_work(first.lease, NoRehearsals(), first.plane.hub, first.plane.reconciler)
                job = await second.plane.job()
                assert (job.status, job.end_cause) == (TrainingJobStatus.IN_PROGRESS, None)
                assert first.plane.engine.released_pools == []

    async def test_a_job_that_the_successor_has_started_is_not_started_again(
        self, store: Store, other_store: Store, tmp_path: Path
    ) -> None:
        async with _service(store, tmp_path / "a") as first:
            await first.plane.create()
            async with _successor(first, other_store, tmp_path / "b") as second:
                await second.plane.passes()
                assert second.plane.engine.started == ["job/1"]
                await first.plane.passes(2)
                assert first.plane.engine.launched == []
                await asyncio.wait_for(first.leave.wait(), 5)

    async def test_a_launch_that_was_interrupted_by_the_loss_starts_no_agents(
        self, store: Store, other_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with _service(store, tmp_path / "a") as first:
            await first.plane.create()
            launch = first.plane.engine.launch
            seconds = contextlib.AsyncExitStack()

            async def launch_late(plan: LaunchPlan) -> LaunchPlan:
                await seconds.enter_async_context(_successor(first, other_store, tmp_path / "b"))
                return await launch(plan)

            monkeypatch.setattr(first.plane.engine, "launch", launch_late)
            async with seconds:
                await first.plane.passes()
                assert first.plane.engine.launched == ["job/1"]
                assert first.plane.engine.started == []

    async def test_hosts_that_the_successor_keeps_are_not_released(
        self, store: Store, other_store: Store, tmp_path: Path
    ) -> None:
        async with _service(store, tmp_path / "a") as first:
            await first.plane.create()
            await first.plane.passes()
            agent = first.plane.agent()
            for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
                await agent.report(phase)
            for phase in (HostPhase.EXITED, HostPhase.DONE):
                await agent.report(phase, exits=(first.plane.exit_of(0),), uploaded=agent.model_uris(phase))
            assert (await first.plane.job()).status is TrainingJobStatus.COMPLETED
            await first.plane.passes()
            first.plane.clock.advance(60)
            async with _successor(first, other_store, tmp_path / "b"):
                await first.plane.passes(2)
                assert (first.plane.engine.released, first.plane.engine.released_pools) == ([], [])


@contextlib.asynccontextmanager
async def _service(
    store: Store, home: Path, *, ended: tuple[str, ...] = (), engine: FakeEngine | None = None
) -> AsyncIterator[Service]:
    """A service with a folder of its own that holds the lease of the store's database."""
    home.mkdir()
    clock = FakeClock()
    logs = LogStore(home / "logs", clock=clock)
    settings, leave = Settings(home=str(home)), asyncio.Event()
    owner = FolderOwner(path=home / "service.lock", name=home.name, ended=ended)
    try:
        async with database_lease(store, owner, leave) as lease:
            plane = ControlPlane(store, logs, clock=clock, engine=engine or FakeEngine(), settings=settings)
            await plane.hub.load()
            yield Service(plane=plane, lease=lease, leave=leave)
            await plane.services.log_queries.close()
    finally:
        await logs.close()


@contextlib.asynccontextmanager
async def _successor(
    first: Service, store: Store, home: Path, *, engine: FakeEngine | None = None
) -> AsyncIterator[Service]:
    """A second service that takes over the jobs while the first one sleeps, so that its lease has expired.

    Args:
        first: the first service.
        store: the second service's store.
        home: the second service's folder.
        engine: engine of both services, if both reach the same hosts.
    """
    async with _service(store, home, ended=(first.lease.owner,), engine=engine) as second:
        yield second


def _must_not_be_lost(stale: StaleLease) -> None:
    pytest.fail(f"the lease counts as lost: {stale}")


async def _acquire_soon(store: Store, name: str, owner: str, *, ttl_s: float) -> Lease:
    deadline = time.monotonic() + 10
    while True:
        lease = await store.acquire_lease(name, owner, ttl_s)
        if lease is not None:
            return lease
        assert time.monotonic() < deadline, "the lease never expired"
        await asyncio.sleep(0.01)
