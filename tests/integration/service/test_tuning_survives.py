"""A tuning job whose service is killed again and again: no trial is lost, doubled or proposed twice."""

import json
import os
import random
import signal
import time

import pytest
from boto3_clients import Clients, log_of
from running_service import start_service
from tuning_jobs import categories, completed, tuning_request

pytestmark = [pytest.mark.timeout(280), pytest.mark.xdist_group("tuning-survives")]

NUM_TRIALS, NUM_KILLS = 16, 5
PROGRAM = """
import argparse, time
parser = argparse.ArgumentParser()
parser.add_argument("--row")
parser.add_argument("--column")
options, _ = parser.parse_known_args()
time.sleep(0.3)
print(f"ran {options.row} {options.column}", flush=True)
print(f"loss={int(options.row) * 4 + int(options.column)}", flush=True)
"""


@pytest.fixture
def service(tmp_path):
    made = start_service(tmp_path / "home")
    yield made
    made.clary("down")


@pytest.mark.long
def test_a_service_that_is_killed_loses_and_doubles_no_trial(service):
    aws = Clients(service)
    request = tuning_request(
        *(aws, "survives", PROGRAM),
        strategy="Random",  # a space of 16 points: each is proposed once
        config={"RandomSeed": 5},
        ranges=categories(row=4, column=4),
        most=NUM_TRIALS,
        parallel=2,
    )
    aws.sagemaker.create_hyper_parameter_tuning_job(**request)
    chance = random.Random(7)
    for _ in range(NUM_KILLS):
        time.sleep(chance.uniform(0.3, 2.5))
        record = json.loads((service.home / "run" / "service.json").read_text())
        os.kill(record["pid"], signal.SIGKILL)
        service.clary("up")
        aws = Clients(service, endpoint_url=json.loads((service.home / "run" / "service.json").read_text())["url"])
    facts, rows = completed(aws, "survives", timeout_s=120)
    assert facts["TrainingJobStatusCounters"]["Completed"] == NUM_TRIALS
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
