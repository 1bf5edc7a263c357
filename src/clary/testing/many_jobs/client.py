"""One client of the crowd, in a process of its own: keeps a number of jobs alive, follows each and deletes it.

Where: `crowd` starts it with a task on stdin, and reads its report from stdout. The task's seed determines its actions;
the service's answers determine their times.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from clary.base.plain import from_plain, to_plain
from clary.testing.many_jobs.caller import UNANSWERED, Caller
from clary.testing.many_jobs.records import ClientReport, ClientTask, JobRecord, Life

IMAGE = "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.8.0-gpu-py312"
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
TERMINAL = ("Completed", "Failed", "Stopped")
NOT_FOUND = "Requested resource not found."
EXIT_CODE = 7  # exit code of programs that fail
FOR_EVER_S = 600  # longer than any run
STREAM_DELAY_S = 2.0  # hosts are requested at most this long after the whole second in a stream's name
DELETE_ATTEMPTS = 3  # each attempt waits up to 20 s for hosts that are being released

LIVES = {
    Life.FINISHES: 2,
    Life.FAILS: 1,
    Life.STOPPED_AT_ONCE: 3,
    Life.STOPPED_RUNNING: 3,
    Life.STOPPED_ENDING: 2,
}
END_BY_THEMSELVES = (Life.FINISHES, Life.FAILS)
RUN_FOR_EVER = (Life.STOPPED_AT_ONCE, Life.STOPPED_RUNNING)
STOPPED_IN_TRAINING = (Life.STOPPED_RUNNING, Life.STOPPED_ENDING)
EXPECTED = {
    Life.FINISHES: ("Completed",),
    Life.FAILS: ("Failed",),
    Life.STOPPED_AT_ONCE: ("Stopped",),
    Life.STOPPED_RUNNING: ("Stopped",),
    Life.STOPPED_ENDING: ("Stopped", "Completed"),
}
NUM_HOSTS = {1: 6, 2: 1, 3: 1}  # large jobs must not be overtaken by small ones
P_REUSE_NAME = 0.3
P_DELETE_TOO_EARLY = 0.3
P_STOP_TWICE = 0.3
P_DELETE_TWICE_AT_ONCE = 0.2
P_LIST = 0.02


@dataclass
class Job:
    """A job that this client has not deleted yet."""

    name: str
    nonce: str  # part of its lines: its log must hold no line of another job, even of an earlier job of the same name
    life: Life
    num_hosts: int
    submitted_at: float
    is_stopped: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


class Client:
    """Creates jobs and follows each, one step at a time."""

    def __init__(self, task: ClientTask) -> None:
        self._task = task
        self._caller = Caller(task)
        self._random = random.Random(f"{task.seed}:{task.index}")
        self._prefix = f"crowd-{task.seed}-{task.index}"
        self._num_created = 0
        self._free_names: list[str] = []
        self._alive: list[Job] = []
        self._num_alive_at_most = 0
        self._records: list[JobRecord] = []
        self._pair = ThreadPoolExecutor(2)

    def run(self) -> ClientReport:
        """Create jobs for the task's time, then stop some, wait for the others to end, and delete all."""
        creates_until_s = time.monotonic() + self._task.seconds
        while time.monotonic() < creates_until_s:
            if len(self._alive) < self._task.num_jobs:
                self._create()
            else:
                self._step(self._alive.pop(0))
            if self._random.random() < P_LIST:
                self._list()
            time.sleep(self._task.pause_s)
        self._drain()
        self._pair.shutdown()
        return ClientReport(
            index=self._task.index,
            jobs=tuple(self._records),
            latencies_s={operation: tuple(values) for operation, values in self._caller.latencies_s.items()},
            refusals=dict(self._caller.refusals),
            num_retries=self._caller.num_retries,
            num_throttled=self._caller.num_throttled,
            wrongs=tuple(self._caller.wrongs),
            num_alive_at_most=self._num_alive_at_most,
        )

    def _drain(self) -> None:
        deadline_s = time.monotonic() + self._task.drain_s
        for job in self._alive:
            if job.life not in END_BY_THEMSELVES:
                self._stop(job)
        while self._alive and time.monotonic() < deadline_s:
            self._step(self._alive.pop(0))
            time.sleep(self._task.pause_s)
        for job in self._alive:
            self._wrong(job, f"has not ended {self._task.drain_s:g} s after the last stop: {job.facts}")
        if not self._alive:
            self._list()

    def _create(self) -> None:
        self._num_created += 1
        life = _choose(self._random, LIVES)
        num_hosts = _choose(self._random, NUM_HOSTS)
        reuses = self._free_names and self._random.random() < P_REUSE_NAME
        name = self._free_names.pop() if reuses else f"{self._prefix}-{self._num_created}"
        job = Job(name, f"{name}:{self._num_created}", life, num_hosts, submitted_at=time.time())
        code, answer = self._caller.call("sagemaker", "CreateTrainingJob", **_request(job))
        if code == UNANSWERED:
            return  # `Caller` has recorded the missing answer as a violation
        if code:
            self._wrong(job, f"a good request was refused: {answer['Error']}")
            return
        self._alive.append(job)
        self._num_alive_at_most = max(self._num_alive_at_most, len(self._alive))
        if life is Life.STOPPED_AT_ONCE:
            self._stop(job)

    def _step(self, job: Job) -> None:
        """Describe a job once and take its next action; a job that is deleted or not described leaves the list."""
        code, facts = self._caller.call("sagemaker", "DescribeTrainingJob", TrainingJobName=job.name)
        if code:
            self._wrong(job, f"an accepted job cannot be described: {facts.get('Error')}")
            return
        job.facts = facts
        if facts["TrainingJobStatus"] in TERMINAL:
            self._conclude(job)
            return
        if job.life in STOPPED_IN_TRAINING and not job.is_stopped and facts["SecondaryStatus"] == "Training":
            self._stop(job)
        self._alive.append(job)

    def _stop(self, job: Job) -> None:
        may_be_deleted_too_early = job.life in RUN_FOR_EVER and not job.is_stopped
        if may_be_deleted_too_early and self._random.random() < P_DELETE_TOO_EARLY:
            self._expect_refusal(job, "DeleteTrainingJob", "the training job is in status InProgress")
        code, answer = self._caller.call("sagemaker", "StopTrainingJob", TrainingJobName=job.name)
        job.is_stopped = job.is_stopped or not code
        is_over = code == "ValidationException" and "is in status" in answer["Error"]["Message"]
        if code and not is_over:
            self._wrong(job, f"cannot be stopped: {answer['Error']}")
        elif not code and self._random.random() < P_STOP_TWICE:
            self._stop(job)

    def _conclude(self, job: Job) -> None:
        """Check the end of a job and that its status does not change, then delete it."""
        ended_at = time.time()
        status = job.facts["TrainingJobStatus"]
        expected = EXPECTED[job.life]
        if status not in expected:
            self._wrong(job, f"{job.life} ended {status} instead of {expected}: {job.facts.get('FailureReason')}")
        if (
            job.life is Life.FAILS
            and status == "Failed"
            and f"exit code: {EXIT_CODE}" not in job.facts["FailureReason"]
        ):
            self._wrong(job, f"the reason names no exit code {EXIT_CODE}: {job.facts['FailureReason']}")
        self._check_transitions(job)
        streams = self._streams(job)
        first_line_at = self._check_lines(job, streams)
        admitted_from, admitted_until = admission_of(job.facts, streams)
        self._expect_refusal(job, "StopTrainingJob", f"the training job is in status {status}")
        _, again = self._caller.call("sagemaker", "DescribeTrainingJob", TrainingJobName=job.name)
        if (again.get("TrainingJobStatus"), again.get("SecondaryStatus")) != (status, job.facts["SecondaryStatus"]):
            self._wrong(job, f"was {status} and is {again.get('TrainingJobStatus')}: a terminal status moved")
        self._records.append(
            JobRecord(
                name=job.name,
                client=self._task.index,
                life=job.life,
                num_hosts=job.num_hosts,
                submitted_at=job.submitted_at,
                created_at=job.facts["CreationTime"].timestamp(),
                admitted_from=admitted_from,
                admitted_until=admitted_until,
                first_line_at=first_line_at,
                status=status,
                ended_at=ended_at,
            )
        )
        self._delete(job)

    def _check_transitions(self, job: Job) -> None:
        rows = job.facts["SecondaryStatusTransitions"]
        times = [row["StartTime"] for row in rows]
        if times != sorted(times) or any("EndTime" not in row for row in rows[:-1]):
            self._wrong(job, f"its transitions are out of order: {rows}")
        if rows[-1]["Status"] != job.facts["SecondaryStatus"]:
            self._wrong(job, f"its last transition is not its status {job.facts['SecondaryStatus']}: {rows}")

    def _streams(self, job: Job) -> list[str]:
        code, answer = self._caller.call(
            "logs", "DescribeLogStreams", logGroupName=LOG_GROUP, logStreamNamePrefix=f"{job.name}/"
        )
        return [] if code else [stream["logStreamName"] for stream in answer["logStreams"]]

    def _check_lines(self, job: Job, streams: Sequence[str]) -> float | None:
        """Check that each host printed once, unless the job was stopped; return when the last host printed, or None."""
        times = []
        for stream in streams:
            code, page = self._caller.call(
                "logs", "GetLogEvents", logGroupName=LOG_GROUP, logStreamName=stream, startFromHead=True
            )
            lines = [] if code else [event["message"] for event in page["events"]]
            firsts = [line.split() for line in lines if line.startswith("FIRST ")]
            if any(parts[1] != job.nonce for parts in firsts) or len(firsts) > 1:
                self._wrong(job, f"{stream} has lines that are not its own, or doubled: {firsts}")
            times += [float(parts[2]) for parts in firsts]
        if job.facts["TrainingJobStatus"] != "Stopped" and len(times) != job.num_hosts:
            self._wrong(job, f"{len(times)} of {job.num_hosts} hosts have their line in {list(streams)}")
        return max(times) if len(times) == job.num_hosts else None

    def _delete(self, job: Job) -> None:
        def delete() -> tuple[str, dict[str, Any]]:
            for _ in range(DELETE_ATTEMPTS):
                code, answer = self._caller.call("sagemaker", "DeleteTrainingJob", TrainingJobName=job.name)
                if code != "ResourceInUse":
                    break
            return code, answer

        num_at_once = 2 if self._random.random() < P_DELETE_TWICE_AT_ONCE else 1
        answers = list(self._pair.map(lambda _: delete(), range(num_at_once)))
        lost = [answer for code, answer in answers if code and answer["Error"].get("Message") != NOT_FOUND]
        if lost or all(code for code, _ in answers):
            self._wrong(job, f"is over and cannot be deleted: {[answer.get('Error') for _, answer in answers]}")
        self._expect_refusal(job, "DescribeTrainingJob", NOT_FOUND)
        self._expect_refusal(job, "DeleteTrainingJob", NOT_FOUND)
        if self._streams(job):
            self._wrong(job, "was deleted and its log is still there")
        self._free_names.append(job.name)

    def _list(self) -> None:
        """Check that every job of this client is listed once, without deleted ones."""
        code, answer = self._caller.call(
            "sagemaker", "ListTrainingJobs", NameContains=f"{self._prefix}-", MaxResults=100
        )
        listed = sorted(item["TrainingJobName"] for item in answer.get("TrainingJobSummaries", ()))
        expected = sorted(job.name for job in self._alive)
        if not code and listed != expected:
            self._caller.wrongs.append(f"client {self._task.index}: listed are {listed}, expected {expected}")

    def _expect_refusal(self, job: Job, operation: str, words: str) -> None:
        code, answer = self._caller.call("sagemaker", operation, TrainingJobName=job.name)
        if code != "ValidationException" or words not in answer["Error"]["Message"]:
            self._wrong(job, f"{operation} was to be refused ({words!r}), got {code!r} {answer.get('Error')}")

    def _wrong(self, job: Job, words: str) -> None:
        self._caller.wrongs.append(f"{job.name} ({job.life}): {words}")


