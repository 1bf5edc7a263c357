"""A real Slurm that reclaims hosts, loses a node, or is down: notices, causes, and the scheduler's reports.

Needs root. The boot is a stand-in (`slurm_world`): it writes down what it was given, records each SIGTERM, and sleeps.
"""

import os
import time

import pytest
from slurm_world import MARK, order_of

from clary.base.errors import EngineError
from clary.control.engines.cluster.scheduler import AllocationState, Ended, NoticeKind
from clary.control.engines.slurm.scheduler import HOST_END_WAIT_S
from clary.testing.slurm_bed import GRACE_S, KILL_WAIT_S, NODES

pytest_plugins = ["slurm_fixtures"]
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="machines of a cluster are namespaces: needs root"),
    pytest.mark.needs("slurm"),
    pytest.mark.xdist_group("slurm-takes-back"),
]

BUSY_S = 3.0  # seconds that Slurm's programs may take on a busy machine


def looking_at(scheduler, tag):
    """Return a function that returns the current state of one allocation."""

    async def look():
        return (await scheduler.allocations()).get(tag)

    return look


@pytest.mark.long(20)
async def test_preemption_gives_a_notice_with_its_grace_and_then_the_cause_of_the_end(world):
    scheduler, tag = await world.scheduler({"*": {"spot_partition": "spot"}}), world.new_tag()
    await scheduler.ask(order_of(tag, 2, is_spot=True))
    found = await world.granted(scheduler, tag, 2)
    assert found.notice_grace_s == GRACE_S
    world.hold("node-2", partition="prod")
    look = looking_at(scheduler, tag)
    found = await world.until(look, lambda one: any(member.notice for member in one.members.values()))
    seen_at = time.time()
    assert found.state is AllocationState.ENDING
    assert found.reason.endswith("was preempted")
    for member in found.members.values():
        assert (member.is_alive, member.notice.kind) == (True, NoticeKind.RECLAIMED)
        assert GRACE_S - 5 < member.notice.ends_at.timestamp() - seen_at <= GRACE_S + 1
    (term,) = (await world.until(lambda: world.said(tag, 0), lambda said: said["terms"]))["terms"]
    assert abs(term + GRACE_S - found.members[0].notice.ends_at.timestamp()) < 3
    found = await world.until(look, lambda one: one.state is AllocationState.GONE)
    assert time.time() - seen_at > GRACE_S - 5
    assert found.reason.endswith("was preempted")
    assert {member.why_dead for member in found.members.values()} == {found.reason}


@pytest.mark.long(10)
async def test_a_job_cancelled_by_root_gets_a_notice_that_names_root(world):
    scheduler, tag = await world.scheduler(), world.new_tag()
    await scheduler.ask(order_of(tag, 2))
    await world.granted(scheduler, tag, 2)
    assert (await looking_at(scheduler, tag)()).notice_grace_s == KILL_WAIT_S
    number = world.bed.run("squeue", "--noheader", "--format=%A")
    world.bed.run("scancel", number)
    look = looking_at(scheduler, tag)
    found = await world.until(look, lambda one: all(member.notice for member in one.members.values()))
    why = f"Slurm job {number} was cancelled by root"
    assert (found.state, found.reason) == (AllocationState.ENDING, why)
    for member in found.members.values():
        assert (member.is_alive, member.notice.kind, member.notice.why) == (True, NoticeKind.CANCELLED, why)
        assert 0 < member.notice.ends_at.timestamp() - time.time() <= KILL_WAIT_S + 1
    (term,) = (await world.until(lambda: world.said(tag, 1), lambda said: said["terms"]))["terms"]
    await scheduler.ask(order_of(tag, 1))  # a job that is ending counts as no host
    assert len(world.bed.run("squeue", "--noheader", "--format=%A").split()) == 2
    world.bed.run("scancel", "--state=PENDING", "--user=root")
    while "-boot.py" in str(world.bed.processes("node-2")):
        assert time.time() - term < KILL_WAIT_S + 15
        time.sleep(0.05)
    assert time.time() - term > KILL_WAIT_S - 1  # the whole grace could be used
    await scheduler.end(tag)
    found = await world.until(look, lambda one: one.state is AllocationState.GONE)
    assert found.members[1].why_dead == why


