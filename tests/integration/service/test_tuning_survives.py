"""A tuning job whose service is killed again and again: no trial is lost, doubled or proposed twice."""

import json
import os
import random
import signal
import time

import pytest
from boto3_clients import Clients, job_request, log_of
from program_jobs import archive_of, put
from running_service import start_service

pytestmark = [pytest.mark.timeout(280), pytest.mark.xdist_group("tuning-survives")]

NUM_TRIALS, NUM_KILLS = 16, 5
PROGRAM = """
import argparse, time
parser = argparse.ArgumentParser()
parser.add_argument("--row")
parser.add_argument("--column")
options, _ = parser.parse_known_args()
print(f"ran {options.row} {options.column}", flush=True)
time.sleep(0.3)
print(f"loss={int(options.row) * 4 + int(options.column)}", flush=True)
"""


@pytest.fixture
def service(tmp_path):
    made = start_service(tmp_path / "home")
    yield made
    made.clary("down")


def request(aws):
    job = job_request("x", "")
    specification = {key: value for key, value in job["AlgorithmSpecification"].items() if "Container" not in key}
    axis = [str(number) for number in range(4)]
    return {
        "HyperParameterTuningJobName": "survives",
        "HyperParameterTuningJobConfig": {
            "Strategy": "Random",  # of a space of 16 points: each comes once
            "RandomSeed": 5,
            "ResourceLimits": {"MaxNumberOfTrainingJobs": NUM_TRIALS, "MaxParallelTrainingJobs": 2},
            "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "loss"},
            "ParameterRanges": {
                "CategoricalParameterRanges": [{"Name": "row", "Values": axis}, {"Name": "column", "Values": axis}]
            },
        },
        "TrainingJobDefinition": {
            **{member: job[member] for member in ("RoleArn", "OutputDataConfig", "StoppingCondition")},
            "AlgorithmSpecification": specification,
            "HyperParameterTuningResourceConfig": job["ResourceConfig"],
            "StaticHyperParameters": {
                "sagemaker_program": "train.py",
                "sagemaker_submit_directory": put(aws, "code/survives.tar.gz", archive_of({"train.py": PROGRAM})),
            },
        },
    }


@pytest.mark.long
def test_a_service_that_is_killed_loses_and_doubles_no_trial(service):
    aws = Clients(service)
    aws.sagemaker.create_hyper_parameter_tuning_job(**request(aws))
    chance = random.Random(7)
    for _ in range(NUM_KILLS):
        time.sleep(chance.uniform(0.3, 2.5))
        record = json.loads((service.home / "run" / "service.json").read_text())
        os.kill(record["pid"], signal.SIGKILL)
        service.clary("up")
        aws = Clients(service, endpoint_url=json.loads((service.home / "run" / "service.json").read_text())["url"])
    deadline_s = time.monotonic() + 120
    while True:
        facts = aws.sagemaker.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName="survives")
        if facts["HyperParameterTuningJobStatus"] != "InProgress":
            break
        assert time.monotonic() < deadline_s, facts
        time.sleep(0.3)
    assert facts["HyperParameterTuningJobStatus"] == "Completed", facts.get("FailureReason")
    assert facts["TrainingJobStatusCounters"]["Completed"] == NUM_TRIALS
    pages = aws.sagemaker.get_paginator("list_training_jobs_for_hyper_parameter_tuning_job").paginate(
        HyperParameterTuningJobName="survives", PaginationConfig={"PageSize": 5}
    )
    rows = [row for page in pages for row in page["TrainingJobSummaries"]]
    assert sorted(int(row["TrainingJobName"].split("-")[1]) for row in rows) == list(range(1, NUM_TRIALS + 1))
    points = [tuple(sorted(row["TunedHyperParameters"].items())) for row in rows]
    assert len(set(points)) == NUM_TRIALS
    jobs = aws.sagemaker.list_training_jobs(NameContains="survives", MaxResults=100)["TrainingJobSummaries"]
    assert {job["TrainingJobName"] for job in jobs} == {row["TrainingJobName"] for row in rows}
    for row in rows:
        told = row["TunedHyperParameters"]
        assert row["FinalHyperParameterTuningJobObjectiveMetric"]["Value"] == int(told["row"]) * 4 + int(told["column"])
        ran = [line for line in log_of(aws, row["TrainingJobName"]) if line.startswith("ran ")]
        assert ran == [f"ran {told['row']} {told['column']}"]
