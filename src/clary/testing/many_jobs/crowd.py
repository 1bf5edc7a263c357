"""Starts the clients of a crowd, watches the service meanwhile, and merges their reports.

Where: `python -m benchmarks concurrency` runs it for minutes, tests/integration for seconds, each against its own
service. Every client is a process with an unmodified boto3.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from clary.base.plain import from_plain, to_plain
from clary.testing.many_jobs.queue_order import longest_pause_s, overtakings
from clary.testing.many_jobs.records import ClientReport, ClientTask, JobRecord
from clary.testing.many_jobs.service_watch import Sample, ServiceWatch

DRAIN_S = 300.0  # longest time for the remaining jobs to end and to be deleted
START_S = 60.0  # longest time for the clients' interpreters and boto3 to start, on a busy machine
WATCH_INTERVAL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class CrowdPlan:
    """The numbers of clients and jobs, and the times of a crowd."""

    num_clients: int = 8
    num_jobs: int = 50  # jobs alive at once, of all clients together
    seconds: float = 300.0
    settle_s: float = 10.0  # time between the last answer and the last sample of the service
    look_interval_s: float = 60.0  # time between two samples of the service
    pause_s: float = 0.1
    seed: int = 1


@dataclass(frozen=True, kw_only=True)
class CrowdReport:
    """The reports of all clients, and samples of the service."""

    clients: tuple[ClientReport, ...]
    samples: tuple[Sample, ...]

    @property
    def jobs(self) -> list[JobRecord]:
        """Every job that a client followed to its end."""
        return [job for client in self.clients for job in client.jobs]

    @property
    def wrongs(self) -> list[str]:
        """All violations that clients saw: wrong answers, wrong ends of jobs, jobs out of order."""
        return [*(wrong for client in self.clients for wrong in client.wrongs), *overtakings(self.jobs)]

    @property
    def statuses(self) -> dict[str, int]:
        """Numbers of jobs by intended life and final status."""
        return dict(sorted(Counter(f"{job.life} {job.status}" for job in self.jobs).items()))

    @property
    def refusals(self) -> dict[str, int]:
        """Number of refusals by operation and error code."""
        total: Counter[str] = Counter()
        for client in self.clients:
            total.update(client.refusals)
        return dict(sorted(total.items()))

    @property
    def latencies_s(self) -> dict[str, list[float]]:
        """Latencies of every operation, sorted."""
        found: dict[str, list[float]] = {}
        for client in self.clients:
            for operation, values in client.latencies_s.items():
                found.setdefault(operation, []).extend(values)
        return {operation: sorted(found[operation]) for operation in sorted(found)}

    @property
    def first_lines_s(self) -> list[float]:
        """Times from CreateTrainingJob to the first line of the last host, sorted."""
        return sorted(job.first_line_at - job.submitted_at for job in self.jobs if job.first_line_at is not None)

    @property
    def longest_pause_s(self) -> float:
        """The longest time in which no job was admitted although a job waited."""
        return longest_pause_s(self.jobs)


def run_crowd(
    plan: CrowdPlan, environment: Mapping[str, str], home: Path, *, say: Callable[[str], None] = lambda _: None
) -> CrowdReport:
    """Start all clients against the service of `home`; return when every client has ended.

    Args:
        plan: numbers of clients and jobs.
        environment: variables as `clary env` prints them.
        home: the service's state folder.
        say: called with a line of text at each sample of the service.

    Raises: AssertionError naming the clients that did not end in time or did not report, after killing them.
    """
    watch = ServiceWatch(home)
    samples = [watch.look("start", elapsed_s=0.0)]
    with tempfile.TemporaryDirectory(prefix="clary-crowd-") as folder:
        clients = [_start_client(task, environment, Path(folder)) for task in _tasks(plan, environment)]
        try:
            _watch_until_they_end(plan, clients, watch, samples, say)
            reports = tuple(client.report() for client in clients)
        finally:
            for client in clients:
                client.end()
    time.sleep(plan.settle_s)
    samples.append(watch.look("settled", elapsed_s=samples[-1].elapsed_s + plan.settle_s))
    return CrowdReport(clients=reports, samples=tuple(samples))


@dataclass(frozen=True)
class _ClientProcess:
    index: int
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    complaints: IO[bytes]

    def report(self) -> ClientReport:
        self.output.seek(0)
        self.complaints.seek(0)
        code = self.process.returncode
        assert code == 0, f"client {self.index} ended with {code}: {self.complaints.read().decode()[-2000:]}"
        return from_plain(ClientReport, json.load(self.output))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.output.close()
        self.complaints.close()


def _tasks(plan: CrowdPlan, environment: Mapping[str, str]) -> list[ClientTask]:
    shares = [len(range(index, plan.num_jobs, plan.num_clients)) for index in range(plan.num_clients)]
    return [
        ClientTask(
            index=index,
            endpoint_url=environment["AWS_ENDPOINT_URL"],
            region=environment["AWS_REGION"],
            access_key_id=environment["AWS_ACCESS_KEY_ID"],
            secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
            num_jobs=share,
            seconds=plan.seconds,
            drain_s=DRAIN_S,
            pause_s=plan.pause_s,
            seed=plan.seed,
        )
        for index, share in enumerate(shares)
    ]


def _start_client(task: ClientTask, environment: Mapping[str, str], folder: Path) -> _ClientProcess:
    # Files instead of pipes: a report may be larger than a pipe holds, and is read only at the end.
    output = (folder / f"{task.index}.json").open("w+b")
    complaints = (folder / f"{task.index}.err").open("w+b")
    process = subprocess.Popen(
        [sys.executable, "-m", "clary.testing.many_jobs.client"],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=complaints,
    )
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(json.dumps(to_plain(task)).encode())
    return _ClientProcess(task.index, process, output, complaints)


def _watch_until_they_end(
    plan: CrowdPlan,
    clients: list[_ClientProcess],
    watch: ServiceWatch,
    samples: list[Sample],
    say: Callable[[str], None],
) -> None:
    started_s = time.monotonic()
    deadline_s = started_s + START_S + plan.seconds + DRAIN_S
    while busy := [client.index for client in clients if client.process.poll() is None]:
        elapsed_s = time.monotonic() - started_s
        assert time.monotonic() < deadline_s, f"clients {busy} are still busy after {elapsed_s:.0f} s: a deadlock?"
        if elapsed_s >= len(samples) * plan.look_interval_s:
            samples.append(watch.look(f"after {elapsed_s:.0f} s", elapsed_s=elapsed_s))
            say(f"{samples[-1]}")
        time.sleep(WATCH_INTERVAL_S)
    samples.append(watch.look("end", elapsed_s=time.monotonic() - started_s))