async def test_a_pending_job_cancelled_by_root_is_gone_with_that_cause(world):
    scheduler, tag = await world.scheduler(), world.new_tag()
    world.hold(*NODES)
    world.bed.wait_for_states(dict.fromkeys(NODES, "allocated"))
    await scheduler.ask(order_of(tag, 1))
    number = world.bed.run("squeue", "--noheader", "--states=PENDING", "--format=%A")
    world.bed.run("scancel", number)
    found = await world.until(looking_at(scheduler, tag), lambda one: one.state is AllocationState.GONE)
    assert found.reason == f"Slurm job {number} was cancelled by root"


async def test_a_drained_node_gives_a_notice_to_its_own_host_only(world):
    scheduler, tag = await world.scheduler(), world.new_tag()
    await scheduler.ask(order_of(tag, 2))
    await world.granted(scheduler, tag, 2)
    world.bed.run("scontrol", "update", "NodeName=node-2", "State=DRAIN", "Reason=new disk | soon")
    try:
        look = looking_at(scheduler, tag)
        found = await world.until(look, lambda one: one.members[1].notice is not None)
        assert found.state is AllocationState.GRANTED
        assert found.members[0].notice is None
        notice = found.members[1].notice
        assert (notice.kind, notice.ends_at) == (NoticeKind.DRAINED, None)
        assert notice.why == "node node-2 is to be empty (draining: new disk | soon)"
        assert found.members[1].is_alive
    finally:
        world.bed.run("scontrol", "update", "NodeName=node-2", "State=RESUME")


async def test_a_time_limit_that_is_near_gives_the_host_a_notice(world):
    scheduler, tag = await world.scheduler(), world.new_tag()
    await scheduler.ask(order_of(tag, 1, limit_s=1))
    found = await world.granted(scheduler, tag, 1)
    assert found.members[0].notice is None
    world.bed.run("scontrol", "update", f"JobId={world.bed.run('squeue', '--noheader', '--format=%A')}", "TimeLimit=1")
    look = looking_at(scheduler, tag)
    found = await world.until(look, lambda one: one.members[0].notice is not None)
    assert found.state is AllocationState.ENDING
    notice = found.members[0].notice
    assert notice.kind is NoticeKind.TIME_LIMIT
    assert notice.why.endswith("reaches its time limit of 1 min")
    assert abs(notice.ends_at.timestamp() - time.time() - 60) < 15


@pytest.mark.long(35)
async def test_a_host_on_a_node_without_power_is_replaced_on_another_node(world):
    scheduler, tag = await world.scheduler(), world.new_tag()
    await scheduler.ask(order_of(tag, 2))
    before = await world.granted(scheduler, tag, 2)
    pid = (await world.said(tag, 1))["pid"]
    world.bed.power_off("node-1")  # this node also runs the batch script
    try:
        look = looking_at(scheduler, tag)
        began_s = time.monotonic()
        assert await scheduler.end_host(tag, 0) is not Ended.CERTAIN  # the node may be out of reach and still run
        assert time.monotonic() - began_s < HOST_END_WAIT_S + BUSY_S  # the scheduler does not dial a silent node
        found = await look()
        assert "node-1 did not end its step of Slurm job" in found.members[0].why_dead  # before Slurm knows
        assert found.members[1] == before.members[1]
        assert await scheduler.end_host(tag, 0) is Ended.OUT_OF_REACH
        await scheduler.ask(order_of(tag, 2))
        found = await world.granted(scheduler, tag, 2)
        assert {index: member.node for index, member in found.members.items()} == {0: "node-3", 1: "node-2"}
        assert (await world.said(tag, 1))["pid"] == pid
        world.bed.wait_for_states({"node-1": "down*"})
        later = await world.scheduler(state="other")  # knows only Slurm's own data
        assert {i: m.node for i, m in (await later.allocations())[tag].members.items()} == {0: "node-3", 1: "node-2"}
        assert world.bed.processes("node-2") != []
        await scheduler.end(tag)
        await world.until(look, lambda one: one.state is AllocationState.GONE)
    finally:
        world.bed.power_on("node-1")


