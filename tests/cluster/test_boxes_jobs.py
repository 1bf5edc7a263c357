"""Unmodified SageMaker jobs on boxes: from adding a box by ssh to Completed, and through failures. Needs root."""

import json
import os
import signal
import time

import pytest
from boto3_clients import job_request, log_of, unique, wait
from box_head_service import until

pytest_plugins = ["box_jobs"]
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of machines: needs root"),
    pytest.mark.xdist_group("box-jobs"),
    pytest.mark.timeout(240),
]
NOTHING_TO_JOB_LIMIT_S = 120.0


@pytest.fixture
def aws(boxes):
    """Clients of a service with both boxes added; no job runs on the boxes after a test."""
    if len(json.loads(boxes.clary("hosts", "--json").stdout)["boxes"]) < 2:
        boxes.clary("hosts", "add", "ml@box1", "root@box2")
    yield boxes.aws
    for job in boxes.aws.sagemaker.list_training_jobs(StatusEquals="InProgress")["TrainingJobSummaries"]:
        boxes.aws.sagemaker.stop_training_job(TrainingJobName=job["TrainingJobName"])  # jobs left by a failed test
    until(lambda: not running(boxes), "hosts of jobs end", limit_s=60.0)


def running(boxes):
    """Return the processes on boxes that do not belong to the daemon."""
    found = [args for box in boxes.bed.boxes for args in boxes.bed.processes(box).values()]
    return [args for args in found if ".pyz run " not in args]


def hosts(number):
    return {"InstanceCount": number, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 10}


def messages(facts):
    return " ".join(row["StatusMessage"] for row in facts["SecondaryStatusTransitions"])


def statuses(aws, name):
    """Return all statuses that a job has had; some last only a tenth of a second."""
    facts = aws.sagemaker.describe_training_job(TrainingJobName=name)
    return [row["Status"] for row in facts["SecondaryStatusTransitions"]]


def lines_of(aws, name, word):
    return [line for line in log_of(aws, name) if word in line and not line.startswith("clary:")]


def test_two_boxes_are_added_and_run_a_job(boxes):
    began = time.monotonic()
    boxes.clary("hosts", "add", "ml@box1", "root@box2")
    name = unique("first")
    command = "echo hello from $(hostname); getent hosts algo-1 algo-2 >/dev/null || exit 1; echo m > $SM_MODEL_DIR/m"
    boxes.aws.sagemaker.create_training_job(**job_request(name, command, ResourceConfig=hosts(2)))
    facts = wait(boxes.aws, name)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    assert time.monotonic() - began < NOTHING_TO_JOB_LIMIT_S
    assert "2 hosts were granted: box1 box2" in messages(facts)
    said = lines_of(boxes.aws, name, "hello from")
    assert sorted(line.rpartition(" ")[2] for line in said) == ["algo-1", "algo-2"]
    until(lambda: not running(boxes), "hosts end with their job", limit_s=60.0)


@pytest.mark.long
def test_a_pending_job_names_the_boxes_that_it_waits_for(boxes, aws):
    first, second = unique("holder"), unique("waits")
    aws.sagemaker.create_training_job(**job_request(first, "sleep 300", ResourceConfig=hosts(2)))
    wait(aws, first, until=("Training",))
    aws.sagemaker.create_training_job(**job_request(second, "true", ResourceConfig=hosts(1)))
    wait(aws, second, until=("Pending",))
    words = f"waits for 1 box: box1 runs {first}, box2 runs {first}"
    said = []
    until(
        lambda: said.append(messages(aws.sagemaker.describe_training_job(TrainingJobName=second))) or words in said[-1],
        lambda: f"{words}, in place of {said[-1]}",
    )
    runs = {name: [run["job"] for run in box["runs"]] for name, box in boxes.bed.rows().items()}
    assert runs == {"box1": [first], "box2": [first]}
    aws.sagemaker.stop_training_job(TrainingJobName=first)
    assert wait(aws, first)["TrainingJobStatus"] == "Stopped"
    assert wait(aws, second)["TrainingJobStatus"] == "Completed"


@pytest.mark.long
def test_no_log_line_is_lost_when_the_service_and_a_daemon_are_killed(boxes, aws):
    name = unique("survives")
    command = "for i in $(seq 40); do echo line $i of $(hostname); sleep 0.25; done"
    aws.sagemaker.create_training_job(**job_request(name, command, ResourceConfig=hosts(2)))
    wait(aws, name, until=("Training",))
    [daemon] = [pid for pid, args in boxes.bed.processes("box2").items() if ".pyz run " in args]
    boxes.bed.run("box2", "kill", "-9", str(daemon))
    record = json.loads((boxes.home / "run" / "service.json").read_text())
    boxes.bed.run("head", "kill", f"-{signal.SIGKILL.value}", str(record["pid"]))
    time.sleep(1.0)
    boxes.clary("up")
    boxes.clary("hosts", "add", "root@box2")
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    for host in ("algo-1", "algo-2"):
        said = [line for line in lines_of(aws, name, f"of {host}") if line.startswith("line ")]
        assert said == [f"line {number} of {host}" for number in range(1, 41)]


@pytest.mark.long
def test_a_drained_box_interrupts_its_job_with_one_sigterm(boxes, aws):
    name = unique("drained")
    command = "trap 'echo heard SIGTERM on $(hostname); exit 143' TERM; for i in $(seq 600); do sleep 0.1; done"
    request = job_request(name, command, ResourceConfig=hosts(1), RetryStrategy={"MaximumRetryAttempts": 2})
    aws.sagemaker.create_training_job(**request)
    wait(aws, name, until=("Training",))
    [busy] = [box["name"] for box in boxes.bed.rows().values() if box["state"] == "busy"]
    boxes.clary("hosts", "drain", busy)
    try:
        wait(aws, name, until=("Interrupted", "Restarting"))
        other = {"box1": "box2", "box2": "box1"}[busy]
        until(lambda: boxes.bed.rows()[other]["state"] == "busy", "the job goes on elsewhere")
        assert len(lines_of(aws, name, "heard SIGTERM")) == 1
    finally:
        boxes.clary("hosts", "resume", busy)
        aws.sagemaker.stop_training_job(TrainingJobName=name)
        wait(aws, name)


@pytest.mark.long(35)
def test_a_box_that_loses_power_costs_one_attempt_and_the_job_resumes_on_other_boxes(boxes, aws):
    name = unique("power")
    command = "for i in $(seq 60); do sleep 0.25; done; echo done"
    request = job_request(name, command, ResourceConfig=hosts(1), RetryStrategy={"MaximumRetryAttempts": 2})
    aws.sagemaker.create_training_job(**request)
    wait(aws, name, until=("Training",))
    [busy] = [box["name"] for box in boxes.bed.rows().values() if box["state"] == "busy"]
    boxes.bed.power_off(busy)
    try:
        until(lambda: "Restarting" in statuses(aws, name), "the job is tried again", limit_s=100.0)
    finally:
        boxes.bed.power_on(busy)
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    assert f"{busy} has not been heard of" in json.dumps(facts, default=str)
    boxes.clary("hosts", "add", {"box1": "ml@box1", "box2": "root@box2"}[busy])
    until(lambda: boxes.bed.rows()[busy]["state"] == "ready", "it has ended the lost host", limit_s=60.0)
