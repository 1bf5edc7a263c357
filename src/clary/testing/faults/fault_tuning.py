"""One tuning job after the other while faults strike: no trial is lost, duplicated or proposed twice.

Where: `fault_run` runs one `TuningDriver` beside its fleet of training jobs. The search space of a tuning job has
exactly one point per trial, so that a repeated proposal is visible.
"""

from __future__ import annotations

import io
import tarfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from clary.testing.faults.fault_clients import NoAnswer
from clary.testing.faults.fault_ledger import DISK_KINDS, Harm, Violation
from clary.testing.faults.fault_plan import FaultKind
from clary.testing.faults.fault_program import BUCKET
from clary.testing.faults.fault_world import FaultWorld

NUM_ROWS = 2
NUM_COLUMNS = 3
NUM_TRIALS = NUM_ROWS * NUM_COLUMNS
DEADLINE_S = 240.0  # longest time from the request to the end of the tuning job
SOURCE_KEY = "fault-program/trial.tar.gz"
POLL_S = 0.3
OVER = ("Completed", "Failed", "Stopped")
SOURCE = b"""
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--row", type=int)
parser.add_argument("--column", type=int)
options, _ = parser.parse_known_args()
print(f"loss={3 * options.row + options.column}", flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class TuningEvidence:
    """The end of a tuning job as clients see it."""

    name: str
    status: str
    reason: str
    trials: Sequence[Mapping[str, Any]]  # TrainingJobSummaries, all pages
    listed: Collection[str]  # training jobs of its prefix, from ListTrainingJobs


def judge_tuning(evidence: TuningEvidence, kinds: Collection[FaultKind]) -> list[Violation]:
    """Return the promises that the service broke for an ended tuning job. Pure.

    Args:
        evidence: evidence of the tuning job's end.
        kinds: kinds of faults during its life; only full disks may lose trials or their values.
    """
    found: list[Violation] = []

    def broken(harm: Harm, what: str) -> None:
        found.append(Violation(harm=harm, job=evidence.name, what=what))

    disks = bool(DISK_KINDS & set(kinds))
    if evidence.status != "Completed" and not disks:
        broken(Harm.LOST, f"the tuning job is {evidence.status}, and no disk was full: {evidence.reason}")
    names = [str(trial["TrainingJobName"]) for trial in evidence.trials]
    if len(set(names)) != len(names):
        broken(Harm.DOUBLED, f"trials are listed twice: {sorted(names)}")
    if set(names) != set(evidence.listed):
        broken(Harm.LOST, f"its trials are {sorted(names)}, and its training jobs {sorted(evidence.listed)}")
    if evidence.status == "Completed" and len(names) != NUM_TRIALS:
        broken(Harm.LOST if len(names) < NUM_TRIALS else Harm.DOUBLED, f"{len(names)} of {NUM_TRIALS} trials")
    points = [tuple(sorted(trial["TunedHyperParameters"].items())) for trial in evidence.trials]
    if len(set(points)) != len(points):
        broken(Harm.DOUBLED, f"points are proposed twice: {sorted(points)}")
    for trial in evidence.trials:
        point = trial["TunedHyperParameters"]
        told = (trial.get("FinalHyperParameterTuningJobObjectiveMetric") or {}).get("Value")
        expected = 3 * int(point["row"]) + int(point["column"])
        if told != expected and not (disks and told is None):
            status = trial["TrainingJobStatus"]
            broken(Harm.LOST, f"{trial['TrainingJobName']} is {status} with {told}, and its program said {expected}")
    return found


class TuningDriver:
    """Runs tuning jobs one after the other until `finish` is called.

    Args:
        world: the service.
        prefix: prefix of the jobs' names, which no other job's name contains.
        struck_since: returns the kinds of faults that were active since a monotonic time.
        tell: receives each broken promise.
    """

    def __init__(
        self,
        world: FaultWorld,
        prefix: str,
        *,
        struck_since: Callable[[float], Collection[FaultKind]],
        tell: Callable[[Violation], None],
    ) -> None:
        self._world = world
        self._prefix = prefix
        self._struck_since = struck_since
        self._tell = tell
        self._finishing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tuning")
        self.num_ended = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def finish(self) -> None:
        """Start no more tuning jobs, and wait for the end of the tuning job in flight."""
        self._finishing.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._finishing.is_set():
            number += 1
            name = f"{self._prefix}{number}"
            began_s = time.monotonic()
            try:
                self._create(name)
                facts = self._wait(name)
                if facts is None:
                    self._break(name, Harm.HUNG, f"still in progress {DEADLINE_S:g} s after its request")
                    continue
                evidence = self._evidence(name, facts)
            except NoAnswer as error:
                self._break(name, Harm.HUNG, str(error))
            except ClientError as error:
                self._break(name, Harm.LOST, f"the service answered {error}")
            except Exception as error:  # noqa: BLE001 - boundary: a thread of the driver; the run must not pass
                self._break(name, Harm.HUNG, f"the audit itself failed: {type(error).__name__}: {error}")
            else:
                for violation in judge_tuning(evidence, self._struck_since(began_s)):
                    self._tell(violation)
                self.num_ended += 1

    def _create(self, name: str) -> None:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz") as tar:
            member = tarfile.TarInfo("trial.py")
            member.size = len(SOURCE)
            tar.addfile(member, io.BytesIO(SOURCE))
        body = archive.getvalue()
        self._world.ask(lambda: self._world.client("s3").put_object(Bucket=BUCKET, Key=SOURCE_KEY, Body=body))

        def create() -> None:
            try:
                self._world.client("sagemaker").create_hyper_parameter_tuning_job(**request_of(name))
            except ClientError as error:
                # The tuning job exists: the answer to an earlier request was lost.
                if error.response["Error"]["Code"] != "ResourceInUse":
                    raise

        self._world.ask(create)

    def _wait(self, name: str) -> Mapping[str, Any] | None:
        deadline = time.monotonic() + DEADLINE_S

        def describe() -> Mapping[str, Any]:
            found: Mapping[str, Any] = self._world.client("sagemaker").describe_hyper_parameter_tuning_job(
                HyperParameterTuningJobName=name
            )
            return found

        while time.monotonic() < deadline:
            facts = self._world.ask(describe)
            if facts["HyperParameterTuningJobStatus"] in OVER:
                return facts
            time.sleep(POLL_S)
        return None

    def _evidence(self, name: str, facts: Mapping[str, Any]) -> TuningEvidence:
        def trials() -> list[Mapping[str, Any]]:
            pages = self._world.client("sagemaker").get_paginator("list_training_jobs_for_hyper_parameter_tuning_job")
            return [
                one for page in pages.paginate(HyperParameterTuningJobName=name) for one in page["TrainingJobSummaries"]
            ]

        def listed() -> set[str]:
            pages = self._world.client("sagemaker").get_paginator("list_training_jobs")
            rows = (row for page in pages.paginate(NameContains=f"{name}-") for row in page["TrainingJobSummaries"])
            return {row["TrainingJobName"] for row in rows}

        return TuningEvidence(
            name=name,
            status=facts["HyperParameterTuningJobStatus"],
            reason=facts.get("FailureReason", ""),
            trials=self._world.ask(trials),
            listed=self._world.ask(listed),
        )

    def _break(self, name: str, harm: Harm, what: str) -> None:
        self._tell(Violation(harm=harm, job=name, what=what))


def request_of(name: str) -> dict[str, Any]:
    """Return the CreateHyperParameterTuningJob request of a tuning job with one trial per point.

    Args:
        name: name of the tuning job.
    """
    axes = {"row": NUM_ROWS, "column": NUM_COLUMNS}
    return {
        "HyperParameterTuningJobName": name,
        "HyperParameterTuningJobConfig": {
            "Strategy": "Random",
            "RandomSeed": 1,
            "ResourceLimits": {"MaxNumberOfTrainingJobs": NUM_TRIALS, "MaxParallelTrainingJobs": 2},
            "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "loss"},
            "ParameterRanges": {
                "CategoricalParameterRanges": [
                    {"Name": axis, "Values": [str(number) for number in range(count)]} for axis, count in axes.items()
                ]
            },
        },
        "TrainingJobDefinition": {
            "RoleArn": "arn:aws:iam::000000000000:role/ClaryExecutionRole",
            "AlgorithmSpecification": {
                "TrainingImage": "registry.example/team/bring-your-own:1",
                "TrainingInputMode": "File",
                "MetricDefinitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
            },
            "StaticHyperParameters": {
                "sagemaker_program": "trial.py",
                "sagemaker_submit_directory": f"s3://{BUCKET}/{SOURCE_KEY}",
            },
            "OutputDataConfig": {"S3OutputPath": f"s3://{BUCKET}/fault-tuned"},
            "ResourceConfig": {"InstanceCount": 1, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 1},
            "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
        },
    }
