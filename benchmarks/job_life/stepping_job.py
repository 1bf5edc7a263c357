"""A job of `stepping_program` on a service: submitted, followed line by line, its hosts killed.

Where: `goodput` and `spot`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.jobs import LOG_GROUP, TERMINAL, BenchmarkJobs
from benchmarks.training.step_history import Step, parse
from clary.base.errors import EngineError
from clary.base.processes import ProcessId
from clary.control.engines.local import killing
from clary.control.engines.local.attempt_record import living_agents, pool_folder
from clary.testing.gangs import first_process

INSTANCE_TYPE = "ml.m5.large"
PORT = 7790
LIMIT_S = 120.0
POLL_S = 0.05
LONG_S = 7 * 24 * 3600


class SteppingJob:
    """One such job.

    Args:
        home: the service's state folder.
        jobs: of a service, with `stepping_program.SCRIPT`.
        name: of the new job.
        num_hosts: one process each.
        step_s: a step's sleep.
        save_every: steps from one checkpoint to the next.
        members: of the request, in place of the usual ones.
    """

    def __init__(
        self,
        home: Path,
        jobs: BenchmarkJobs,
        name: str,
        *,
        num_hosts: int,
        step_s: float,
        save_every: int,
        num_steps: int = 0,
        **members: Any,
    ) -> None:
        self.name = name
        self.num_hosts = num_hosts
        self.lines: list[Step] = []
        self._folder = home / "jobs" / name
        self._jobs = jobs
        self._next_tokens: dict[str, str] = {}  # by log stream
        self._struck: set[int] = set()
        jobs.create(
            name,
            instance_type=INSTANCE_TYPE,
            num_hosts=num_hosts,
            HyperParameters=jobs.program,
            Environment={
                "STEP_S": str(step_s),
                "SAVE_EVERY": str(save_every),
                "NUM_STEPS": str(num_steps),
                "PORT": str(PORT),
            },
            CheckpointConfig={"S3Uri": f"s3://clary/steps/{name}"},
            **{"StoppingCondition": {"MaxRuntimeInSeconds": LONG_S}} | members,
        )

    def describe(self) -> dict[str, Any]:
        """Return the API's description of the job."""
        facts: dict[str, Any] = self._jobs.sagemaker.describe_training_job(TrainingJobName=self.name)
        return facts

    def read(self) -> list[Step]:
        """Read on in the log of each host; return all lines of steps so far."""
        found = self._jobs.logs.describe_log_streams(logGroupName=LOG_GROUP, logStreamNamePrefix=f"{self.name}/")
        for stream in found["logStreams"]:
            self._read_stream(stream["logStreamName"])
        return self.lines

    def wait_for(self, is_enough: Callable[[list[Step]], bool], *, limit_s: float = LIMIT_S) -> list[Step]:
        """Return the lines once they are enough; exits if the job ends before, or `limit_s` is over."""
        deadline_s = time.monotonic() + limit_s
        while not is_enough(self.read()):
            self._require_alive()
            if time.monotonic() > deadline_s:
                raise SystemExit(f"{self.name}: no such step within {limit_s:g} s: {self.lines[-3:]}")
            time.sleep(4 * POLL_S)
        return self.lines

    def kill_host(self, host: str) -> float:
        """Kill everything of a host, its agent too, of an attempt that was not struck yet; return when.

        Raises: SystemExit if there is none within LIMIT_S.
        """
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s:
            attempt = self._newest_attempt()
            agent = None if attempt in self._struck else self._agent(attempt, host)
            if agent is not None and first_process(agent) is not None:
                self._struck.add(attempt)
                died_at_s = time.monotonic()
                for process in (*killing.descendants(agent), agent):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL)
                return died_at_s
            self._require_alive()
            time.sleep(POLL_S)
        raise SystemExit(f"{self.name}: {host} had no process to kill within {LIMIT_S:g} s")

    def stop(self) -> dict[str, Any]:
        """Stop the job; return its description at the end."""
        self._jobs.sagemaker.stop_training_job(TrainingJobName=self.name)
        facts = self._jobs.wait(self.name, status="Stopped")
        self.read()
        return facts

    def _read_stream(self, name: str) -> None:
        while True:
            more = {"nextToken": self._next_tokens[name]} if name in self._next_tokens else {}
            page = self._jobs.logs.get_log_events(
                logGroupName=LOG_GROUP, logStreamName=name, startFromHead=True, **more
            )
            self._next_tokens[name] = page["nextForwardToken"]
            if not page["events"]:
                return
            self.lines += parse([event["message"] for event in page["events"]])

    def _newest_attempt(self) -> int:
        return max((int(path.name) for path in self._folder.glob("[0-9]*")), default=0)

    def _agent(self, attempt: int, host: str) -> ProcessId | None:
        try:
            folder = pool_folder(self._folder / str(attempt))
            return None if folder is None else living_agents(folder).get(host)
        except EngineError:
            return None  # its hosts are not there yet, or not any more

    def _require_alive(self) -> None:
        facts = self.describe()
        if facts["TrainingJobStatus"] in TERMINAL:
            raise SystemExit(f"{self.name} ended: {facts['TrainingJobStatus']}: {facts.get('FailureReason')}")
