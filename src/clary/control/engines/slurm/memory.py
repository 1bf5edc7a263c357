"""Keeps facts that Slurm reports only once, or never: steps that were seen, nodes of hosts, jobs that were ended.

Where: `scheduler` passes each snapshot of the queue here; `views` reads it. Slurm forgets a step when it ends, takes a
failed node out of its job's list, and shows a job that is being cancelled as completing. There is also a file for each
job that this service has ended, and for each host that it has given up because the node did not end the host's step.
These files serve after a restart: no user is blamed for the end of such jobs, and replacement hosts on other nodes are
not taken for duplicates:

    <folder>/ended/4711
    <folder>/ended/4711.1     host 1 of job 4711
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from clary.control.engines.slurm.queue_rows import JobRow, Phase
from clary.control.engines.slurm.queue_watch import Snapshot

ENDED_FOLDER = "ended"
_HOST = re.compile(r"([0-9]{1,10})\.([0-9]{1,5})")


@dataclass(kw_only=True)
class JobMemory:
    """Facts of one job or component."""

    places: dict[int, str] = field(default_factory=dict)  # host index -> its node
    seen: set[int] = field(default_factory=set)  # indices whose step was seen
    runs_since_s: float | None = None  # by the monotonic clock
    leaves_since_s: float | None = None  # by the monotonic clock
    preempted_until: datetime | None = None
    cancelled_by: str | None = None  # a user's name; empty if unknown; None before the user was looked up


class Memory:
    """Facts of all jobs that Slurm lists.

    Args:
        folder: a folder of the service, for these files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / ENDED_FOLDER
        self._jobs: dict[int, JobMemory] = {}
        self._ended: set[int] = set()  # ids of jobs; for a heterogeneous job, the leader's id
        self._given_up: set[tuple[int, int]] = set()  # id of a job or component, host index

    def load(self) -> None:
        """Make the folder, and read which jobs and hosts an earlier process of the service has ended or given up."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = os.listdir(self._folder)
        self._ended = {int(name) for name in names if name.isdigit()}
        self._given_up = {(int(found[1]), int(found[2])) for name in names if (found := _HOST.fullmatch(name))}

    def of(self, job_id: int) -> JobMemory:
        """Return the facts of a job."""
        return self._jobs.setdefault(job_id, JobMemory())

    def note(self, snapshot: Snapshot) -> None:
        """Add the facts of a snapshot of the queue, and drop jobs that Slurm has forgotten."""
        listed = {job.job_id: job for job in snapshot.jobs}
        self._jobs = {job_id: facts for job_id, facts in self._jobs.items() if job_id in listed}
        for job in snapshot.jobs:
            facts = self.of(job.job_id)
            if len(job.nodes) == len(job.indices) and not facts.places:
                facts.places = dict(zip(job.indices, job.nodes, strict=True))
            if job.phase is Phase.RUNS and facts.runs_since_s is None:
                facts.runs_since_s = snapshot.asked_s
            if job.phase is Phase.LEAVES and facts.leaves_since_s is None:
                facts.leaves_since_s = snapshot.asked_s
        for step in snapshot.steps:
            owner = listed.get(step.job_id)
            if owner is not None and step.index in owner.indices:
                facts = self.of(step.job_id)
                facts.seen.add(step.index)
                facts.places[step.index] = step.node
        for leader_id in self._ended - {job.leader_id for job in snapshot.jobs}:
            self._ended.discard(leader_id)
            with contextlib.suppress(FileNotFoundError):
                (self._folder / f"{leader_id}").unlink()
        for job_id, index in [host for host in self._given_up if host[0] not in listed]:
            self._given_up.discard((job_id, index))
            with contextlib.suppress(FileNotFoundError):
                (self._folder / f"{job_id}.{index}").unlink()

    def note_ended(self, leader_id: int) -> None:
        """Record that this service is about to end a job."""
        self._ended.add(leader_id)
        self._write(f"{leader_id}")

    def note_given_up(self, job_id: int, index: int) -> None:
        """Record that a node did not end its host in time: the host counts as lost, though Slurm lists its step."""
        self._given_up.add((job_id, index))
        self._write(f"{job_id}.{index}")

    def is_given_up(self, job_id: int, index: int) -> bool:
        """Whether a host of a job counts as lost."""
        return (job_id, index) in self._given_up

    def _write(self, name: str) -> None:
        descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT, 0o600)
        os.close(descriptor)

    def is_ended_by_us(self, job: JobRow) -> bool:
        """Whether this service ends or has ended a job."""
        return job.leader_id in self._ended
