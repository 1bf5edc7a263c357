"""Trials that share one host, each with the fraction that the user names."""

import time

import pytest
from boto3_clients import Clients, job_request, log_of
from running_service import start_service
from tuning_jobs import categories, completed, tuning_request

pytestmark = [pytest.mark.timeout(200), pytest.mark.xdist_group("tuning-shares")]

PARALLEL = 4
PROGRAM = """
import os, time
open("/opt/ml/model/mine", "w").write(os.environ["SM_HPS"])
print("memory", open("/sys/fs/cgroup/memory/memory.limit_in_bytes").read()
      if os.path.exists("/sys/fs/cgroup/memory") else open("/sys/fs/cgroup/memory.max").read(), flush=True)
time.sleep(12)
print("models", os.listdir("/opt/ml/model"), flush=True)
print("loss=1", flush=True)
"""


@pytest.fixture
def service(tmp_path):
    made = start_service(tmp_path / "home", CLARY_MAX_HOSTS="1")
    yield made
    made.clary("down")


@pytest.mark.long(20)
def test_four_trials_run_at_once_on_one_host_each_with_its_part_of_the_memory(service):
    aws = Clients(service)
    request = tuning_request(
        *(aws, "shares", PROGRAM),
        strategy="Grid",
        ranges=categories(row=PARALLEL),
        most=PARALLEL,
        parallel=PARALLEL,
        static={"sagemaker_clary_host_share": "0.25"},
    )
    aws.sagemaker.create_hyper_parameter_tuning_job(**request)
    _, rows = completed(aws, "shares", timeout_s=120)
    names = [row["TrainingJobName"] for row in rows]
    assert len(names) == PARALLEL
    jobs = [aws.sagemaker.describe_training_job(TrainingJobName=name) for name in names]
    last_start = max(job["TrainingStartTime"] for job in jobs)
    first_end = min(job["TrainingEndTime"] for job in jobs)
    assert last_start < first_end, "all four ran at the same time"
    logs = [log_of(aws, name) for name in names]
    limits = {line.split()[1] for log in logs for line in log if line.startswith("memory ")}
    assert len(limits) == 1
    assert [line for log in logs for line in log if line.startswith("models ")] == ["models ['mine']"] * PARALLEL
    said = [line for line in logs[0] if "sagemaker_clary_host_share: each host has 0.25 of the CPUs" in line]
    assert said, logs[0]


@pytest.mark.long(10)
def test_a_job_without_a_host_share_takes_a_whole_host_and_a_wrong_share_is_refused(service):
    aws = Clients(service)
    with pytest.raises(aws.sagemaker.exceptions.ClientError, match=r"expected a fraction of a host from 0\.01 to 1"):
        aws.sagemaker.create_training_job(
            **{**job_request("wrong", "true"), "HyperParameters": {"sagemaker_clary_host_share": "2"}}
        )
    aws.sagemaker.create_training_job(**job_request("whole", "sleep 30"))
    aws.sagemaker.create_training_job(**job_request("other", "true"))
    deadline_s = time.monotonic() + 60
    while True:
        rows = aws.sagemaker.describe_training_job(TrainingJobName="other")["SecondaryStatusTransitions"]
        if rows[-1]["Status"] == "Pending" and "hold" in rows[-1].get("StatusMessage", ""):
            break
        assert time.monotonic() < deadline_s, rows
        time.sleep(0.3)
    assert "0 of 1 host are free: whole holds 1" in rows[-1]["StatusMessage"]
