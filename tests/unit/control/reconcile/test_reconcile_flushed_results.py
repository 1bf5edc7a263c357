"""Results of a job are forced to the disk before the job is Completed, and checkpoints after each set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clary.contract.agent_protocol import CheckpointFacts, HostPhase
from clary.contract.statuses import TrainingJobStatus
from clary.testing.control_plane import LIMITS, ControlPlane, FakeAgent


class Flush:
    """A flush that lasts until `gate` is set."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.begun: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def flush(self, what: str) -> None:
        self.asked.append(what)
        await self.gate.wait()

    def begin(self, what: str) -> None:
        self.begun.append(what)


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(tmp_path) as plane:
        yield plane


@pytest.fixture
async def flush(plane: ControlPlane) -> Flush:
    plane.gateway._objects = flush = Flush()
    return flush


async def exited(plane: ControlPlane) -> FakeAgent:
    await plane.create()
    await plane.passes()
    agent = plane.agent()
    for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
        await agent.report(phase)
    await agent.report(HostPhase.EXITED, exits=(plane.exit_of(0),))
    await agent.report(HostPhase.UPLOADING)
    return agent


async def test_a_job_is_not_completed_before_its_results_are_on_the_disk(plane: ControlPlane, flush: Flush) -> None:
    agent = await exited(plane)
    assert flush.asked == []
    flush.gate.clear()
    report = asyncio.create_task(agent.report(HostPhase.DONE, uploaded=agent.model_uris(HostPhase.DONE)))
    await asyncio.sleep(0.05)
    assert flush.asked == ["job job: its results"]
    plane.clock.advance(LIMITS.host_timeout_s + 1)
    await plane.passes()
    job = await plane.job()
    assert (job.status, job.end_cause is not None) == (TrainingJobStatus.IN_PROGRESS, True)
    assert job.hosts["algo-1"].facts.phase is HostPhase.UPLOADING, "a host that waits for the disk is not silent"
    flush.gate.set()
    await report
    job = await plane.job()
    assert job.status is TrainingJobStatus.COMPLETED
    assert job.model_artifacts_uri is not None


async def test_results_are_flushed_once_and_empty_ones_not_at_all(plane: ControlPlane, flush: Flush) -> None:
    agent = await exited(plane)
    uris = agent.model_uris(HostPhase.DONE)
    await agent.report(HostPhase.UPLOADING, uploaded=uris)
    await agent.report()
    await agent.report(HostPhase.DONE)
    assert flush.asked == ["job job: its results"]
    plane.engine.end_all_agents("job")
    await plane.passes(2)
    assert (await plane.job()).is_released
    await plane.delete()
    again = await exited(plane)
    await again.report(HostPhase.DONE, uploaded=uris, results_are_empty=True)
    assert (await plane.job()).status is TrainingJobStatus.COMPLETED
    assert flush.asked == ["job job: its results"]


async def test_a_new_set_of_checkpoints_begins_a_flush_that_no_report_waits_for(
    plane: ControlPlane, flush: Flush
) -> None:
    await plane.create(CheckpointConfig={"S3Uri": "s3://bucket/kept"})
    await plane.passes()
    agent, now = plane.agent(), plane.clock.now()
    await agent.report(HostPhase.PREPARING, checkpoints=CheckpointFacts(set_number=3, restored_set=3))
    assert flush.begun == [], "an earlier attempt has stored this set"
    first = CheckpointFacts(set_number=4, committed_at=now)
    await agent.report(HostPhase.RUNNING, checkpoints=first)
    await agent.report(HostPhase.RUNNING, checkpoints=CheckpointFacts(set_number=4, committed_at=now, dirty_files=1))
    await agent.report(HostPhase.RUNNING, checkpoints=CheckpointFacts(set_number=5, committed_at=now))
    assert flush.begun == ["job job: its checkpoints"] * 2
    assert flush.asked == []
