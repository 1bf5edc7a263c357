"""The scheduler over given states of the queue, without a cluster."""

import asyncio
from datetime import UTC, datetime

from clary.control.engines.slurm import scheduler as scheduler_module
from clary.control.engines.slurm.node_rows import read_nodes
from clary.control.engines.slurm.queue_rows import JobRow
from clary.control.engines.slurm.queue_watch import Snapshot
from clary.control.engines.slurm.scheduler import SlurmScheduler
from clary.testing.fake_clock import FakeClock

TAG = "pool_0123456789ab"
NOW = datetime(2026, 11, 26, 17, 0, 0, tzinfo=UTC)
CANCELLED = JobRow(
    job_id=6,
    leader_id=6,
    state="CANCELLED",
    reason="None",
    nodes=("node-1",),
    partition="train",
    tag=TAG,
    indices=(0,),
    grace_s=30,
    submitted_at=NOW,
    started_at=NOW,
    end_at=NOW,
    limit_s=1800.0,
)


async def test_everyone_who_looks_while_a_canceller_is_looked_up_waits_for_the_name(tmp_path, monkeypatch):
    asked = []

    async def canceller(_programs, leader_id, **_):
        asked.append(leader_id)
        await asyncio.sleep(0.01)
        return "alice"

    async def look(*, is_new=False):
        return Snapshot(asked_s=0.0, jobs=(CANCELLED,), steps=(), nodes=read_nodes(""))

    monkeypatch.setattr(scheduler_module, "canceller", canceller)
    scheduler = SlurmScheduler({}, mark="0123", folder=tmp_path, clock=FakeClock(), environment={})
    scheduler._memory.load()
    monkeypatch.setattr(scheduler._watch, "look", look)
    found = await asyncio.gather(*(scheduler.allocations() for _ in range(3)))
    assert [one[TAG].reason for one in found] == ["Slurm job 6 was cancelled by alice"] * 3
    assert asked == [6]