def admission_of(facts: Mapping[str, Any], streams: Sequence[str]) -> tuple[float | None, float | None]:
    """Return the earliest and the latest time at which hosts were requested; (None, None) if they never were.

    A job that waited at the head of the queue went from Pending to Starting at exactly that time. If a job did not
    wait, its first transition is rewritten later; but the names of its log streams contain the time of the request in
    whole seconds.
    """
    if not streams:
        return None, None
    rows = facts["SecondaryStatusTransitions"]
    exact = [row["StartTime"].timestamp() for row in rows[1:] if row["Status"] == "Starting"]
    if exact:
        return exact[0], exact[0]
    second = float(streams[0].rpartition("-")[2])
    began = [row["StartTime"].timestamp() for row in rows if row["Status"] == "Downloading"]
    created_at = facts["CreationTime"].timestamp()
    return max(second, created_at), min([*began, max(second, created_at) + STREAM_DELAY_S])


def _request(job: Job) -> dict[str, Any]:
    end = "sleep 0.2"
    if job.life in RUN_FOR_EVER:
        end = f"exec sleep {FOR_EVER_S}"
    elif job.life is Life.FAILS:
        end = f"exit {EXIT_CODE}"
    return {
        "TrainingJobName": job.name,
        "RoleArn": "arn:aws:iam::000000000000:role/ClaryExecutionRole",
        "AlgorithmSpecification": {
            "TrainingImage": IMAGE,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["/bin/bash", "-c"],
            "ContainerArguments": [f'echo "FIRST {job.nonce} $EPOCHREALTIME"; {end}'],
        },
        "OutputDataConfig": {"S3OutputPath": "s3://clary/crowd"},
        "ResourceConfig": {"InstanceCount": job.num_hosts, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
    }


def _choose(source: random.Random, weights: Mapping[Any, int]) -> Any:
    return source.choices(list(weights), list(weights.values()))[0]


def main() -> None:
    """Carry out the task on stdin."""
    report = Client(from_plain(ClientTask, json.load(sys.stdin))).run()
    json.dump(to_plain(report), sys.stdout)


if __name__ == "__main__":
    main()
