"""Jobs whose rank, host or agent is killed: finds all processes of a job, and times its end after the kill.

Where: tests/integration/jobs/test_fail_fast.py, and `python -m benchmarks failfast` and `recover`; each starts its own
service.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from clary.base.processes import ProcessId, read_arguments, read_entry
from clary.control.engines.local import cleaning, killing
from clary.control.engines.local.agent_processes import MARK_VARIABLE
from clary.control.engines.local.attempt_record import AttemptRecord, pool_folder, read_ready, read_record
from clary.control.engines.local.network_faults import partition

HOSTS = ("algo-1", "algo-2")
RANKS_PER_HOST = 2
INSTANCE_TYPE = "ml.two.ranks"
INSTANCE_SETTINGS = f'\n[instance_types."{INSTANCE_TYPE}"]\nprocesses = {RANKS_PER_HOST}\n'
PROGRAM = "train.py"
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
TERMINAL = ("Completed", "Failed", "Stopped")
DEADLINE_S = 60.0
POLL_S = 0.02
SCRIPT = """
import time
print("asleep", flush=True)
time.sleep(3600)
"""
DEAF_SCRIPT = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("asleep", flush=True)
time.sleep(3600)
"""


@dataclass(frozen=True, kw_only=True)
class GangEnd:
    """The end of a gang; both times count from the death of its member."""

    terminal_s: float
    gone_s: float
    facts: Mapping[str, Any]  # DescribeTrainingJob's answer for the ended job


