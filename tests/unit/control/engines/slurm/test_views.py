"""Rows of the queue, converted to allocations."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from clary.control.engines.cluster.scheduler import AllocationState, NoticeKind
from clary.control.engines.slurm.memory import Memory
from clary.control.engines.slurm.node_rows import read_nodes
from clary.control.engines.slurm.queue_rows import JobRow, StepRow
from clary.control.engines.slurm.queue_watch import Snapshot
from clary.control.engines.slurm.views import LEAVE_PATIENCE_S, START_PATIENCE_S, Sight, allocations_of

TAG = "pool_0123456789ab"
NOW = datetime(2026, 11, 26, 17, 0, 0, tzinfo=UTC)
NODES = "\n".join(f"node-{i}|{{}}|8|8000|(null)|(null)|train*|infinite|none" for i in (1, 2, 3))


def job(job_id=6, indices=(0, 1), *, state="RUNNING", nodes=("node-1", "node-2"), limit_s=1800.0, **changes):
    started = NOW - timedelta(seconds=10)
    row = JobRow(
        job_id=job_id,
        leader_id=job_id,
        state=state,
        reason="None",
        nodes=nodes,
        partition="train",
        tag=TAG,
        indices=indices,
        grace_s=30,
        submitted_at=started,
        started_at=started,
        end_at=started + timedelta(seconds=limit_s),
        limit_s=limit_s,
    )
    return replace(row, **changes)


def waiting(job_id=7, indices=(1,), reason="Resources", **changes):
    return job(job_id, indices, state="PENDING", nodes=(), reason=reason, **changes)


def step(job_id, index, node):
    return StepRow(job_id=job_id, step_id=f"{job_id}.{index}", index=index, node=node)


STEPS = (step(6, 0, "node-1"), step(6, 1, "node-2"))


class Cluster:
    """Converts successive states of the cluster, with one memory of earlier states."""

    def __init__(self, folder):
        self.memory = Memory(folder)
        self.memory.load()

    def look(self, *jobs, steps=(), states=("allocated",) * 3, asked_s=0.0, now=NOW, remarks=None, **facts):
        nodes = read_nodes(NODES.format(*states))
        snapshot = Snapshot(asked_s=asked_s, jobs=jobs, steps=tuple(steps), nodes=nodes)
        self.memory.note(snapshot)
        sight = Sight(snapshot=snapshot, memory=self.memory, now=now, kill_wait_s=30.0, **facts)
        return allocations_of(sight, remarks=remarks or {}).get(TAG)


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


def alive(found):
    return {index: member.is_alive for index, member in found.members.items()}


def test_a_waiting_job_has_a_reason(cluster):
    found = cluster.look(waiting(indices=(0, 1)), states=("idle", "planned", "allocated"), remarks={TAG: "too long"})
    assert found.state is AllocationState.PENDING
    assert found.reason == "Slurm job 7 waits: Resources (2 of 3 nodes of partition train are free); too long"
    assert found.members == {}
    assert cluster.look(waiting(reason="Priority")).reason == "Slurm job 7 waits: Priority"


@pytest.mark.parametrize(
    ("reason", "more"),
    [
        ("PartitionNodeLimit", "the job asks for more nodes than partition train allows, or than are up"),
        ("JobHeldAdmin", "an administrator holds it; scontrol release 7 ends that"),
        ("AssocGrpGRES", "a limit of the account is reached"),
        ("QOSMaxNodePerUserLimit", "a limit of the QOS is reached"),
        ("InvalidQOS", "see the keys account and qos of [slurm] in the settings"),
        ("PartitionDown", "partition train is down; scontrol update PartitionName=train State=UP ends that"),
    ],
)
def test_a_wait_that_no_free_node_ends_says_what_ends_it(cluster, reason, more):
    assert cluster.look(waiting(reason=reason)).reason == f"Slurm job 7 waits: {reason} ({more})"


def test_a_wait_for_nodes_out_of_use_names_them(cluster):
    words = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
    found = cluster.look(waiting(reason=words), states=("drained", "idle", "down*"))
    assert found.reason == f"Slurm job 7 waits: {words} (node-1 is drained, node-3 is down*)"
    found = cluster.look(waiting(reason="Resources"), states=("drained", "idle", "allocated"))
    assert found.reason.endswith("(1 of 3 nodes of partition train are free; node-1 is drained)")
    assert "has not looked at it yet" in cluster.look(waiting(reason="None")).reason
    found = cluster.look(job(state="CONFIGURING"))
    assert (found.state, found.members) == (AllocationState.PENDING, {})


def test_a_host_is_alive_from_the_grant_until_its_step_has_disappeared(cluster):
    assert alive(cluster.look(job())) == {0: True, 1: True}
    assert alive(cluster.look(job(), steps=STEPS)) == {0: True, 1: True}
    found = cluster.look(job(), steps=STEPS[:1])
    assert found.state is AllocationState.GRANTED
    assert alive(found) == {0: True, 1: False}
    assert found.members[1].why_dead == "its step of Slurm job 6 has ended"


def test_a_step_that_never_comes_is_dead_after_a_while(cluster):
    assert alive(cluster.look(job(), asked_s=100.0)) == {0: True, 1: True}
    assert alive(cluster.look(job(), asked_s=100.0 + START_PATIENCE_S)) == {0: True, 1: True}
    found = cluster.look(job(), asked_s=101.0 + START_PATIENCE_S)
    assert alive(found) == {0: False, 1: False}
    assert found.members[0].why_dead == "no step of it was seen in 60 s of Slurm job 6"


def test_a_host_on_a_failed_node_is_dead_though_its_step_is_listed(cluster):
    cluster.look(job(), steps=STEPS)
    found = cluster.look(job(nodes=("node-1",)), steps=STEPS, states=("allocated", "down*", "idle"))
    assert alive(found) == {0: True, 1: False}
    assert found.members[1].why_dead == "Slurm job 6 has lost node node-2 (down*)"
    # the node is back, and its host stays lost
    assert alive(cluster.look(job(nodes=("node-1",)), steps=STEPS)) == {0: True, 1: False}


def test_after_a_restart_a_failed_nodes_index_is_not_given_to_another_node(cluster):
    found = cluster.look(job(nodes=("node-2",)), steps=STEPS[1:])
    assert {index: (member.node, member.is_alive) for index, member in found.members.items()} == {
        0: ("no node", False),
        1: ("node-2", True),
    }


def test_a_silent_node_is_not_lost_yet(cluster):
    found = cluster.look(job(), steps=STEPS, states=("allocated*", "allocated", "idle"))
    assert alive(found) == {0: True, 1: True}


def test_the_replacement_job_decides_the_state_of_a_lost_host(cluster):
    cluster.look(job(), steps=STEPS)
    found = cluster.look(job(), waiting(), steps=STEPS[:1])
    assert (found.state, list(found.members)) == (AllocationState.PENDING, [0])
    extra = job(7, (1,), nodes=("node-3",))
    found = cluster.look(job(), extra, steps=STEPS[:1])
    assert (found.state, found.members[1].node) == (AllocationState.GRANTED, "node-3")
    later = Cluster(cluster.memory._folder.parent / "later")  # this memory has no step of the lost host
    found = later.look(job(), extra, steps=(STEPS[0], step(7, 1, "node-3")))
    assert (found.state, found.members[1].node) == (AllocationState.GRANTED, "node-3")


def test_a_second_job_for_existing_hosts_changes_nothing(cluster):
    found = cluster.look(job(), waiting(8, (0, 1)), steps=STEPS)
    assert (found.state, alive(found)) == (AllocationState.GRANTED, {0: True, 1: True})


def test_preemption_is_a_notice_for_all_hosts_and_then_the_cause(cluster):
    early = job(end_at=NOW + timedelta(seconds=10))
    cluster.look(early, steps=STEPS)
    cluster.memory.of(6).preempted_until = early.end_at
    found = cluster.look(early, steps=STEPS, graces_s={"train": 10.0})
    assert (found.state, found.reason, found.notice_grace_s) == (
        AllocationState.ENDING,
        "Slurm job 6 was preempted",
        10,
    )
    assert {member.notice.kind for member in found.members.values()} == {NoticeKind.RECLAIMED}
    assert found.members[0].notice.ends_at == early.end_at
    found = cluster.look(replace(early, state="COMPLETING"), steps=STEPS)
    assert (found.state, alive(found)) == (AllocationState.ENDING, {0: True, 1: True})
    found = cluster.look(replace(early, state="PREEMPTED"))
    assert (found.state, found.reason) == (AllocationState.GONE, "Slurm job 6 was preempted")


def test_a_cancelled_job_is_reported_while_its_steps_end(cluster):
    cluster.look(job(), steps=STEPS)
    leaving = job(state="COMPLETING", end_at=NOW)
    cluster.memory.of(6).cancelled_by = "alice"
    found = cluster.look(leaving, steps=STEPS)
    assert (found.state, found.reason) == (AllocationState.ENDING, "Slurm job 6 was cancelled by alice")
    assert found.members[0].notice.kind is NoticeKind.CANCELLED
    assert found.members[0].notice.ends_at == NOW + timedelta(seconds=30)
    cluster.memory.of(6).cancelled_by = ""
    found = cluster.look(replace(leaving, state="CANCELLED"))
    assert found.members[0].notice.why == "Slurm job 6 was cancelled by somebody other than Clary"
    assert found.members[0].why_dead == "Slurm job 6 was cancelled by somebody other than Clary"


def test_a_job_that_disappears_without_steps_has_a_short_time_for_its_reason(cluster):
    cluster.look(job(), steps=STEPS)
    leaving = job(state="COMPLETING", end_at=NOW)
    found = cluster.look(leaving, asked_s=50.0)
    assert (alive(found), found.members[0].notice) == ({0: True, 1: True}, None)
    found = cluster.look(replace(leaving, state="OUT_OF_MEMORY"), asked_s=51.0)
    assert found.members[0].why_dead == "Slurm job 6 was ended because it took more memory than it has"
    slow = Cluster(cluster.memory._folder.parent / "slow")
    slow.look(leaving, asked_s=50.0)
    assert alive(slow.look(leaving, asked_s=50.1 + LEAVE_PATIENCE_S)) == {0: False, 1: False}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("TIMEOUT", "has reached its time limit of 30 min"),
        ("NODE_FAIL", "has lost its nodes"),
        ("BOOT_FAIL", "was ended because its nodes did not start"),
        ("COMPLETED", "has ended by itself"),
        ("FAILED", "has ended as FAILED (NonZeroExitCode)"),
    ],
)
def test_the_end_of_a_job_has_a_readable_reason(cluster, state, words):
    found = cluster.look(job(state=state, reason="NonZeroExitCode" if state == "FAILED" else "None"))
    assert (found.state, found.reason) == (AllocationState.GONE, f"Slurm job 6 {words}")
    assert {member.why_dead for member in found.members.values()} == {found.reason}


def test_an_approaching_time_limit_is_a_notice(cluster):
    near = NOW + timedelta(seconds=1800 - 10 - 30 - 60)
    assert cluster.look(job(), steps=STEPS, now=near - timedelta(seconds=1)).members[0].notice is None
    found = cluster.look(job(), steps=STEPS, now=near)
    assert (found.state, found.members[0].notice.kind) == (AllocationState.ENDING, NoticeKind.TIME_LIMIT)


def test_a_node_that_is_drained_is_a_notice_for_its_host_alone(cluster):
    found = cluster.look(job(), steps=STEPS, states=("allocated", "draining", "idle"))
    assert found.state is AllocationState.GRANTED
    assert found.members[0].notice is None
    assert found.members[1].notice.kind is NoticeKind.DRAINED
    assert found.members[1].notice.why == "node node-2 is to be empty (draining)"


def test_a_job_ended_by_the_service_is_known_as_such_after_a_restart(cluster):
    cluster.look(job(), steps=STEPS)
    cluster.memory.note_ended(6)
    assert cluster.look(job(), steps=STEPS).state is AllocationState.ENDING
    folder = cluster.memory._folder
    later = Cluster(folder.parent)
    found = later.look(job(state="CANCELLED", end_at=NOW))
    assert (found.state, found.reason) == (AllocationState.GONE, "Slurm job 6 was ended by Clary")
    assert found.members[0].notice is None
    assert [path.name for path in folder.iterdir()] == ["6"]
    later.look()  # the job is no longer listed by Slurm
    assert list(folder.iterdir()) == []


def test_a_host_that_its_node_did_not_end_counts_as_lost_after_a_restart(cluster):
    cluster.look(job(), steps=STEPS)
    cluster.memory.note_given_up(6, 1)
    found = cluster.look(job(), steps=STEPS)
    assert alive(found) == {0: True, 1: False}
    assert found.members[1].why_dead == "node-2 did not end its step of Slurm job 6 when it was told to"
    folder = cluster.memory._folder
    later = Cluster(folder.parent)
    extra = job(7, (1,), nodes=("node-3",))
    found = later.look(job(), extra, steps=(*STEPS, step(7, 1, "node-3")))
    assert (found.state, alive(found), found.members[1].node) == (
        AllocationState.GRANTED,
        {0: True, 1: True},
        "node-3",
    )
    assert not later.memory.is_given_up(7, 1)
    later.look()  # neither job is listed by Slurm any longer
    assert list(folder.iterdir()) == []
