"""The engine of a cluster over a scheduler in memory: grants, launches, losses, notices, ends."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from clary.base.errors import EngineError
from clary.contract.enrolment import Address, Admission, Enrolment, NodeReport
from clary.control.engines.cluster.bundle import Bundle
from clary.control.engines.cluster.cluster_engine import ClusterEngine
from clary.control.engines.cluster.cluster_faults import ClusterFaults
from clary.control.engines.cluster.enrolments import host_token
from clary.control.engines.cluster.scheduler import (
    Allocation,
    AllocationOrder,
    AllocationState,
    Boot,
    Ended,
    HostWish,
    Member,
    Notice,
    NoticeKind,
)
from clary.control.engines.interface import CapacityEnds, HostState
from clary.testing.fake_clock import FakeClock
from clary.testing.launch_plans import make_hosts, make_plan

TAG = "pool_0123456789ab"
BUNDLE = Bundle("d" * 64, b"zip")


class FakeScheduler:
    """Keeps allocations in memory, as a test sets them."""

    name = "slurm"

    def __init__(self):
        self.found = {}
        self.orders = []
        self.ended = []
        self.ended_hosts = []
        self.error = None

    async def start(self, boot):
        self.boot = boot

    async def close(self):
        return None

    async def capacity(self):
        return []

    async def ask(self, order):
        self.orders.append(order)

    async def allocations(self):
        if self.error is not None:
            raise self.error
        return self.found

    async def wanted(self, tags):
        return {}

    async def end_host(self, tag, index):
        self.ended_hosts.append((tag, index))
        return Ended.OUT_OF_REACH

    async def end(self, tag):
        self.ended.append(tag)
        self.found.pop(tag, None)
        return Ended.ASKED_FOR

    def why_not_proved(self, tag, index, proof):
        return "" if proof == "right" else "wrong"


def order(num_hosts=2):
    wishes = tuple(
        HostWish(index=index, kind="cpu", num_cpus=8, memory_bytes=None, num_gpus=0) for index in range(num_hosts)
    )
    return AllocationOrder(tag=TAG, job_name="job", hosts=wishes, limit_s=60, grace_s=5)


def granted(*alive, **words):
    members = {index: Member(node=f"n{index}", is_alive=one, **words) for index, one in enumerate(alive)}
    return Allocation(state=AllocationState.GRANTED, members=members)


def question(index):
    own = Address(interface="eth0", address=f"10.0.0.{index + 1}", prefix_length=24)
    report = NodeReport(
        node=f"n{index}", addresses=(own,), used_address=own.address, num_cpus=8, memory_bytes=1, isolation="namespaces"
    )
    return Enrolment(claim=f"{index:032x}", proof="right", report=report)


@pytest.fixture
def scheduler():
    return FakeScheduler()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def engine(tmp_path, scheduler, clock):
    boot = Boot(script="", service_url="https://head:4571", ca_pem="")
    return ClusterEngine(scheduler, tmp_path, clock, bundle=BUNDLE, boot=boot)


@pytest.fixture
def plan():
    return make_plan(hosts=make_hosts(2), pool=TAG, pool_token="pool-token")


async def enrolled(engine, *indices):
    for index in indices:
        await engine.enrolments.enrol(TAG, index, question(index))


async def test_a_wait_has_the_schedulers_reason_and_a_grant_names_the_nodes(engine, scheduler):
    await engine.ask(order())
    assert (await engine.grant(TAG, 2)).words == "slurm has been asked for 2 hosts."
    scheduler.found = {TAG: Allocation(state=AllocationState.PENDING, reason="Slurm job 7 waits: Resources")}
    assert (await engine.grant(TAG, 2)).words == "Slurm job 7 waits: Resources"
    scheduler.found = {TAG: granted(True, False)}
    assert not (await engine.grant(TAG, 2)).is_granted
    scheduler.found = {TAG: granted(True, True)}
    grant = await engine.grant(TAG, 2)
    assert (grant.is_granted, grant.words) == (True, "2 hosts were granted: n0 n1")


async def test_a_gang_is_launched_with_the_facts_of_its_nodes(engine, scheduler, plan):
    scheduler.found = {TAG: granted(True, True)}
    await engine.ask(order())
    launching = asyncio.ensure_future(engine.launch(plan))
    await enrolled(engine, 1, 0)
    ready = await launching
    assert [host.address for host in ready.hosts] == ["10.0.0.1", "10.0.0.2"]
    await engine.start_agents(ready)
    answer = await engine.enrolments.enrol(TAG, 1, question(1))
    assert isinstance(answer, Admission)
    assert (answer.host, answer.job, answer.pool_token, answer.bundle) == (
        "algo-2",
        plan.job_name,
        host_token("pool-token", engine.enrolments.claim_of(TAG, 1)),
        "d" * 64,
    )
    assert (await engine.enrolments.enrol(TAG, 0, question(0))).pool_token not in (answer.pool_token, "pool-token")


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({}, "ended before all had enrolled"),
        ({TAG: Allocation(state=AllocationState.GONE, reason="cancelled by root")}, "cancelled by root"),
        ({TAG: granted(True, False, why_dead="node n1 is down")}, "node n1 is down"),
    ],
)
async def test_a_launch_fails_with_the_reason_when_its_allocation_ends(engine, scheduler, plan, state, why):
    await engine.ask(order())
    scheduler.found = state
    with pytest.raises(EngineError, match=why):
        await asyncio.wait_for(engine.launch(plan), 10)


async def test_no_host_is_lost_while_the_scheduler_does_not_answer(engine, scheduler, plan):
    scheduler.error = EngineError("slurmctld does not answer", retryable=True)
    assert await engine.hosts(plan) == dict.fromkeys(("algo-1", "algo-2"), HostState(is_alive=True))


async def test_the_end_of_a_host_is_reported_with_its_reason(engine, scheduler, plan):
    scheduler.found = {TAG: granted(True, False, why_dead="Slurm job 20 was cancelled by root")}
    ended = HostState(is_alive=False, why_dead="Slurm job 20 was cancelled by root")
    assert await engine.hosts(plan) == {"algo-1": HostState(is_alive=True), "algo-2": ended}
    scheduler.found = {}
    assert await engine.hosts(plan) == dict.fromkeys(("algo-1", "algo-2"), HostState(is_alive=False))


async def test_notices_are_reported_by_host(engine, scheduler, plan):
    notice = Notice(kind=NoticeKind.RECLAIMED, why="preempted", ends_at=datetime(2026, 1, 1, tzinfo=UTC))
    member = Member(node="n1", is_alive=True, notice=notice)
    scheduler.found = {TAG: Allocation(state=AllocationState.ENDING, members={1: member})}
    told = await engine.hosts(plan)
    assert told["algo-2"].capacity_ends == CapacityEnds(why="preempted", ends_at=notice.ends_at)
    assert told["algo-1"].capacity_ends is None


async def test_a_lost_host_is_requested_again_and_its_index_is_free(engine, scheduler, clock):
    scheduler.found = {TAG: granted(True, True)}
    await engine.ask(order())
    await enrolled(engine, 0, 1)
    clock.advance(60)
    scheduler.found = {TAG: granted(True, False)}
    await engine.ask(order())
    assert set(engine.enrolments.reports(TAG)) == {0}
    assert len(scheduler.orders) == 2


async def test_a_boot_that_precedes_the_schedulers_list_keeps_its_index(engine, scheduler):
    await engine.ask(order())
    await enrolled(engine, 0, 1)
    for stale in ({}, {TAG: granted(True)}, {TAG: granted(True, False)}):
        scheduler.found = stale
        await engine.ask(order())
        assert set(engine.enrolments.reports(TAG)) == {0, 1}


async def test_an_ended_allocation_is_ended_in_the_scheduler_and_forgotten(engine, scheduler, plan):
    scheduler.found = {TAG: granted(True, True)}
    await engine.ask(order())
    await enrolled(engine, 0)
    assert [held.name for held in await engine.unreleased()] == [TAG]
    await engine.end(TAG)
    assert scheduler.ended == [TAG]
    assert await engine.unreleased() == []


async def test_faults_of_a_rehearsal_are_refused_but_for_the_end_of_a_host(engine, scheduler, plan):
    faults = ClusterFaults(engine)
    assert set(faults.refusals()) == {"kill-rank", "partition", "slow", "disk-full"}
    await faults.kill_host(plan, "algo-2")
    assert scheduler.ended_hosts == [(TAG, 1)]
    for work in (
        faults.kill_rank(plan, 0),
        faults.connect(plan, ["algo-1"], up=False),
        faults.connect_two(plan, ("algo-1", "algo-2"), up=True),
        faults.fill_disk(plan, "algo-1", is_full=True),
        faults.set_rate(plan, "algo-1", 1.0),
    ):
        with pytest.raises(EngineError, match="other machines"):
            await work


async def test_boots_that_end_repeatedly_fail_the_request(engine, scheduler):
    for _ in range(2):
        scheduler.found = {TAG: granted(True, True)}
        await engine.ask(order())
        scheduler.found = {TAG: granted(True, False, why_dead="its step has ended")}
        await engine.ask(order())
    scheduler.found = {TAG: granted(True, True)}
    await engine.ask(order())
    scheduler.found = {TAG: granted(True, False, why_dead="its step has ended")}
    with pytest.raises(EngineError, match=r"algo-2: its boot has ended 3 times .*its step has ended") as refused:
        await engine.ask(order())
    assert not refused.value.retryable
    await engine.end(TAG)
    await engine.ask(order())


async def test_a_listed_order_is_repeated_to_the_scheduler_only_at_intervals(engine, scheduler, clock):
    await engine.ask(order())
    scheduler.found = {TAG: Allocation(state=AllocationState.PENDING, reason="waits")}
    for _ in range(20):
        clock.advance(0.4)
        await engine.ask(order())
    assert len(scheduler.orders) == 1
    clock.advance(10)  # this repair covers an order that was submitted twice
    await engine.ask(order())
    assert len(scheduler.orders) == 2
    for missing in (granted(True), granted(True, False)):
        scheduler.found = {TAG: missing}
        await engine.ask(order())
    assert len(scheduler.orders) == 4


async def test_plain_processes_are_reported_and_refused_if_namespaces_are_required(tmp_path, scheduler, plan):
    boot = Boot(script="", service_url="https://head:4571", ca_pem="")
    scheduler.found = {TAG: granted(True, True)}
    for needs_namespaces in (False, True):
        home = tmp_path / str(needs_namespaces)
        engine = ClusterEngine(
            scheduler, home, FakeClock(), bundle=BUNDLE, boot=boot, needs_namespaces=needs_namespaces
        )
        await engine.ask(order())
        await enrolled(engine, 0)
        asked = question(1)
        plain = replace(asked.report, isolation="processes", isolation_why="unshare: Operation not permitted")
        await engine.enrolments.enrol(TAG, 1, replace(asked, report=plain))
        words = "algo-2 on n1 is plain processes, which nothing keeps apart: unshare: Operation not permitted"
        if needs_namespaces:
            with pytest.raises(EngineError, match=words):
                await engine.launch(plan)
        else:
            assert (await engine.launch(plan)).warnings[-1] == words


async def test_a_fence_whose_record_cannot_be_written_is_an_error(engine, scheduler, plan, monkeypatch):
    scheduler.found = {TAG: granted(True, True)}
    await engine.ask(order())
    await enrolled(engine, 0, 1)

    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("clary.control.engines.cluster.enrolments.replace_durably", full)
    with pytest.raises(EngineError, match="No space left on device"):
        await engine.end_host(plan, "algo-2")
    assert set(engine.enrolments.reports(TAG)) == {0}


async def test_a_launch_ends_when_its_allocation_is_released(engine, scheduler, plan):
    scheduler.found = {TAG: granted(True, True)}
    await engine.ask(order())
    launching = asyncio.ensure_future(engine.launch(plan))
    await asyncio.sleep(0.05)
    engine.enrolments.forget(TAG)
    with pytest.raises(EngineError, match="has ended"):
        await asyncio.wait_for(launching, 10)