class Gang:
    """A job of two hosts with two ranks each that run SCRIPT or DEAF_SCRIPT, and all processes of the job.

    Args:
        home: the service's state folder.
        name: name of a job that was just created.
        sagemaker: a boto3 client.
        logs: a boto3 client of the logs.

    Raises: AssertionError if the job does not run all its ranks within DEADLINE_S.
    """

    def __init__(self, home: Path, name: str, *, sagemaker: Any, logs: Any) -> None:
        self.name = name
        self.folder = home / "jobs" / name / "1"
        self._sagemaker = sagemaker
        self._logs = logs
        self.ranks = self._wait_for_ranks()
        self.mark = self._record.mark
        self.processes = self._all_processes()
        self.cgroups_at_start = self.cgroups()

    def kill_rank(self, host: str, local_rank: int) -> float:
        """Kill one rank; return the time of the kill, by `time.monotonic`."""
        return _signal(self.ranks[host][local_rank], signal.SIGKILL)

    def kill_host(self, host: str) -> float:
        """Kill the first process of a host, and thereby the whole host; return the time of the kill."""
        return _signal(self.init(host), signal.SIGKILL)

    def kill_agent(self, host: str) -> float:
        """Kill the agent of a host; return the time of the kill."""
        return _signal(self.agent(host), signal.SIGKILL)

    def freeze_agent(self, host: str) -> float:
        """Suspend the agent of a host, as if its machine hung; return the time of the suspension."""
        return _signal(self.agent(host), signal.SIGSTOP)

    def cut_link(self, host: str) -> float:
        """Cut a host off from the other hosts; return the time just before the call that cuts the link."""
        died_at_s = time.monotonic()
        asyncio.run(partition(str(self.pool_folder), host, up=False))
        return died_at_s

    def agent(self, host: str) -> ProcessId:
        """Return the agent of a host."""
        return self._record.agents[host]

    @cached_property
    def pool_folder(self) -> Path:
        """The folder of the pool on whose hosts the job runs, known once the job trains."""
        return pool_folder(self.folder) or self.folder

    @property
    def _record(self) -> AttemptRecord:
        record = read_record(self.pool_folder)
        assert record is not None, "its ranks run"
        return record

    def init(self, host: str) -> ProcessId:
        """Return the first process of a host: when it ends, the kernel ends every other process of the host.

        Raises: AssertionError.
        """
        first = first_process(self.agent(host))
        if first is None:
            raise AssertionError(f"{host} of {self.name} has no pid namespace")
        return first

    def cgroups(self) -> list[str]:
        """Return the existing cgroups of the job's hosts."""
        family = Path("/sys/fs/cgroup").rglob(f"{cleaning.CGROUP_FAMILY}/*")
        return [str(path) for path in family if self.name in path.name and path.is_dir()]

    def left(self) -> list[str]:
        """Return the remaining processes of the job, zombies included, and its mounts."""
        processes = [f"process {item.pid}" for item in self.processes if is_in_proc(item)]
        marked = [f"process {item.pid}" for item in killing.with_variable(MARK_VARIABLE, self.mark)]
        return [
            *dict.fromkeys(processes + marked),
            *cleaning.mounts_below(self.folder),
            *cleaning.mounts_below(self.pool_folder),
        ]

    def watch_the_end(self, died_at_s: float) -> GangEnd:
        """Return the times at which the job was terminal and at which its last process and mount were gone.

        Raises: AssertionError naming the status or the remains, if they persist DEADLINE_S after the death.
        """
        terminal_s: float | None = None
        gone_s: float | None = None
        facts: Mapping[str, Any] = {}
        while time.monotonic() < died_at_s + DEADLINE_S and (terminal_s is None or gone_s is None):
            if terminal_s is None:
                facts = self._sagemaker.describe_training_job(TrainingJobName=self.name)
                if facts["TrainingJobStatus"] in TERMINAL:
                    terminal_s = time.monotonic() - died_at_s
            if gone_s is None and not self.left():
                gone_s = time.monotonic() - died_at_s
            time.sleep(POLL_S)
        assert terminal_s is not None, f"{self.name} is not terminal after {DEADLINE_S} s: {facts}"
        assert gone_s is not None, f"{self.name} has left {self.left()} {DEADLINE_S} s after a death"
        return GangEnd(terminal_s=terminal_s, gone_s=gone_s, facts=facts)

    def _wait_for_ranks(self) -> dict[str, list[ProcessId]]:
        deadline_s = time.monotonic() + DEADLINE_S
        ranks: dict[str, list[ProcessId]] = {}
        while time.monotonic() < deadline_s:
            facts = self._sagemaker.describe_training_job(TrainingJobName=self.name)
            assert facts["TrainingJobStatus"] not in TERMINAL, f"{self.name} ended: {facts.get('FailureReason')}"
            if facts["SecondaryStatus"] == "Training":
                ranks = {host: self._ranks_of(host) for host in HOSTS}
                # Each rank prints this text when it reaches its sleep.
                is_complete = all(len(processes) == RANKS_PER_HOST for processes in ranks.values())
                if is_complete and self._log().count("asleep") == len(HOSTS) * RANKS_PER_HOST:
                    return ranks
            time.sleep(5 * POLL_S)
        raise AssertionError(
            f"{self.name} did not have {len(HOSTS)} x {RANKS_PER_HOST} ranks after {DEADLINE_S} s: it has "
            f"{ranks} in {facts['SecondaryStatus']}"
        )

    def _ranks_of(self, host: str) -> list[ProcessId]:
        below = killing.descendants(self.agent(host))
        return [item for item in below if any(part.endswith(PROGRAM) for part in read_arguments(item.pid))]

    def _log(self) -> list[str]:
        streams = self._logs.describe_log_streams(logGroupName=LOG_GROUP, logStreamNamePrefix=f"{self.name}/")
        pages = [
            self._logs.get_log_events(logGroupName=LOG_GROUP, logStreamName=stream["logStreamName"], startFromHead=True)
            for stream in streams["logStreams"]
        ]
        return [event["message"] for page in pages for event in page["events"]]

    def _all_processes(self) -> list[ProcessId]:
        tops = [self.agent(host) for host in HOSTS]
        ready = read_ready(self.pool_folder)
        if ready is not None:  # None if hosts are plain processes: the pool then has no network, and no anchor
            tops.append(ready.anchor)
        return [*tops, *(item for top in tops for item in killing.descendants(top))]


def first_process(agent: ProcessId) -> ProcessId | None:
    """Return the first process of an agent's host; None before it starts, and if hosts are plain processes."""
    for process in killing.descendants(agent):
        ids = _status(process).get("NSpid", "").split()
        if len(ids) > 1 and ids[-1] == "1":
            return process
    return None


def has_namespaces(home: Path) -> bool:
    """Whether hosts of the service with state folder `home` have first processes and networks of their own."""
    return "isolation: namespaces" in (home / "service.log").read_text()


def is_in_proc(process: ProcessId) -> bool:
    """Whether the process exists, even as a zombie."""
    entry = read_entry(process.pid)  # unlike ProcessId, it includes zombies
    return entry is not None and str(entry.started_at) == process.started


def _signal(process: ProcessId, number: signal.Signals) -> float:
    died_at_s = time.monotonic()
    os.kill(process.pid, number)
    return died_at_s


def _status(process: ProcessId) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
