"""Hosts from a Slurm cluster: requests them with sbatch, monitors them with squeue, ends them with scancel.

Where: `cluster.cluster_engine` drives it. Facts that must outlive the service are kept by Slurm, in comments of jobs
(`queue_rows`); the folder holds facts that Slurm does not report and that may be lost:

    <folder>/ended/4711               a job that this service has ended; 4711.1 is a host of it that was given up
    <folder>/output/slurm-4711.out    output of the batch script, if its node sees this folder
    <folder>/output/TAG-0.4711.log    output of host 0's boot and agent, if their node sees this folder
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from clary.base.clock import Clock
from clary.base.errors import EngineError, Fault
from clary.control.engines.cluster.scheduler import Allocation, AllocationOrder, Boot, Ended, HostWish, NodeKind
from clary.control.engines.slurm.batch_script import batch_script
from clary.control.engines.slurm.cancellers import canceller
from clary.control.engines.slurm.kinds import Options, kinds_of, why_without_nodes
from clary.control.engines.slurm.memory import JobMemory, Memory
from clary.control.engines.slurm.node_rows import read_graces
from clary.control.engines.slurm.others_rows import WAITING_FORMAT, read_waiting, wanted_by
from clary.control.engines.slurm.programs import Outcome, SlurmPrograms
from clary.control.engines.slurm.proofs import why_not_proved
from clary.control.engines.slurm.queue_rows import JobRow, Phase, read_time
from clary.control.engines.slurm.queue_watch import QueueWatch, Snapshot
from clary.control.engines.slurm.submission import submission_of
from clary.control.engines.slurm.views import Sight, allocations_of, holder_of, member_of

OUTPUT_FOLDER = "output"
KEEP_OUTPUT_S = 14 * 86_400.0
SUBMIT_LIMIT_S = 60.0  # sbatch itself retries while slurmctld is too busy
END_WAIT_S = 5.0  # longest wait until a killed job vanishes
HOST_END_WAIT_S = 1.0  # likewise for one host, while its job waits for another node
END_POLL_S = 0.2
KILL_AGAIN_S = 10.0  # interval of attempts to kill the step of a given-up host
# Options of scancel for steps. Without --ctld scancel contacts the nodes itself, and waits seconds for a node that does
# not answer.
KILL = ("--ctld", "--signal=KILL")
_MARK = re.compile(r"[0-9a-f]{4,64}")
_TAG = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SUBMITTED = re.compile(r"([0-9]+)(?:;.*)?")
_CONFIG_LINE = re.compile(r"([A-Za-z]+)\s*= ?(.*)")
_SOCKET = re.compile(r"(?:^|,)socket=([^,]+)")
_LOG_NOTHING = ("", "(null)")
# Errors of sbatch after which the same call can succeed.
_PASSING = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "temporarily unable",
    "Resource temporarily unavailable",
    "Connection refused",
    "communication",
    "Protocol authentication error",
)
_OPTIONS_OF_SETTINGS = ("--partition=", "--account=", "--qos=", "--reservation=", "--constraint=", "--gres=")

_log = logging.getLogger(__name__)


class SlurmScheduler:
    """A Slurm cluster as a source of hosts. Implements `cluster.scheduler.ClusterScheduler`.

    Args:
        tables: settings' `[slurm]`: instance type or "*" -> options.
        mark: identifies the jobs of this service; lower-case hexadecimal digits.
        folder: the scheduler's own folder in the state folder.
        clock: measures waits and provides the times of notices.
        node_python: interpreter of the nodes, 3.10 or newer.
        node_scratch: scratch folder on the nodes; empty for the nodes' default.
        environment: variables of the service; only PATH, SLURM_CONF, HOME, USER and LOGNAME are used.
    """

    name = "slurm"

    def __init__(
        self,
        tables: Mapping[str, Options],
        *,
        mark: str,
        folder: Path,
        clock: Clock,
        environment: Mapping[str, str],
        node_python: str = "python3",
        node_scratch: str = "",
    ) -> None:
        if not _MARK.fullmatch(mark):
            raise EngineError(f"the mark of a service is 4 to 64 digits of 0-9a-f, got {mark!r}", fault=Fault.INTERNAL)
        self._tables = {name: dict(table) for name, table in tables.items()}
        self._mark = mark
        self._output = folder / OUTPUT_FOLDER
        self._clock = clock
        self._python = node_python
        self._scratch = node_scratch
        self._uid = os.getuid()
        self._programs = SlurmPrograms(environment)
        self._memory = Memory(folder)
        self._watch = QueueWatch(self._programs, clock, mark=mark, uid=self._uid)
        self._locks: dict[str, asyncio.Lock] = {}
        self._asking = asyncio.Lock()  # held while a user who cancelled a job is looked up
        self._remarks: dict[str, str] = {}
        self.remarks: tuple[str, ...] = ()  # on tables of the settings that select no node
        self._boot: Boot | None = None
        self._socket = ""  # socket of munged; empty for munge's default
        self._log_path = ""  # log of slurmctld
        self._has_accounting = False
        self._kill_wait_s = 30.0
        self._graces_s: dict[str, float] = {}
        self._killed_s = float("-inf")  # last attempt to kill steps of hosts that were given up

    async def start(self, boot: Boot) -> None:
        """Look for the programs, and read the cluster's configuration. Raises: EngineError."""
        self._programs.require()
        done = await self._programs.run("scontrol", "show", "config")
        if done.code != 0:
            raise EngineError(f"Slurm does not answer: scontrol: {done.words}", retryable=True)
        config = {match[1]: match[2].strip() for line in done.output.split("\n") if (match := _CONFIG_LINE.match(line))}
        if config.get("AuthType") != "auth/munge":
            raise EngineError(
                f"the cluster has AuthType {config.get('AuthType')}; hosts can prove their identity with "
                "auth/munge only"
            )
        socket = _SOCKET.search(config.get("AuthInfo", ""))
        self._socket = socket[1] if socket is not None else ""
        self._has_accounting = config.get("AccountingStorageType", "").removeprefix("accounting_storage/") != "none"
        log_path = config.get("SlurmctldLogFile", "")
        self._log_path = "" if log_path in _LOG_NOTHING else log_path
        with contextlib.suppress(ValueError, IndexError):
            self._kill_wait_s = float(config.get("KillWait", "").split()[0])
        if config.get("PreemptType", "preempt/none") != "preempt/none":
            done = await self._programs.run("scontrol", "--oneliner", "--all", "show", "partition")
            self._graces_s = read_graces(done.output)
        self._memory.load()
        self._output.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._drop_old_output()
        self._boot = boot

    async def close(self) -> None:
        """Do nothing: no program of Slurm runs between calls, and jobs continue."""

    async def capacity(self) -> list[NodeKind]:
        """Return the kinds of nodes, the smallest first. Raises: EngineError."""
        snapshot = await self._watch.look()
        self._say_remarks(why_without_nodes(snapshot.nodes, self._tables))
        return [kind.shown for kind in kinds_of(snapshot.nodes, self._tables)]

    def _say_remarks(self, remarks: tuple[str, ...]) -> None:
        for remark in remarks:
            if remark not in self.remarks:
                _log.warning("settings: %s", remark)
        self.remarks = remarks

    async def ask(self, order: AllocationOrder) -> None:
        """Submit jobs for hosts that no job holds: one job if these are all hosts of the order, else one for each host.

        Raises: EngineError; earlier requests stay.
        """
        self._check_tag(order.tag)
        async with self._locks.setdefault(order.tag, asyncio.Lock()):
            sight = await self._sight(is_new=True)
            jobs = sight.snapshot.jobs_of(order.tag)
            await self._end_doubles(sight, jobs)
            wanted = [wish for wish in order.hosts if not _is_held(sight, jobs, wish.index)]
            if len(wanted) < len(order.hosts):
                for wish in wanted:
                    await self._submit(order, [wish], sight.snapshot)
            elif wanted:
                await self._submit(order, wanted, sight.snapshot)

    async def allocations(self) -> Mapping[str, Allocation]:
        """Return tag -> allocation. Raises: EngineError, retryable, while Slurm does not answer."""
        return allocations_of(await self._sight(), remarks=self._remarks)

    async def wanted(self, tags: Sequence[str]) -> Mapping[str, str]:
        """Return the first tag whose nodes another job waits for -> a sentence on that job. Raises: EngineError."""
        done = await self._programs.run(
            "squeue", "--noheader", "--all", "--states=PENDING", f"--format={WAITING_FORMAT}"
        )
        if done.code != 0:
            raise EngineError(f"Slurm does not answer: squeue: {done.words}", retryable=True)
        waiting = read_waiting(done.output)
        if not waiting:
            return {}
        snapshot = await self._watch.look()
        for tag in tags:
            nodes = [node for job in snapshot.jobs_of(tag) if job.is_living for node in job.nodes]
            job = wanted_by(waiting, nodes, snapshot.nodes.by_name)
            if job is not None:
                return {tag: job.words}
        return {}

    async def end_host(self, tag: str, index: int) -> Ended:
        """End one host's step, and its job if the job has no other host.

        If the node does not end it in time, the host counts as lost and `ask` gets another node for it. Slurm itself
        declares a node down only after SlurmdTimeout, 300 s by default. Raises: EngineError.
        """
        self._check_tag(tag)
        async with self._locks.setdefault(tag, asyncio.Lock()):
            deadline_s = self._clock.monotonic() + HOST_END_WAIT_S
            while True:
                sight = await self._sight(is_new=True)
                jobs = [
                    job for job in sight.snapshot.jobs_of(tag) if index in job.indices and job.phase is not Phase.OVER
                ]
                alive = [job for job in jobs if _may_run(sight, job, index)]
                empty = [
                    job for job in jobs if job.is_living and not _has_others(sight, jobs_of_leader(sight, job), index)
                ]
                if empty:
                    await self._cancel(empty, sight.snapshot)
                if not alive and not empty:
                    left = [job for job in jobs if _is_out_of_reach(sight, job, index)]
                    return Ended.OUT_OF_REACH if left else Ended.CERTAIN
                if self._clock.monotonic() > deadline_s:
                    for job in alive:
                        _log.warning("%s: algo-%d is given up: its step of job %d stays", tag, index + 1, job.job_id)
                        self._memory.note_given_up(job.job_id, index)
                    silent = [job for job in alive if _is_out_of_reach(sight, job, index)]
                    return Ended.OUT_OF_REACH if silent else Ended.ASKED_FOR
                for job in alive:
                    step = sight.snapshot.step_of(job.job_id, index)
                    if step is not None and job not in empty:
                        await self._programs.run("scancel", *KILL, step.step_id)
                await asyncio.sleep(END_POLL_S)

    async def end(self, tag: str) -> Ended:
        """End all jobs of a tag. Raises: EngineError."""
        self._check_tag(tag)
        async with self._locks.setdefault(tag, asyncio.Lock()):
            self._remarks.pop(tag, None)
            deadline_s = self._clock.monotonic() + END_WAIT_S
            while True:
                sight = await self._sight(is_new=True)
                jobs = [job for job in sight.snapshot.jobs_of(tag) if job.phase is not Phase.OVER]
                if not jobs:
                    return Ended.CERTAIN
                if self._clock.monotonic() > deadline_s:
                    rows = [sight.snapshot.nodes.by_name.get(node) for job in jobs for node in job.nodes]
                    is_silent = any(row is not None and row.is_silent for row in rows)
                    return Ended.OUT_OF_REACH if is_silent else Ended.ASKED_FOR
                await self._cancel(jobs, sight.snapshot)
                await asyncio.sleep(END_POLL_S)

    def why_not_proved(self, tag: str, index: int, proof: str) -> str:
        """Return why a munge credential over "TAG INDEX" is not accepted, empty if it is. Blocks until munged answers.

        Args:
            tag: tag in the boot's request.
            index: host index in the boot's request.
            proof: credential that the boot sent.
        """
        return why_not_proved(self._programs, proof, expected=f"{tag} {index}", uid=self._uid, socket=self._socket)

    async def _sight(self, *, is_new: bool = False) -> Sight:
        """Read the state of the cluster, and query why jobs end: preemption, or a user's cancellation."""
        snapshot = await self._watch.look(is_new=is_new)
        self._memory.note(snapshot)
        await self._end_given_up(snapshot)
        for job in snapshot.jobs:
            facts = self._memory.of(job.job_id)
            if job.phase is Phase.RUNS and job.ends_early and facts.preempted_until is None:
                await self._ask_whether_preempted(job)
            is_ending = job.state == "CANCELLED" or (job.phase is Phase.LEAVES and job.ends_early)
            if is_ending and not self._memory.is_ended_by_us(job):
                await self._ask_who_cancelled(job, facts)
        return Sight(
            snapshot=snapshot,
            memory=self._memory,
            now=self._clock.now(),
            kill_wait_s=self._kill_wait_s,
            graces_s=self._graces_s,
        )

    async def _end_given_up(self, snapshot: Snapshot) -> None:
        """Kill the steps of given-up hosts again every KILL_AGAIN_S: their nodes may answer again."""
        steps = [step.step_id for step in snapshot.steps if self._memory.is_given_up(step.job_id, step.index)]
        if steps and self._clock.monotonic() - self._killed_s > KILL_AGAIN_S:
            self._killed_s = self._clock.monotonic()
            await self._programs.run("scancel", *KILL, *steps)

    async def _ask_who_cancelled(self, job: JobRow, facts: JobMemory) -> None:
        """Look up once the user that cancelled a job; other callers wait meanwhile and never see half of the result."""
        async with self._asking:
            if facts.cancelled_by is None:
                facts.cancelled_by = await canceller(
                    self._programs, job.leader_id, has_accounting=self._has_accounting, log_path=self._log_path
                )

    async def _ask_whether_preempted(self, job: JobRow) -> None:
        done = await self._programs.run("squeue", "--noheader", f"--jobs={job.job_id}", "--Format=PreemptTime:40")
        if any(read_time(word) for word in done.output.split()):
            self._memory.of(job.job_id).preempted_until = job.end_at

    async def _submit(self, order: AllocationOrder, wanted: list[HostWish], snapshot: Snapshot) -> None:
        assert self._boot is not None, "start comes first"
        submission = submission_of(
            order,
            wanted,
            mark=self._mark,
            kinds=kinds_of(snapshot.nodes, self._tables),
            nodes=snapshot.nodes,
            tables=self._tables,
        )
        script = batch_script(
            order.tag,
            submission.components,
            boot=self._boot,
            python=self._python,
            scratch=self._scratch,
            output=str(self._output.absolute()),
        )
        done = await self._programs.run("sbatch", *submission.arguments, text=script, limit_s=SUBMIT_LIMIT_S)
        submitted = _SUBMITTED.fullmatch(done.output.strip())
        if done.code != 0 or submitted is None:
            raise _refusal(order, submission.arguments, done)
        hosts = ", ".join(f"algo-{wish.index + 1}" for wish in wanted)
        _log.info("%s: Slurm job %s was asked for %s", order.tag, submitted[1], hosts)
        self._watch.forget()
        if submission.remark:
            self._remarks[order.tag] = submission.remark
            _log.warning("%s, Slurm job %s: %s", order.tag, submitted[1], submission.remark)

    async def _end_doubles(self, sight: Sight, jobs: tuple[JobRow, ...]) -> None:
        """End jobs whose hosts an older job holds: an sbatch call that timed out may still have submitted a job."""
        held: set[int] = set()
        for job in jobs:
            is_alone = all(one is job for one in jobs_of_leader(sight, job))
            if job.is_living and is_alone and set(job.indices) <= held:
                _log.warning("%s: Slurm job %d asks for hosts that are there; it is ended", job.tag, job.job_id)
                await self._cancel([job], sight.snapshot)
            elif job.is_living:
                # Slurm still lists the step of a host on a lost node, so a listed step alone proves nothing.
                steps = [index for index in job.indices if sight.snapshot.step_of(job.job_id, index) is not None]
                held |= {index for index in steps if _may_run(sight, job, index)}

    async def _cancel(self, jobs: Iterable[JobRow], snapshot: Snapshot) -> None:
        """Kill the steps of jobs, and cancel the jobs; the queue shows whether that worked.

        Steps are killed one by one: Slurm sends a whole job SIGTERM instead, and SIGKILL only after KillWait.
        """
        leaders = sorted({job.leader_id for job in jobs})
        for leader_id in leaders:
            self._memory.note_ended(leader_id)  # an earlier reported cause is kept: see `views.end_words`
        job_ids = {job.job_id for job in snapshot.jobs if job.leader_id in leaders}
        if steps := [step.step_id for step in snapshot.steps if step.job_id in job_ids]:
            await self._programs.run("scancel", *KILL, *steps)
        await self._programs.run("scancel", *map(str, leaders))

    def _check_tag(self, tag: str) -> None:
        if not _TAG.fullmatch(tag):
            raise EngineError(f"a tag is 1 to 64 letters, digits, - and _, got {tag!r}", fault=Fault.INTERNAL)

    def _drop_old_output(self) -> None:
        for path in self._output.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.lstat().st_mtime > KEEP_OUTPUT_S:
                    path.unlink()


