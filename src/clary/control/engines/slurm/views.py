"""Turns rows of the queue into allocations: members, notices, and words for people. Pure.

Where: `scheduler.allocations` returns these. An allocation may have several jobs: the first job, and one more for each
host that was lost since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from clary.control.engines.cluster.scheduler import Allocation, AllocationState, Member, Notice, NoticeKind
from clary.control.engines.slurm.memory import Memory
from clary.control.engines.slurm.queue_rows import SIGNAL_EARLY_S, JobRow, Phase
from clary.control.engines.slurm.queue_watch import Snapshot

START_PATIENCE_S = 60.0  # longest wait for a host's step after its job began to run
LEAVE_PATIENCE_S = 3.0  # longest wait for the reason of a job that ends without steps; meanwhile Slurm shows COMPLETING
_LACKS_NODES = ("Nodes required for job", "ReqNodeNotAvail")
# First letters of Slurm's reason of a wait that no free node ends -> what ends it.
_REMEDIES = {
    "PartitionNodeLimit": "the job asks for more nodes than partition {partition} allows, or than are up",
    "PartitionTimeLimit": "the job asks for more time than partition {partition} allows",
    "PartitionDown": "partition {partition} is down; scontrol update PartitionName={partition} State=UP ends that",
    "PartitionInactive": "partition {partition} starts no jobs; an administrator can change that",
    "JobHeldAdmin": "an administrator holds it; scontrol release {job_id} ends that",
    "JobHeldUser": "its user holds it; scontrol release {job_id} ends that",
    "Assoc": "a limit of the account is reached",
    "QOS": "a limit of the QOS is reached",
    "InvalidAccount": "see the keys account and qos of [slurm] in the settings",
    "InvalidQOS": "see the keys account and qos of [slurm] in the settings",
    "BadConstraints": "no node has all that the job asks for; see [slurm] in the settings",
    "Reservation": "see the key reservation of [slurm] in the settings",
}
_TAKEN_BACK = {
    "CANCELLED": NoticeKind.CANCELLED,
    "PREEMPTED": NoticeKind.RECLAIMED,
}  # by the state of a job that is over
_ENDING = (NoticeKind.RECLAIMED, NoticeKind.TIME_LIMIT, NoticeKind.CANCELLED)


@dataclass(frozen=True, kw_only=True)
class Sight:
    """State of the cluster with the facts that are needed to interpret it."""

    snapshot: Snapshot
    memory: Memory
    now: datetime
    kill_wait_s: float  # between SIGTERM and SIGKILL to a cancelled job
    graces_s: Mapping[str, float] = field(default_factory=dict)  # partition whose jobs may be preempted -> grace


def allocations_of(sight: Sight, *, remarks: Mapping[str, str]) -> dict[str, Allocation]:
    """Return tag -> allocation for all jobs of a sight.

    Args:
        sight: state of the cluster.
        remarks: tag -> sentence that is added while the allocation waits.
    """
    tags = dict.fromkeys(job.tag for job in sight.snapshot.jobs)
    return {tag: _allocation(sight, sight.snapshot.jobs_of(tag), remarks.get(tag, "")) for tag in tags}


def holder_of(sight: Sight, jobs: Iterable[JobRow], index: int) -> tuple[JobRow, Member | None] | None:
    """Return the job that represents a host, with its member; None as member while the host waits for a node.

    In order of preference: the oldest job with a step of the host; the youngest job that has or will have a node for
    it, which was submitted because the older jobs had lost the host; an ending job whose host is alive; the youngest of
    all jobs.

    Args:
        sight: state of the cluster.
        jobs: jobs of one tag, the oldest first.
        index: index of the host.
    """
    found = [(job, member_of(sight, job, index)) for job in jobs if index in job.indices]
    holding = [(job, member) for job, member in found if job.is_living and (member is None or member.is_alive)]
    running = [(job, member) for job, member in holding if sight.snapshot.step_of(job.job_id, index) is not None]
    dying = [(job, member) for job, member in found if member is not None and member.is_alive]
    return next(iter((*running, *reversed(holding), *dying, *reversed(found))), None)


def member_of(sight: Sight, job: JobRow, index: int) -> Member | None:
    """Return one host of a job; None while the job waits for nodes, or its nodes are being prepared.

    Args:
        sight: state of the cluster.
        job: the job that contains the host.
        index: index of the host.
    """
    facts = sight.memory.of(job.job_id)
    node = facts.places.get(index, "")
    if job.phase in (Phase.WAITS, Phase.PREPARED):
        return None
    if job.phase is Phase.OVER:
        why = end_words(sight, job)
        notice = Notice(kind=_TAKEN_BACK[job.state], why=why) if job.state in _TAKEN_BACK else None
        is_ours = sight.memory.is_ended_by_us(job) and not _had_other_cause(sight, job)
        return Member(node=node or "no node", is_alive=False, why_dead=why, notice=None if is_ours else notice)
    row = sight.snapshot.nodes.by_name.get(node)
    if not node or node not in job.nodes or (row is not None and row.is_down):
        state = f" ({row.words})" if row is not None else ""
        return Member(
            node=node or "no node",
            is_alive=False,
            why_dead=f"Slurm job {job.job_id} has lost node {node}{state}" if node else "its node has failed",
        )
    if sight.memory.is_given_up(job.job_id, index):
        why = f"{node} did not end its step of Slurm job {job.job_id} when it was told to"
        return Member(node=node, is_alive=False, why_dead=why)
    has_step = sight.snapshot.step_of(job.job_id, index) is not None
    if job.phase is Phase.LEAVES:
        is_alive = has_step or not _is_known_why(sight, job)
        why = "" if is_alive else end_words(sight, job)
        return Member(node=node, is_alive=is_alive, why_dead=why, notice=_notice(sight, job, index))
    if has_step:
        return Member(node=node, is_alive=True, notice=_notice(sight, job, index))
    if index in facts.seen:
        return Member(node=node, is_alive=False, why_dead=f"its step of Slurm job {job.job_id} has ended")
    since_s = facts.runs_since_s
    if since_s is not None and sight.snapshot.asked_s - since_s > START_PATIENCE_S:
        why = f"no step of it was seen in {START_PATIENCE_S:g} s of Slurm job {job.job_id}"
        return Member(node=node, is_alive=False, why_dead=why)
    return Member(node=node, is_alive=True, notice=_notice(sight, job, index))


def end_words(sight: Sight, job: JobRow) -> str:
    """Return the reason why a job has ended or ends."""
    name = f"Slurm job {job.leader_id}"
    facts = sight.memory.of(job.job_id)
    if job.state == "PREEMPTED" or facts.preempted_until is not None:
        return f"{name} was preempted"
    if sight.memory.is_ended_by_us(job) and not _had_other_cause(sight, job):
        return f"{name} was ended by Clary"
    if job.state == "CANCELLED" or (job.state == "COMPLETING" and _is_cancelled(sight, job)):
        return f"{name} was cancelled by {facts.cancelled_by or 'somebody other than Clary'}"
    words = {
        "TIMEOUT": f"has reached its time limit of {_limit_words(job)}",
        "NODE_FAIL": "has lost its nodes",
        "OUT_OF_MEMORY": "was ended because it took more memory than it has",
        "BOOT_FAIL": "was ended because its nodes did not start",
        "DEADLINE": "has reached its deadline",
        "COMPLETED": "has ended by itself",
        "COMPLETING": "ends",
    }
    reason = f" ({job.reason})" if job.reason not in ("", "None") else ""
    return f"{name} {words.get(job.state, f'has ended as {job.state}')}{reason}"


def _allocation(sight: Sight, jobs: tuple[JobRow, ...], remark: str) -> Allocation:
    indices = sorted({index for job in jobs for index in job.indices})
    holders = {index: holder for index in indices if (holder := holder_of(sight, jobs, index)) is not None}
    members = {index: member for index, (_, member) in holders.items() if member is not None}
    asked = [job.submitted_at for job in jobs if job.submitted_at is not None]
    waiting = {job.job_id: job for job, member in holders.values() if member is None}
    state, reason = _state(sight, jobs, members, waiting)
    if state is AllocationState.PENDING and remark:
        reason = f"{reason}; {remark}"
    partitions = {name for job in jobs if job.is_living for name in job.partition.split(",")}
    graces = [sight.graces_s.get(name, sight.kill_wait_s) for name in partitions]
    return Allocation(
        state=state,
        reason=reason,
        members=members,
        asked_at=min(asked, default=None),
        notice_grace_s=min(graces, default=0.0),
    )


def _state(
    sight: Sight, jobs: tuple[JobRow, ...], members: Mapping[int, Member], waiting: Mapping[int, JobRow]
) -> tuple[AllocationState, str]:
    living = [job for job in jobs if job.is_living]
    leaving = [job for job in jobs if job.phase is Phase.LEAVES]
    if not living:
        if leaving:
            return AllocationState.ENDING, end_words(sight, leaving[-1])
        return AllocationState.GONE, end_words(sight, jobs[-1])
    if all(sight.memory.is_ended_by_us(job) for job in living):
        return AllocationState.ENDING, end_words(sight, living[-1])
    if waiting:
        return AllocationState.PENDING, _wait_words(sight, next(iter(waiting.values())))
    alive = [member for member in members.values() if member.is_alive]
    notices = [one.notice for one in alive if one.notice is not None and one.notice.kind in _ENDING]
    if alive and len(notices) == len(alive):
        return AllocationState.ENDING, notices[0].why
    return AllocationState.GRANTED, ""


def _notice(sight: Sight, job: JobRow, index: int) -> Notice | None:
    facts = sight.memory.of(job.job_id)
    name = f"Slurm job {job.leader_id}"
    if facts.preempted_until is not None:
        return Notice(kind=NoticeKind.RECLAIMED, why=f"{name} was preempted", ends_at=facts.preempted_until)
    if sight.memory.is_ended_by_us(job):
        return None  # the service itself ended the job
    near = timedelta(seconds=job.grace_s + SIGNAL_EARLY_S)
    if job.limit_s is not None and job.end_at is not None and not job.ends_early and job.end_at - sight.now <= near:
        why = f"{name} reaches its time limit of {_limit_words(job)}"
        return Notice(kind=NoticeKind.TIME_LIMIT, why=why, ends_at=job.end_at)
    if job.phase is Phase.LEAVES and job.end_at is not None and _is_cancelled(sight, job):
        ends_at = job.end_at + timedelta(seconds=sight.kill_wait_s)
        return Notice(kind=NoticeKind.CANCELLED, why=end_words(sight, job), ends_at=ends_at)
    row = sight.snapshot.nodes.by_name.get(facts.places.get(index, ""))
    if row is not None and row.is_leaving:
        return Notice(kind=NoticeKind.DRAINED, why=f"node {row.name} is to be empty ({row.words})")
    return None


def _had_other_cause(sight: Sight, job: JobRow) -> bool:
    """Whether a job that the service has ended was being ended by somebody else before."""
    facts = sight.memory.of(job.job_id)
    return facts.cancelled_by is not None or facts.preempted_until is not None


def _is_known_why(sight: Sight, job: JobRow) -> bool:
    """Whether the reason of a job's end is known, or waiting longer will not reveal it."""
    facts = sight.memory.of(job.job_id)
    if sight.memory.is_ended_by_us(job) or facts.preempted_until is not None or _is_cancelled(sight, job):
        return True
    return facts.leaves_since_s is None or sight.snapshot.asked_s - facts.leaves_since_s > LEAVE_PATIENCE_S


