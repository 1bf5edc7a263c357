"""A job of one host that prints, and the measured way of its output into the log, for `bench_logs`."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3

from benchmarks.service import BenchmarkService

GROUP = "/aws/sagemaker/TrainingJobs"
PROGRAM = Path(__file__).with_name("log_programs.py")
TIMEOUT_S = 200.0
POLL_S = 0.05
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class PrintedJob:
    """Measurements of one job that prints."""

    name: str
    began_at: float = 0.0  # when the program printed its first line
    seen_at: float = 0.0  # when its last line could be read through the API
    agent_cpu_s: float = 0.0  # of the agent and its helpers, between the two
    service_cpu_s: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)  # what the program said at its end
    visible_s: list[float] = field(default_factory=list)  # of each line with a time in it, from print to read


class LogReader:
    """Reads one job's stream through GetLogEvents, forwards."""

    def __init__(self, service: BenchmarkService, job: str) -> None:
        self._logs = client(service, "logs")
        self._job = job
        self._stream = ""
        self._token: str | None = None

    def next_page(self) -> list[str]:
        """Return the lines that are new, at most 1 MiB of them."""
        if not self._stream:
            found = self._logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=f"{self._job}/")
            if not found["logStreams"]:
                return []
            self._stream = found["logStreams"][0]["logStreamName"]
        more = {"nextToken": self._token} if self._token else {}
        page = self._logs.get_log_events(logGroupName=GROUP, logStreamName=self._stream, startFromHead=True, **more)
        self._token = page["nextForwardToken"]
        return [event["message"] for event in page["events"]]

    def newest(self) -> str:
        """Return the newest line."""
        if not self._stream and not self.next_page():
            return ""
        page = self._logs.get_log_events(logGroupName=GROUP, logStreamName=self._stream, limit=4)
        return next((event["message"] for event in page["events"] if event["message"].startswith("END ")), "")

    def rest(self) -> list[str]:
        """Return all lines from where reading stands."""
        lines: list[str] = []
        while page := self.next_page():
            lines += page
        return lines


def submit(service: BenchmarkService, name: str, arguments: str) -> None:
    """Have one host run the printing program."""
    archive = io.BytesIO()
    script = f"import sys\nsys.argv[1:] = {arguments.split()!r}\n" + PROGRAM.read_text().replace(
        "from __future__ import annotations\n", ""
    )
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        member = tarfile.TarInfo("printing.py")
        member.size = len(script.encode())
        tar.addfile(member, io.BytesIO(script.encode()))
    client(service, "s3").put_object(Bucket="clary", Key=f"bench/{name}.tar.gz", Body=archive.getvalue())
    client(service, "sagemaker").create_training_job(
        TrainingJobName=name,
        RoleArn="arn:aws:iam::000000000000:role/ClaryExecutionRole",
        AlgorithmSpecification={"TrainingImage": "bench:1", "TrainingInputMode": "File"},
        HyperParameters={
            "sagemaker_program": '"printing.py"',
            "sagemaker_submit_directory": f'"s3://clary/bench/{name}.tar.gz"',
        },
        OutputDataConfig={"S3OutputPath": "s3://clary/bench"},
        ResourceConfig={"InstanceCount": 1, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 30},
        StoppingCondition={"MaxRuntimeInSeconds": 600},
    )


def watch_to_end(
    service: BenchmarkService, name: str, *, reads_all: bool, at_begin: Callable[[], None] = lambda: None
) -> PrintedJob:
    """Wait until the program's last line can be read, with the CPU time that it took from its first line on.

    Args:
        service: that runs the job.
        name: of the job.
        reads_all: whether every line is read as it comes, for its delay; else only the newest is looked at.
        at_begin: called when the first line was seen.
    """
    job = PrintedJob(name)
    reader = LogReader(service, name)
    deadline_s = time.monotonic() + TIMEOUT_S
    while not job.began_at:
        for line in reader.next_page():
            if line.startswith("BEGIN "):
                job.began_at = float(line.split()[1])
        _check(deadline_s, name)
        time.sleep(POLL_S)
    agent, server = agent_pid(name), service_pid(service)
    agent_before_s, server_before_s = _cpu_s(agent), _cpu_s(server)
    at_begin()
    while not job.facts:
        lines = reader.next_page() if reads_all else [reader.newest()]
        now = time.time()
        for line in lines:
            if line.startswith("END "):
                job.facts = json.loads(line[4:])
            elif line[:9].isdigit() and reads_all:
                job.visible_s.append(now - float(line.split()[1]))
        job.agent_cpu_s = max(job.agent_cpu_s, _cpu_s(agent) - agent_before_s)
        job.service_cpu_s = max(job.service_cpu_s, _cpu_s(server) - server_before_s)
        job.seen_at = now
        _check(deadline_s, name)
        if not job.facts:
            time.sleep(POLL_S)
    return job


def agent_pid(job: str) -> int:
    """Return the process of the job's only agent."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"clary.agent" in words and job.encode() in words:
                return int(entry.name)
    raise SystemExit(f"no agent of {job} runs")


def service_pid(service: BenchmarkService) -> int:
    """Return the process of the service."""
    return int(json.loads((service.home / "run/service.json").read_text())["pid"])


def client(service: BenchmarkService, name: str) -> Any:
    """Return a boto3 client of the service."""
    return boto3.client(
        name,
        endpoint_url=service.environment["AWS_ENDPOINT_URL"],
        region_name=service.environment["AWS_REGION"],
        aws_access_key_id=service.environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=service.environment["AWS_SECRET_ACCESS_KEY"],
    )


def _cpu_s(pid: int) -> float:
    """CPU time of a process so far; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _check(deadline_s: float, name: str) -> None:
    if time.monotonic() > deadline_s:
        raise SystemExit(f"{name}: its log was not complete within {TIMEOUT_S:g} s")
