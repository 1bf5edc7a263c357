"""Jobs with unreadable records: their hosts are released, other jobs continue, and AWS clients get an error."""

from pathlib import Path

import pytest
from sqlalchemy import text

from clary.base.errors import EngineError, WireError
from clary.contract.agent_protocol import HostPhase
from clary.control.engines.interface import HeldAttempt
from clary.control.reconcile.unowned_hosts import UnownedHosts, end_all
from clary.control.store.damage import JobUnreadable
from clary.testing.control_plane import ControlPlane
from clary.testing.fake_engine import FakeEngine


async def ruin(plane: ControlPlane, name: str) -> None:
    statement = text("UPDATE jobs SET document = substr(document, 1, 60) WHERE name = :name")
    await plane.store._writer.run(lambda connection: connection.execute(statement, {"name": name}))


async def take_back(plane: ControlPlane) -> None:
    await UnownedHosts(plane.hub, plane.engine, plane.store).take_back()


async def test_a_restart_releases_the_hosts_of_a_job_that_cannot_be_read(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with ControlPlane.open(tmp_path, engine=engine) as plane:
        for name in ("bad", "good"):
            await plane.create(name)
        await plane.passes()
        for name in ("bad", "good"):
            await plane.agent(name).report(HostPhase.RUNNING)
        await ruin(plane, "bad")
    engine.held = [HeldAttempt(name="bad", attempt=1), HeldAttempt(name="good", attempt=1)]

    async with ControlPlane.open(tmp_path, engine=engine) as plane:
        await take_back(plane)
        assert engine.released == ["bad/1"]
        assert engine.put_aside == []  # the record may be repaired: the job's folder is kept
        with pytest.raises(WireError, match="clary quarantine show") as told:
            await plane.describe("bad")
        assert (told.value.code, told.value.http_status) == ("ValidationException", 400)
        with pytest.raises(WireError, match="must be unique"):
            await plane.create("bad")
        assert (await plane.describe("good"))["TrainingJobStatus"] == "InProgress"
        listed = await plane.call("sagemaker", "ListTrainingJobs")
        assert [item["TrainingJobName"] for item in listed["TrainingJobSummaries"]] == ["good"]
        await plane.run_to_end("good")
        assert (await plane.describe("good"))["TrainingJobStatus"] == "Completed"


@pytest.mark.parametrize("is_read_first", [True, False])
async def test_a_row_that_is_damaged_while_the_service_runs_is_repaired(tmp_path: Path, *, is_read_first: bool) -> None:
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create("job")
        await plane.passes()
        agent = plane.agent("job")
        await agent.report(HostPhase.PREPARING)
        await ruin(plane, "job")
        if is_read_first:
            with pytest.raises(JobUnreadable):
                await plane.job("job")
            await plane.passes()
        await agent.report(HostPhase.RUNNING)
        assert (await plane.job("job")).secondary_status.value == "Training"
        (entry,) = await plane.store.quarantine.entries()
        assert not entry.is_held


async def test_hosts_of_unknown_jobs_are_released_and_their_folders_put_aside(tmp_path: Path) -> None:
    async with ControlPlane.open(tmp_path) as plane:
        plane.engine.held = [
            HeldAttempt(name="unknown", attempt=2),
            HeldAttempt(name="pool_0123456789ab", attempt=1),
        ]
        await take_back(plane)
        assert plane.engine.released == ["unknown/2"]
        assert plane.engine.released_pools == ["pool_0123456789ab"]
        assert plane.engine.put_aside == ["unknown"]


async def test_a_start_moves_folders_of_ended_jobs_aside_that_the_database_lacks(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.kept_folders = ["forgotten", "known", "unreadable", "pool_0123456789ab"]
    async with ControlPlane.open(tmp_path, engine=engine) as plane:
        for name in ("known", "unreadable"):
            await plane.create(name)
        await ruin(plane, "unreadable")
        await take_back(plane)
        assert engine.put_aside == ["forgotten"]


async def test_a_service_whose_jobs_another_one_has_taken_over_ends_every_host_that_it_can() -> None:
    engine = FakeEngine()
    engine.held = [HeldAttempt(name=name, attempt=1) for name in ("job", "pool_0123456789ab", "pool_ba9876543210")]
    engine.release_errors = [EngineError("busy", retryable=True)]
    await end_all(engine)
    assert engine.released_pools == ["pool_0123456789ab", "pool_ba9876543210"]
    assert engine.released == ["job/1"]
