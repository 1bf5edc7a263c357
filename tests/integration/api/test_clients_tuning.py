"""Hyperparameter tuning by both SageMaker SDKs, boto3 and the AWS CLI, unmodified."""

import json
import re
import subprocess
import time

import pytest
from boto3_clients import job_request, refusal, unique
from program_jobs import archive_of, put
from running_service import ROOT, SDK2_PYTHON, SDK3_PYTHON, require_python

from needs import NEEDS, require

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("clients-tuning")]

TUNED = {"lr", "layers", "opt"}


PROGRAM = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--shift", type=float)
shift = parser.parse_known_args()[0].shift
print(f"loss={shift * shift}", flush=True)
"""


def tuning_request(aws, name, **config):
    """Return a request whose trials print a loss that depends on the hyperparameter `shift`."""
    job = job_request("x", "")
    source = put(aws, f"code/{name}/sourcedir.tar.gz", archive_of({"train.py": PROGRAM}))
    definition = {member: job[member] for member in ("RoleArn", "OutputDataConfig", "StoppingCondition")}
    specification = {key: value for key, value in job["AlgorithmSpecification"].items() if "Container" not in key}
    return {
        "HyperParameterTuningJobName": name,
        "HyperParameterTuningJobConfig": {
            "Strategy": "Random",
            "ResourceLimits": {"MaxNumberOfTrainingJobs": 3, "MaxParallelTrainingJobs": 3},
            "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "loss"},
            "ParameterRanges": {"ContinuousParameterRanges": [{"Name": "shift", "MinValue": "-1", "MaxValue": "1"}]},
            **config,
        },
        "TrainingJobDefinition": {
            **definition,
            "AlgorithmSpecification": specification,
            "HyperParameterTuningResourceConfig": job["ResourceConfig"],
            "StaticHyperParameters": {
                "sagemaker_program": "train.py",
                "sagemaker_submit_directory": source,
                "kept": "as it is",
            },
        },
    }


def wait_for(aws, name, *, timeout_s=120):
    deadline_s = time.monotonic() + timeout_s
    while True:
        facts = aws.sagemaker.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName=name)
        if facts["HyperParameterTuningJobStatus"] not in ("InProgress", "Stopping"):
            return facts
        assert time.monotonic() < deadline_s, facts
        time.sleep(0.2)


@pytest.mark.parametrize(
    "form", ["bayesian", "random", "early", "hyperband", "grid", "multiple", "children", "autotune"]
)
@pytest.mark.long
def test_the_tuner_of_sdk_v2_finds_the_best_of_its_trials(service, aws, form):
    _, facts = service.run_client(SDK2_PYTHON, "v2_tuner.py", form)
    assert facts["status"] == "Completed", facts
    ended = [row for row in facts["rows"] if row["TrainingJobStatus"] in ("Completed", "Stopped")]
    assert len(ended) == len(facts["rows"]) == {"grid": 4, "multiple": 4, "children": 2, "hyperband": 8}.get(form, 6)
    values = {row["TrainingJobName"]: row["FinalObjectiveValue"] for row in facts["rows"]}
    assert values[facts["best"]] == min(value for value in values.values() if value is not None)
    assert facts["best"] in facts["model"]
    job = aws.sagemaker.describe_training_job(TrainingJobName=facts["best"])
    assert job["TuningJobArn"].endswith(f"hyper-parameter-tuning-job/{facts['name']}")
    assert job["HyperParameters"]["_tuning_objective_metric"] == "validation:loss"
    if form == "grid":
        points = {(row["opt"], row["layers"]) for row in facts["rows"]}
        assert len(points) == 4
    elif form != "multiple":
        assert set(facts["rows"][0]) >= TUNED


@pytest.mark.long(20)
def test_the_tuner_of_sdk_v2_stops(service, aws):
    _, facts = service.run_client(SDK2_PYTHON, "v2_tuner.py", "stop")
    assert facts["status"] == "Stopped"
    assert 1 <= len(facts["rows"]) < 50
    for row in facts["rows"]:
        job = aws.sagemaker.describe_training_job(TrainingJobName=row["TrainingJobName"])
        assert job["TrainingJobStatus"] == "Stopped"


@pytest.mark.long
def test_the_tuner_of_sdk_v3_finds_the_best_of_its_trials(service):
    _, facts = service.run_client(SDK3_PYTHON, "v3_tuner.py")
    values = {row["TrainingJobName"]: row["FinalObjectiveValue"] for row in facts["rows"]}
    assert len(values) == 4
    assert values[facts["best"]] == min(values.values())


@pytest.mark.parametrize(
    ("python", "program"), [(SDK2_PYTHON, "tune.py"), (SDK3_PYTHON, "tune_v3.py")], ids=["sdk2", "sdk3"]
)
@pytest.mark.long(60)
def test_the_examples_tune_and_name_the_best_of_their_trials(service, aws, python, program):
    require_python(python)
    done = subprocess.run(
        [str(python), str(ROOT / "examples/tuning" / program)],
        env={**service.environment, "NUM_TRIALS": "3"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (name, accuracy) = re.search(r"^best: +(\S+), accuracy ([0-9.]+)$", done.stdout, re.MULTILINE).groups()
    job = aws.sagemaker.describe_training_job(TrainingJobName=name)
    (told,) = [one["Value"] for one in job["FinalMetricDataList"] if one["MetricName"] == "accuracy"]
    assert told == pytest.approx(float(accuracy), abs=1e-4)
    tuning = job["TuningJobArn"].rpartition("/")[2]
    page = service.clary("tuning", tuning).stdout
    assert name in page
    trials = aws.sagemaker.list_training_jobs_for_hyper_parameter_tuning_job(HyperParameterTuningJobName=tuning)
    assert len(trials["TrainingJobSummaries"]) == 3


@pytest.mark.long(10)
def test_describe_and_list_return_all_members_and_trials_are_training_jobs(aws):
    name = unique("tune")
    request = tuning_request(aws, name, TrainingJobEarlyStoppingType="Off")
    request["Tags"] = [{"Key": "by", "Value": "boto3"}]
    arn = aws.sagemaker.create_hyper_parameter_tuning_job(**request)["HyperParameterTuningJobArn"]
    assert refusal(aws.sagemaker.create_hyper_parameter_tuning_job, **request)[0] == "ResourceInUse"
    facts = wait_for(aws, name)
    assert facts["HyperParameterTuningJobArn"] == arn
    assert facts["HyperParameterTuningJobStatus"] == "Completed", facts.get("FailureReason")
    rows = aws.sagemaker.list_training_jobs_for_hyper_parameter_tuning_job(HyperParameterTuningJobName=name)
    assert len(rows["TrainingJobSummaries"]) == 3
    for row in rows["TrainingJobSummaries"]:
        job = aws.sagemaker.describe_training_job(TrainingJobName=row["TrainingJobName"])
        assert job["TuningJobArn"] == arn
        assert job["HyperParameters"]["kept"] == "as it is"
        assert job["TrainingJobStatus"] == "Completed"
        told = row["TunedHyperParameters"]["shift"]
        assert job["HyperParameters"]["shift"] == told
        value = row["FinalHyperParameterTuningJobObjectiveMetric"]["Value"]
        assert value == pytest.approx(float(told) ** 2)
        tags = aws.sagemaker.list_tags(ResourceArn=job["TrainingJobArn"])["Tags"]
        assert tags == [{"Key": "by", "Value": "boto3"}]
    listed = aws.sagemaker.list_hyper_parameter_tuning_jobs(NameContains=name)["HyperParameterTuningJobSummaries"]
    assert [row["HyperParameterTuningJobName"] for row in listed] == [name]
    assert aws.sagemaker.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "by", "Value": "boto3"}]
    aws.sagemaker.delete_hyper_parameter_tuning_job(HyperParameterTuningJobName=name)
    code, words = refusal(aws.sagemaker.describe_hyper_parameter_tuning_job, HyperParameterTuningJobName=name)
    assert (code, words) == (
        "ResourceNotFound",
        f"Amazon SageMaker can't find a tuning job called {name}. Type another name.",
    )


def test_the_aws_command_line_stops_a_tuning_job(service, aws):
    require("awscli1")
    name = unique("cli")
    limits = {"MaxNumberOfTrainingJobs": 500, "MaxParallelTrainingJobs": 1}
    aws.sagemaker.create_hyper_parameter_tuning_job(**tuning_request(aws, name, ResourceLimits=limits))
    environment = {**service.environment, "AWS_PAGER": ""}

    def call(operation):
        command = [NEEDS["awscli1"].path, "sagemaker", operation, "--hyper-parameter-tuning-job-name", name]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    call("stop-hyper-parameter-tuning-job")
    assert wait_for(aws, name)["HyperParameterTuningJobStatus"] == "Stopped"
    facts = json.loads(call("describe-hyper-parameter-tuning-job"))
    assert (facts["HyperParameterTuningJobName"], facts["HyperParameterTuningJobStatus"]) == (name, "Stopped")
    assert sum(facts["TrainingJobStatusCounters"].values()) < 500