def jobs_of_leader(sight: Sight, job: JobRow) -> list[JobRow]:
    """Return all components of a job."""
    return [one for one in sight.snapshot.jobs if one.leader_id == job.leader_id]


def _is_held(sight: Sight, jobs: Iterable[JobRow], index: int) -> bool:
    """Whether a job that is not ending has, or will get, a node for a host."""
    found = holder_of(sight, jobs, index)
    if found is None:
        return False
    job, member = found
    return job.is_living and not sight.memory.is_ended_by_us(job) and (member is None or member.is_alive)


def _may_run(sight: Sight, job: JobRow, index: int) -> bool:
    member = member_of(sight, job, index)
    return member is not None and member.is_alive


def _has_others(sight: Sight, components: list[JobRow], index: int) -> bool:
    """Whether a job has other hosts that have or will get a node."""
    members = {other: member_of(sight, job, other) for job in components for other in job.indices if other != index}
    return any(member is None or member.is_alive for member in members.values())


def _is_out_of_reach(sight: Sight, job: JobRow, index: int) -> bool:
    """Whether the node of a host does not answer, or has not ended its step when ordered to."""
    row = sight.snapshot.nodes.by_name.get(sight.memory.of(job.job_id).places.get(index, ""))
    stays = sight.memory.is_given_up(job.job_id, index) and sight.snapshot.step_of(job.job_id, index) is not None
    return stays or (row is not None and row.is_silent)


def _refusal(order: AllocationOrder, arguments: Sequence[str], done: Outcome) -> EngineError:
    is_passing = any(words in done.words for words in _PASSING)
    hosts = "1 host" if len(order.hosts) == 1 else f"{len(order.hosts)} hosts"
    asked = " ".join(word for word in arguments if word.startswith(_OPTIONS_OF_SETTINGS))
    told = "" if is_passing or not asked else f"; settings' [slurm] asked with {asked}"
    return EngineError(
        f"Slurm did not take the request for {hosts}: {done.words}{told}",
        fault=Fault.INFRASTRUCTURE if is_passing else Fault.CAPACITY,
        retryable=is_passing,
    )