@pytest.mark.long(30)
async def test_no_host_is_lost_while_the_controller_is_down(world):
    scheduler, tag = await world.scheduler(), world.new_tag()
    await scheduler.ask(order_of(tag, 2))
    before = await world.granted(scheduler, tag, 2)
    world.bed.kill_controller()
    with pytest.raises(EngineError, match="Slurm does not answer") as caught:
        await world.until(looking_at(scheduler, tag), lambda one: False)
    assert caught.value.retryable
    with pytest.raises(EngineError) as caught:
        await scheduler.ask(order_of(world.new_tag(), 1))
    assert caught.value.retryable
    with pytest.raises(EngineError) as caught:
        await (await world.scheduler(state="other")).capacity()
    assert caught.value.retryable
    world.bed.start_controller()
    found = await world.granted(scheduler, tag, 2)
    assert found.members == before.members
    await scheduler.ask(order_of(tag, 2))
    assert len(world.bed.run("squeue", "--noheader", "--format=%A").split()) == 1


async def test_jobs_of_other_users_and_services_do_not_count_as_hosts(world):
    scheduler, tag = await world.scheduler(), world.new_tag()
    comment = f"--comment=clary:{MARK}:{tag}:0:5"
    options = ["--output=/dev/null", "--chdir=/", "--job-name=demo-job", "--nodelist=node-1", "--mem=10"]
    command = ["sbatch", "--parsable", *options, "--wrap=sleep 600"]
    other = world.bed.run(*command, comment, user=65534)
    newline = f"--comment=x\n7|7|0|RUNNING|node-1|train|N/A|N/A|N/A|1:00|1|None|clary:{MARK}:{tag}:0:5"
    world.bed.run(*command, newline, user=65534)
    world.bed.run(*command, comment.replace(MARK, "deadbeef"))
    await world.until(lambda: _listed(world), lambda text: text.count("RUNNING") == 3)
    assert await looking_at(scheduler, tag)() is None
    assert await scheduler.end(tag) is Ended.CERTAIN
    await scheduler.ask(order_of(tag, 1))
    await world.granted(scheduler, tag, 1)
    assert await scheduler.end(tag) is Ended.CERTAIN
    assert (await _listed(world)).count("RUNNING") == 3
    assert other in world.bed.run("squeue", "--noheader", "--format=%A").split()


async def _listed(world):
    return world.bed.run("squeue", "--noheader", "--format=%A %T")


async def test_a_proof_is_valid_once_for_its_own_host_and_user(world):
    scheduler, tag = await world.scheduler(), world.new_tag()
    await scheduler.ask(order_of(tag, 2))
    await world.granted(scheduler, tag, 2)
    proof = (await world.said(tag, 0))["proof"]
    assert scheduler.why_not_proved(tag, 0, proof) == ""
    assert scheduler.why_not_proved(tag, 0, proof) == "munge refuses the credential: it was used before"
    proof = (await world.said(tag, 1))["proof"]
    assert "is over other words than" in scheduler.why_not_proved(tag, 0, proof)
    foreign = world.bed.run("munge", "--string", f"{tag} 0", user=65534)
    assert "was made by user 65534; expected 0" in scheduler.why_not_proved(tag, 0, foreign)
    for words in (f"{world.new_tag()} 0", f"{tag} 0\n", f"{tag} 00", f" {tag} 0"):
        proof = world.bed.run("munge", "--string", words)
        assert "is over other words than" in scheduler.why_not_proved(tag, 0, proof)
    old = world.bed.run("munge", "--ttl", "1", "--string", f"{tag} 0")
    time.sleep(2.1)
    assert "it has expired" in scheduler.why_not_proved(tag, 0, old)
    for text in ("", "token", "--help", "MUNGE:AAAA:", "MUNGE:" + "A" * 5000 + ":", proof[:-9] + ":"):
        assert scheduler.why_not_proved(tag, 0, text) != ""
