"""Hosts from a real Slurm: granted together, in order and only once; replaced one by one; ended. Needs root.

The boot is a stand-in (`slurm_world`): it writes down what it was given, and sleeps.
"""

import asyncio
import os
import time

import pytest
from slurm_world import AUTHORITY, MARK, order_of

from clary.base.errors import EngineError
from clary.control.engines.cluster.scheduler import AllocationState, Ended
from clary.testing.slurm_bed import GPU_NODES, NODES

pytest_plugins = ["slurm_fixtures"]
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="machines of a cluster are namespaces: needs root"),
    pytest.mark.needs("slurm"),
    pytest.mark.xdist_group("slurm-hosts"),
]


async def test_three_hosts_are_granted_in_order_and_each_boot_gets_its_arguments(world):
    scheduler, tag = await world.scheduler(), world.new_tag()
    started = time.monotonic()
    await scheduler.ask(order_of(tag, 3))
    found = await world.granted(scheduler, tag, 3)
    assert time.monotonic() - started < 10
    assert [found.members[index].node for index in range(3)] == list(NODES)
    assert abs((found.asked_at.timestamp()) - time.time()) < 30
    for index, node in enumerate(NODES):
        said = await world.said(tag, index)
        assert said["node"] == node
        assert said["ca"] == AUTHORITY
        assert said["mode"] == 0o700
        assert said["options"] == {
            "--service": "https://head:4571",
            "--ca": said["options"]["--ca"],
            "--tag": tag,
            "--index": str(index),
            "--proof": "munge",
            "--scratch": str(world.bed.scratch),
        }
        assert said["file"].startswith(f"{world.bed.scratch}/clary-0/")
        assert "SECRET" not in said["environment"]
        assert said["environment"]["SLURM_STEP_NUM_NODES"] == "1"
        log = (world.folder / f"state/output/{tag}-{index}.{said['environment']['SLURM_JOB_ID']}.log").read_text()
        assert log == "" or "own" in log  # the stand-in may not have flushed its output yet
    assert world.bed.run("squeue", "--noheader", "--format=%j %k") == f"demo-job clary:{MARK}:{tag}:0-2:5"


async def test_end_leaves_no_job_process_or_file(world):
    scheduler, tag = await world.scheduler(), world.new_tag()
    assert await scheduler.end(tag) is Ended.CERTAIN  # a tag that was never ordered
    await scheduler.ask(order_of(tag, 3))
    await world.granted(scheduler, tag, 3)
    started = time.monotonic()
    assert await scheduler.end(tag) is Ended.CERTAIN
    assert time.monotonic() - started < 5
    assert world.bed.run("squeue", "--noheader") == ""
    assert [world.bed.processes(node) for node in NODES] == [[], [], []]
    assert await scheduler.end(tag) is Ended.CERTAIN
    found = (await scheduler.allocations())[tag]
    assert found.state is AllocationState.GONE
    assert found.reason.endswith("was ended by Clary")
    later = await world.scheduler()  # as after a restart
    assert (await later.allocations())[tag].reason.endswith("was ended by Clary")


async def test_one_job_is_submitted_per_order_even_if_the_service_dies_after_sbatch(world):
    first, tag = await world.scheduler(), world.new_tag()
    await first.ask(order_of(tag, 2))
    second = await world.scheduler()  # the first has not recorded the number of its job
    await asyncio.gather(second.ask(order_of(tag, 2)), second.ask(order_of(tag, 2)))
    await first.ask(order_of(tag, 2))
    await world.granted(second, tag, 2)
    await second.ask(order_of(tag, 2))
    assert len(world.bed.run("squeue", "--noheader", "--format=%A").split()) == 1


async def test_a_second_job_for_hosts_that_already_run_is_ended(world):
    scheduler, tag = await world.scheduler(), world.new_tag()
    await scheduler.ask(order_of(tag, 2))
    before = await world.granted(scheduler, tag, 2)
    # A call of sbatch that had timed out has submitted its job after all.
    comment = f"--comment=clary:{MARK}:{tag}:0-1:5"
    late = world.bed.run("sbatch", "--parsable", "--output=/dev/null", "--nodes=2", comment, "--wrap=sleep 600")
    assert (await scheduler.allocations())[tag].members == before.members
    await scheduler.ask(order_of(tag, 2))
    assert late not in world.bed.run("squeue", "--noheader", "--format=%A").split()
    assert (await world.granted(scheduler, tag, 2)).members == before.members


async def test_a_pending_order_gives_slurms_reason_and_can_be_ended(world):
    scheduler, tag = await world.scheduler(), world.new_tag()
    world.hold("node-1", "node-2")
    world.bed.wait_for_states({"node-1": "allocated"})
    await scheduler.ask(order_of(tag, 2))

    async def look():
        return (await scheduler.allocations())[tag]

    found = await world.until(look, lambda one: "Resources" in one.reason)
    number = world.bed.run("squeue", "--noheader", "--states=PENDING", "--format=%A")
    assert found.state is AllocationState.PENDING
    assert found.reason == f"Slurm job {number} waits: Resources (1 of 3 nodes of partition train are free)"
    assert found.members == {}
    assert await scheduler.end(tag) is Ended.CERTAIN
    assert (await look()).state is AllocationState.GONE


