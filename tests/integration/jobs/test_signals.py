"""Stopped jobs under every launcher: each rank gets one SIGTERM, on all hosts at once, with a stop notice."""

import json
import re
import time

import pytest
from boto3_clients import job_request, log_of, unique, wait
from program_jobs import put, script_request, start
from running_service import CLIENTS, SDK3_PYTHON

pytestmark = [pytest.mark.clients, pytest.mark.timeout(180), pytest.mark.xdist_group("signals")]

PROGRAM = (CLIENTS / "source" / "stopped.py").read_text()
TYPE_OF_TWO = {"InstanceCount": 2, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 10}
MAX_SPREAD_S = 1.0
GRACE_S = 10.0  # grace in the service's settings
_LINE = re.compile(r"(READY|SIGNAL|DONE) (\{.*\})")


def said(aws, name):
    """Return the ranks' reports in the log by kind: READY, SIGNAL, DONE."""
    found = {"READY": [], "SIGNAL": [], "DONE": []}
    for line in log_of(aws, name):
        for word, facts in _LINE.findall(line):
            found[word].append(json.loads(facts))
    return found


def wait_until_ready(aws, name, num_ranks, *, timeout_s=90):
    """Wait until every rank has installed its signal handler."""
    deadline = time.monotonic() + timeout_s
    while len(said(aws, name)["READY"]) < num_ranks:
        facts = aws.sagemaker.describe_training_job(TrainingJobName=name)
        assert facts["TrainingJobStatus"] == "InProgress", (facts, log_of(aws, name)[-40:])
        assert time.monotonic() < deadline, log_of(aws, name)[-40:]
        time.sleep(0.1)


def check(aws, name, *, num_ranks, status="Stopped", reason="stop_requested"):
    """Assert that each rank got one signal at about the same time, with the stop notice and time to end by itself."""
    facts = wait(aws, name)
    words = said(aws, name)
    log = "\n".join(log_of(aws, name)[-60:])
    assert facts["TrainingJobStatus"] == status, (facts, log)
    signals = words["SIGNAL"]
    places = sorted((item["host"], item["rank"]) for item in words["READY"])
    assert len(set(places)) == num_ranks
    assert sorted((item["host"], item["rank"]) for item in signals) == places, log
    assert {item["count"] for item in signals} == {1}, log
    assert sorted((item["host"], item["rank"]) for item in words["DONE"]) == places, log
    assert {item["count"] for item in words["DONE"]} == {1}, log
    times = [item["at"] for item in signals]
    spread_s = max(times) - min(times)
    print(f"{name}: {num_ranks} handlers within {spread_s:.4f} s")
    assert spread_s < MAX_SPREAD_S
    for item in signals:
        notice = item["notice"]
        assert isinstance(notice, dict), notice
        assert notice["reason"] == reason
        assert float(item["grace"]) == notice["grace_s"] == GRACE_S
        assert 0 < notice["deadline_s"] - item["at"] <= GRACE_S
    return facts


def stop_and_check(aws, name, *, num_ranks):
    """Stop a job whose ranks are ready; check their reports of the signal."""
    wait_until_ready(aws, name, num_ranks)
    aws.sagemaker.stop_training_job(TrainingJobName=name)
    return check(aws, name, num_ranks=num_ranks)


def two_ranks_a_host(aws, label, distribution):
    """Return a request like SDK v2's, with two ranks per host."""
    name = unique(label)
    hyperparameters = {key: json.dumps(value) for key, value in distribution.items()}
    request = script_request(aws, name, {"stopped.py": PROGRAM}, program="stopped.py", hyperparameters=hyperparameters)
    request["ResourceConfig"] = TYPE_OF_TWO
    return request


def test_ranks_of_torch_distributed_get_one_sigterm(aws):
    request = two_ranks_a_host(aws, "signals-torch", {"sagemaker_torch_distributed_enabled": True})
    request["ResourceConfig"] = {**TYPE_OF_TWO, "InstanceType": "ml.g5.12xlarge"}
    request["AlgorithmSpecification"]["TrainingImage"] = (
        "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.8.0-gpu-py312"
    )
    stop_and_check(aws, start(aws, request), num_ranks=4)


def test_ranks_of_mpirun_get_one_sigterm(aws):
    distribution = {
        "sagemaker_mpi_enabled": True,
        "sagemaker_mpi_num_of_processes_per_host": 2,
        "sagemaker_mpi_custom_mpi_options": "",
    }
    stop_and_check(aws, start(aws, two_ranks_a_host(aws, "signals-mpi", distribution)), num_ranks=4)


def test_a_single_script_on_each_host_gets_one_sigterm(aws):
    stop_and_check(aws, start(aws, two_ranks_a_host(aws, "signals-plain", {})), num_ranks=2)


def test_a_program_in_the_foreground_of_bash_gets_one_sigterm(aws):
    name = unique("signals-bash")
    uri = put(aws, f"code/{name}/stopped.py", PROGRAM)
    request = job_request(name, "python3 /opt/ml/input/data/program/stopped.py; echo after", ResourceConfig=TYPE_OF_TWO)
    source = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": uri}}
    request["InputDataConfig"] = [{"ChannelName": "program", "DataSource": source}]
    stop_and_check(aws, start(aws, request), num_ranks=2)
    assert "after" not in log_of(aws, name)


@pytest.mark.parametrize(("driver", "num_ranks"), [("none", 2), ("torchrun", 4), ("mpi", 4)])
@pytest.mark.long
def test_ranks_under_the_driver_of_sdk_v3_get_one_sigterm(aws, service, driver, num_ranks):
    _, facts = service.run_client(SDK3_PYTHON, "v3_signals.py", driver)
    stop_and_check(aws, facts["name"], num_ranks=num_ranks)


@pytest.mark.parametrize("distribution", [{}, {"sagemaker_torch_distributed_enabled": True}], ids=["plain", "torchrun"])
@pytest.mark.needs("toolkit")
@pytest.mark.long
def test_ranks_under_the_toolkit_of_aws_get_one_sigterm(aws, distribution):
    request = two_ranks_a_host(aws, "signals-toolkit", distribution)
    request["AlgorithmSpecification"]["TrainingImage"] = "team/toolkit:1"
    request["Environment"] = {
        "CLARY_LAUNCHER": "toolkit",
        "SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main",
    }
    stop_and_check(aws, start(aws, request), num_ranks=2)


def test_a_trainer_with_output_piped_to_tee_gets_one_sigterm(aws):
    name = unique("signals-tee")
    uri = put(aws, f"code/{name}/stopped.py", PROGRAM)
    command = "python3 /opt/ml/input/data/program/stopped.py 2>&1 | tee /tmp/log"
    request = job_request(name, command, ResourceConfig=TYPE_OF_TWO)
    source = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": uri}}
    request["InputDataConfig"] = [{"ChannelName": "program", "DataSource": source}]
    stop_and_check(aws, start(aws, request), num_ranks=2)


@pytest.mark.long(10)
def test_ranks_get_one_sigterm_at_the_max_runtime(aws):
    request = two_ranks_a_host(aws, "signals-runtime", {"sagemaker_torch_distributed_enabled": True})
    request["StoppingCondition"] = {"MaxRuntimeInSeconds": 5}
    facts = check(aws, start(aws, request), num_ranks=2, reason="max_runtime")
    assert facts["SecondaryStatus"] == "MaxRuntimeExceeded"
