"""Reads the lines of squeue: jobs that carry this service's mark, and their steps. Pure.

Where: `queue_watch` requests the formats below, for jobs of the service's own user only. The user is checked again
here: another user's job may have any name and comment. A comment of this service is

    clary:MARK:TAG:INDICES:GRACE      clary:0f3a99c2:pool_0123456789ab:0-2:30

INDICES are the hosts of this job or component, in the order of its nodes; GRACE is the number of seconds promised to
programs between a notice and their end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from clary.base.string_enum import StrEnum
from clary.control.engines.slurm.host_lists import expand, read_indices, write_indices

JOB_FORMAT = "%A|%i|%U|%T|%N|%P|%e|%V|%S|%l|%D|%r|%k"
STEP_FORMAT = "%i|%U|%N|%j"
SIGNAL_EARLY_S = 60.0  # Slurm may send its signal this much earlier than requested: sbatch(1), --signal
_NUM_FIRST = 11  # fields before the reason, which may contain the separator
_COMMENT = re.compile(r"clary:([0-9a-f]{4,64}):([A-Za-z0-9_-]{1,64}):([0-9,-]{1,20000}):([0-9]{1,6})")
_JOB_ID = re.compile(r"([0-9]{1,10})(?:\+[0-9]+)?")
_STEP_ID = re.compile(r"([0-9]{1,10})\.([0-9]{1,10})")
_STEP_NAME = re.compile(r"algo-([1-9][0-9]{0,5})")
_LIMIT = re.compile(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)")
_UID = re.compile(r"[0-9]{1,10}")


class Phase(StrEnum):
    """The states of a job that this service distinguishes."""

    WAITS = "waits"
    PREPARED = "prepared"  # the job has nodes, which boot or are being set up
    RUNS = "runs"
    LEAVES = "leaves"  # the job is ending; processes may be left
    OVER = "over"


_PHASES: Mapping[str, Phase] = {
    "PENDING": Phase.WAITS,
    "REQUEUED": Phase.WAITS,
    "REQUEUE_FED": Phase.WAITS,
    "REQUEUE_HOLD": Phase.WAITS,
    "RESV_DEL_HOLD": Phase.WAITS,
    "CONFIGURING": Phase.PREPARED,
    "COMPLETING": Phase.LEAVES,
    **dict.fromkeys(
        (
            "BOOT_FAIL",
            "CANCELLED",
            "COMPLETED",
            "DEADLINE",
            "FAILED",
            "LAUNCH_FAILED",
            "NODE_FAIL",
            "OUT_OF_MEMORY",
            "PREEMPTED",
            "RECONFIG_FAIL",
            "REVOKED",
            "SPECIAL_EXIT",
            "TIMEOUT",
        ),
        Phase.OVER,
    ),
}


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """One job, or one component of a heterogeneous one."""

    job_id: int
    leader_id: int  # id of the heterogeneous job; else its own id
    state: str  # Slurm's word
    reason: str
    nodes: tuple[str, ...]  # its present nodes, without failed ones
    partition: str
    tag: str
    indices: tuple[int, ...]
    grace_s: int
    end_at: datetime | None = None
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    limit_s: float | None = None  # None without a limit

    @property
    def phase(self) -> Phase:
        """State of the job; an unknown state counts as running, so that no host is given up because of it."""
        return _PHASES.get(self.state, Phase.RUNS)

    @property
    def is_living(self) -> bool:
        """Whether the job's hosts may run, or may still get nodes."""
        return self.phase in (Phase.WAITS, Phase.PREPARED, Phase.RUNS)

    @property
    def ends_early(self) -> bool:
        """Whether the job's end is before its time limit, which is a sign of preemption with a grace."""
        if self.end_at is None or self.started_at is None:
            return False
        if self.limit_s is None:
            return True
        return self.end_at < self.started_at + timedelta(seconds=self.limit_s - 1)


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """The step of one host."""

    job_id: int
    step_id: str  # in the form that scancel accepts: 4711.2
    index: int
    node: str


def comment_of(mark: str, tag: str, indices: tuple[int, ...], grace_s: int) -> str:
    """Return the comment of a job of this service.

    Args:
        mark: mark of the service's jobs.
        tag: tag of the allocation.
        indices: indices of its hosts.
        grace_s: promised grace, in whole seconds.
    """
    return f"clary:{mark}:{tag}:{write_indices(indices)}:{grace_s}"


def read_jobs(text: str, *, mark: str, uid: int) -> tuple[JobRow, ...]:
    """Return the jobs of this user and mark; other and broken lines are skipped.

    Args:
        text: output of squeue with JOB_FORMAT, in UTC.
        mark: mark of the service's jobs.
        uid: id of the service's user.
    """
    return tuple(row for line in text.split("\n") if (row := _job_row(line, mark, uid)) is not None)


def read_steps(text: str, *, uid: int) -> tuple[StepRow, ...]:
    """Return the steps of hosts, of all jobs of this user.

    Args:
        text: output of `squeue --steps` with STEP_FORMAT.
        uid: id of the service's user.
    """
    found = []
    for line in text.split("\n"):
        fields = line.split("|", 3)
        if len(fields) != 4 or _uid(fields[1]) != uid:
            continue
        step, name, nodes = _STEP_ID.fullmatch(fields[0]), _STEP_NAME.fullmatch(fields[3]), expand(fields[2])
        if step is not None and name is not None and nodes:
            row = StepRow(job_id=int(step[1]), step_id=fields[0], index=int(name[1]) - 1, node=nodes[0])
            found.append(row)
    return tuple(found)


def read_time(text: str) -> datetime | None:
    """Parse a time that was printed in UTC; None for any other text, such as N/A."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def read_limit_s(text: str) -> float | None:
    """Return the seconds of a duration such as 2-00:00:00 or 30:00; None for UNLIMITED and any other text."""
    match = _LIMIT.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _job_row(line: str, mark: str, uid: int) -> JobRow | None:
    fields = line.split("|", _NUM_FIRST)
    if len(fields) != _NUM_FIRST + 1 or _uid(fields[2]) != uid:
        return None
    reason, sign, comment = fields[_NUM_FIRST].rpartition("|")
    ours, own_id, leader = _COMMENT.fullmatch(comment), _JOB_ID.fullmatch(fields[0]), _JOB_ID.fullmatch(fields[1])
    if not sign or ours is None or own_id is None or leader is None or ours[1] != mark:
        return None
    indices = read_indices(ours[3])
    if not indices:
        return None
    return JobRow(
        job_id=int(own_id[1]),
        leader_id=int(leader[1]),
        state=fields[3],
        reason=reason,
        nodes=expand(fields[4]),
        partition=fields[5],
        tag=ours[2],
        indices=indices,
        grace_s=int(ours[4]),
        end_at=read_time(fields[6]),
        submitted_at=read_time(fields[7]),
        started_at=read_time(fields[8]),
        limit_s=read_limit_s(fields[9]),
    )


def _uid(text: str) -> int | None:
    return int(text) if _UID.fullmatch(text) else None