async def test_one_host_is_ended_and_replaced_without_the_other(world):
    scheduler, tag = await world.scheduler(), world.new_tag()
    await scheduler.ask(order_of(tag, 2))
    before = await world.granted(scheduler, tag, 2)
    pid = (await world.said(tag, 0))["pid"]
    assert await scheduler.end_host(tag, 1) is Ended.CERTAIN
    assert world.bed.processes("node-2") == []
    found = (await scheduler.allocations())[tag]
    assert found.state is AllocationState.GRANTED
    assert found.members[0] == before.members[0]
    assert (found.members[1].is_alive, found.members[1].node) == (False, "node-2")
    assert "its step of Slurm job" in found.members[1].why_dead
    assert await scheduler.end_host(tag, 1) is Ended.CERTAIN
    await scheduler.ask(order_of(tag, 2))
    await scheduler.ask(order_of(tag, 2))
    after = await world.granted(scheduler, tag, 2)
    assert after.members[0] == before.members[0]
    assert after.members[1].node == "node-3"
    assert (await world.said(tag, 0))["pid"] == pid
    assert len(world.bed.run("squeue", "--noheader", "--format=%A").split()) == 2
    later = await world.scheduler()  # a new scheduler, without the first one's memory
    assert {i: m.node for i, m in (await later.allocations())[tag].members.items()} == {0: "node-1", 1: "node-3"}
    assert await scheduler.end_host(tag, 1) is Ended.CERTAIN  # the Slurm job of the replacement ends with it
    assert len(world.bed.run("squeue", "--noheader", "--format=%A").split()) == 1
    assert await scheduler.end(tag) is Ended.CERTAIN
    assert world.bed.run("squeue", "--noheader") == ""


async def test_hosts_with_and_without_gpus_share_one_heterogeneous_job(world):
    scheduler, tag = await world.scheduler(), world.new_tag()
    with_gpus = next(kind for kind in await scheduler.capacity() if kind.num_gpus == 2)
    without = next(kind for kind in await scheduler.capacity() if kind.num_gpus == 0)
    await scheduler.ask(order_of(tag, 3, kinds=[without.name, with_gpus.name, with_gpus.name], num_gpus=2))
    found = await world.granted(scheduler, tag, 3)
    assert found.members[0].node == "node-3"
    assert [found.members[1].node, found.members[2].node] == list(GPU_NODES)
    for index in (1, 2):
        said = (await world.said(tag, index))["environment"]
        assert said["CUDA_VISIBLE_DEVICES"] == "0,1"
        assert said["SLURM_STEP_GPUS"] == "0,1"
    said = (await world.said(tag, 0))["environment"]
    assert "SLURM_STEP_GPUS" not in said
    assert "SLURM_JOB_GPUS" not in said
    assert said.get("CUDA_VISIBLE_DEVICES") in (None, "NoDevFiles")
    assert await scheduler.end_host(tag, 0) is Ended.CERTAIN
    found = (await scheduler.allocations())[tag]
    assert {index: member.is_alive for index, member in found.members.items()} == {0: False, 1: True, 2: True}
    assert await scheduler.end(tag) is Ended.CERTAIN


async def test_a_node_without_gpus_sees_none_though_the_batch_host_has_some(world):
    scheduler, tag = await world.scheduler(), world.new_tag()
    kinds = {kind.num_gpus: kind.name for kind in await scheduler.capacity()}
    await scheduler.ask(order_of(tag, 2, kinds=[kinds[2], kinds[0]], num_gpus=2))
    await world.granted(scheduler, tag, 2)
    assert (await world.said(tag, 0))["environment"]["SLURM_STEP_GPUS"] == "0,1"
    said = (await world.said(tag, 1))["environment"]
    assert {name for name in said if "GPU" in name} == set()
    assert said.get("CUDA_VISIBLE_DEVICES") in (None, "NoDevFiles")


async def test_capacity_lists_kinds_of_nodes_and_how_many_are_free(world):
    tables = {"ml.g5.12xlarge": {"partition": "train", "gres": "gpu:2"}, "ml.c5.2xlarge": {"constraint": "plain"}}
    world.hold("node-2")
    world.bed.wait_for_states({"node-2": "allocated"})
    scheduler = await world.scheduler(tables)
    small, large = await scheduler.capacity()
    assert (small.num_cpus, small.num_gpus, small.num_nodes, small.num_free) == (8, 0, 1, 1)
    assert small.instance_types == ("ml.c5.2xlarge",)
    assert (large.memory_bytes, large.num_gpus, large.num_nodes, large.num_free) == (8000 << 20, 2, 2, 1)
    assert large.instance_types == ("ml.g5.12xlarge",)
    assert large.maps_to == "partition train, 8 CPUs, 7 GiB, features a10,ib, gres gpu:2"


async def test_orders_that_no_node_can_serve_are_refused_with_slurms_words(world):
    scheduler, tag = await world.scheduler(), world.new_tag()
    kind = next(kind.name for kind in await scheduler.capacity() if kind.num_gpus)
    with pytest.raises(EngineError, match=r"did not take .* configuration is not available") as caught:
        await scheduler.ask(order_of(tag, 3, kinds=[kind] * 3, num_gpus=2))
    assert not caught.value.retryable
    with pytest.raises(EngineError, match="algo-1 was to have a node of kind gone-1cpu"):
        await scheduler.ask(order_of(tag, 1, kinds=["gone-1cpu"]))


async def test_a_time_limit_above_the_partitions_is_cut_and_named_in_the_reason(world):
    scheduler, tag = await world.scheduler(), world.new_tag()
    world.hold(*NODES)
    world.bed.wait_for_states(dict.fromkeys(NODES, "allocated"))
    await scheduler.ask(order_of(tag, 1, limit_s=3 * 86400))
    found = (await scheduler.allocations())[tag]
    assert found.reason.endswith("; partition train allows 2880 of the 4322 minutes that the job may need")
    assert world.bed.run("squeue", "--noheader", "--states=PENDING", "--format=%l") == "2-00:00:00"
