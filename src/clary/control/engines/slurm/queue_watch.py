"""Asks Slurm for jobs, steps and nodes at most once a second for all callers together, more often just after a change.

A caller that needs a new answer (`is_new`) causes a query of its own. A failure counts for KEEP_FAILURE_S from its end
for all callers: a program that hangs takes 20 s, and a pass over many jobs must not wait for it once per job.

Where: `scheduler` calls it. Steps are queried before jobs: a step that ended with its job must not look as if it had
ended alone.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from clary.base.clock import Clock
from clary.base.errors import EngineError
from clary.control.engines.slurm.node_rows import NODE_FORMAT, Nodes, read_nodes
from clary.control.engines.slurm.programs import SlurmPrograms
from clary.control.engines.slurm.queue_rows import (
    JOB_FORMAT,
    STEP_FORMAT,
    JobRow,
    Phase,
    StepRow,
    read_jobs,
    read_steps,
)

KEEP_S = 1.0  # maximum age of a snapshot that is returned to all callers
KEEP_SHORT_S = 0.3  # likewise, just after a change: Slurm starts a job at once if nodes are free
SHORTLY_S = 3.0  # time after a change for which KEEP_SHORT_S holds
KEEP_NODES_S = 3.0  # likewise, for nodes while no job changes: a large cluster has thousands
KEEP_FAILURE_S = 2.0  # time from the end of a failed query for which no other is made


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """State of the cluster at about one moment; the nodes may be up to KEEP_NODES_S older."""

    asked_s: float  # monotonic time before the first program ran
    jobs: tuple[JobRow, ...]
    steps: tuple[StepRow, ...]
    nodes: Nodes

    def jobs_of(self, tag: str) -> tuple[JobRow, ...]:
        """Return the jobs of a tag, the oldest first."""
        return tuple(sorted((job for job in self.jobs if job.tag == tag), key=lambda job: job.job_id))

    def step_of(self, job_id: int, index: int) -> StepRow | None:
        """Return the step of one host of a job."""
        return next((step for step in self.steps if (step.job_id, step.index) == (job_id, index)), None)


class QueueWatch:
    """The queue and the nodes of one cluster, as this user sees them.

    Args:
        programs: programs of Slurm.
        clock: measures the age of snapshots.
        mark: mark of the service's jobs.
        uid: user id of the service's user.
    """

    def __init__(self, programs: SlurmPrograms, clock: Clock, *, mark: str, uid: int) -> None:
        self._programs = programs
        self._clock = clock
        self._mark = mark
        self._uid = uid
        self._lock = asyncio.Lock()
        self._last: Snapshot | None = None
        self._error: EngineError | None = None
        self._asked_s = float("-inf")
        self._failed_s = float("-inf")  # end of the last failed query
        self._changed_s = float("-inf")  # time of the last change
        self._nodes: Nodes | None = None
        self._nodes_asked_s = float("-inf")
        self._places: frozenset[object] = frozenset()  # states and nodes of jobs at the last query of nodes

    async def look(self, *, is_new: bool = False) -> Snapshot:
        """Return the jobs, steps and nodes; with `is_new`, from a query that began after this call.

        Raises: EngineError, retryable, while Slurm does not answer, and for KEEP_FAILURE_S afterwards.
        """
        called_s = self._clock.monotonic()
        async with self._lock:
            keep_s = KEEP_SHORT_S if called_s - self._changed_s < SHORTLY_S else KEEP_S
            oldest_s = called_s if is_new else called_s - keep_s
            has_failed = self._error is not None and self._clock.monotonic() - self._failed_s < KEEP_FAILURE_S
            if not has_failed and (self._asked_s <= oldest_s or self._last is None):
                await self._ask(is_new=is_new)
            if self._error is not None:
                raise EngineError(self._error.message, retryable=True)
            assert self._last is not None, "an answer or an error"
            return self._last

    def forget(self) -> None:
        """Discard the snapshot after a change, and query Slurm more often for SHORTLY_S."""
        self._asked_s = float("-inf")
        self._changed_s = self._clock.monotonic()

    async def _ask(self, *, is_new: bool) -> None:
        self._asked_s = self._clock.monotonic()
        try:
            user = f"--user={self._uid}"
            steps = await self._steps(user)
            text = await self._run("squeue", "--noheader", "--all", "--states=all", user, f"--format={JOB_FORMAT}")
            jobs = read_jobs(text, mark=self._mark, uid=self._uid)
            if any(job.phase is Phase.LEAVES for job in jobs):
                steps = await self._steps(user)  # steps of the first query may have ended with their job
            nodes = await self._nodes_now(jobs, is_new=is_new)
        except EngineError as error:
            self._last, self._error, self._failed_s = None, error, self._clock.monotonic()
            return
        self._error = None
        self._last = Snapshot(asked_s=self._asked_s, jobs=jobs, steps=steps, nodes=nodes)

    async def _nodes_now(self, jobs: tuple[JobRow, ...], *, is_new: bool) -> Nodes:
        """Return the nodes; query them anew if the last answer is too old or a job's state or nodes have changed."""
        places = frozenset((job.job_id, job.state, job.nodes) for job in jobs)
        is_old = self._nodes_asked_s <= self._asked_s - KEEP_NODES_S or places != self._places
        if self._nodes is None or is_old or is_new:
            text = await self._run("sinfo", "--Node", "--noheader", "--all", f"--format={NODE_FORMAT}")
            self._nodes, self._nodes_asked_s, self._places = read_nodes(text), self._asked_s, places
        return self._nodes

    async def _steps(self, user: str) -> tuple[StepRow, ...]:
        text = await self._run("squeue", "--steps", "--noheader", "--all", user, f"--format={STEP_FORMAT}")
        return read_steps(text, uid=self._uid)

    async def _run(self, program: str, *arguments: str) -> str:
        done = await self._programs.run(program, *arguments)
        if done.code != 0:
            raise EngineError(f"Slurm does not answer: {program}: {done.words}", retryable=True)
        return done.output