def _is_cancelled(sight: Sight, job: JobRow) -> bool:
    """Whether an early-ending job still has steps, which means that a user has cancelled it."""
    return job.ends_early and any(step.job_id == job.job_id for step in sight.snapshot.steps)


def _wait_words(sight: Sight, job: JobRow) -> str:
    name = f"Slurm job {job.leader_id}"
    if job.phase is Phase.PREPARED:
        return f"{name} has {' '.join(job.nodes)}, which are prepared"
    if job.reason in ("", "None"):
        return f"{name} waits: Slurm has not looked at it yet"
    nodes = sight.snapshot.nodes.by_name.values()
    partitions = set(job.partition.split(","))
    mine = [node for node in nodes if partitions & set(node.partitions)]
    unused = ", ".join(f"{node.name} is {node.words}" for node in mine if node.is_silent or node.is_leaving)
    if job.reason == "Resources":
        free = sum(node.is_free or node.state == "planned" for node in mine)
        more = f"{free} of {len(mine)} nodes of partition {job.partition} are free{f'; {unused}' if unused else ''}"
    elif job.reason.startswith(_LACKS_NODES):
        more = unused
    else:
        more = next((words for start, words in _REMEDIES.items() if job.reason.startswith(start)), "")
        more = more.format(partition=job.partition, job_id=job.leader_id)
    return f"{name} waits: {job.reason}{f' ({more})' if more else ''}"


def _limit_words(job: JobRow) -> str:
    return "no length" if job.limit_s is None else f"{job.limit_s / 60:g} min"
