"""Unmodified SageMaker jobs on a real Slurm, submitted by boto3, also with failures. Needs root."""

import json
import os
import signal
import time

import pytest
from boto3_clients import job_request, log_of, unique, wait
from program_jobs import script_request
from warm_pools import wait_for_pool

pytest_plugins = ["slurm_service"]
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="machines of a cluster are namespaces: needs root"),
    pytest.mark.needs("slurm"),
    pytest.mark.xdist_group("slurm-jobs"),
    pytest.mark.timeout(240),
]

THEIR_USER = 65534  # user nobody
DDP = """
import os, socket
import torch
import torch.distributed as dist
import smdistributed.dataparallel.torch.torch_smddp

torch.set_num_threads(1)
dist.init_process_group(backend="smddp")
summed = torch.ones(4) * (dist.get_rank() + 1)
dist.all_reduce(summed)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} on {socket.gethostname()}: {summed.tolist()}", flush=True)
open(os.path.join(os.environ["SM_MODEL_DIR"], f"rank-{dist.get_rank()}"), "w").write("trained")
dist.barrier()
os._exit(0)
"""
# Counts steps from the checkpoint that it finds; prints how many SIGTERMs it has received.
COUNTS = """
import os, signal, sys, time
path = "/opt/ml/checkpoints/step"
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(time.time()))
step = int(open(path).read()) if os.path.exists(path) else 0
print(f"{os.environ['SM_CURRENT_HOST']} begins at step {step}", flush=True)
while step < @STEPS@ and not heard:
    time.sleep(0.2)
    step += 1
    open(path + ".new", "w").write(str(step))
    os.replace(path + ".new", path)
if heard:
    time.sleep(@ENDS_IN@)
    print(f"{os.environ['SM_CURRENT_HOST']} heard SIGTERM {len(heard)} times at step {step}", flush=True)
    sys.exit(143)
print(f"{os.environ['SM_CURRENT_HOST']} is done at step {step}", flush=True)
"""


def hosts(number, **members):
    return {"InstanceCount": number, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 10, **members}


def counting(aws, name, number, *, steps=60, ends_in_s=1.0, **members):
    """Return a request for a job that counts with a checkpoint folder.

    Args:
        aws: clients.
        name: name of the job.
        number: number of hosts.
        steps: number of steps to count, at five per second.
        ends_in_s: seconds that programs take to end after SIGTERM.
        members: further members of the request.
    """
    return script_request(
        aws,
        name,
        {"train.py": COUNTS.replace("@STEPS@", str(steps)).replace("@ENDS_IN@", str(ends_in_s))},
        instance_count=number,
        CheckpointConfig={"S3Uri": f"s3://clary/checkpoints/{name}", "LocalPath": "/opt/ml/checkpoints"},
        RetryStrategy={"MaximumRetryAttempts": 2},
        **members,
    )


def messages(facts):
    return [row["StatusMessage"] for row in facts["SecondaryStatusTransitions"]]


def statuses(facts):
    return [row["Status"] for row in facts["SecondaryStatusTransitions"]]


def soon(look, *, within_s=30.0):
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.2)
    return found


@pytest.fixture
def aws(cluster):
    """Clients of the service; after each test the cluster is empty again."""
    yield cluster.aws
    soon(lambda: not cluster.queue() and not cluster.processes(), within_s=60)


def lines_with(lines, word):
    return [line for line in lines if word in line and not line.startswith("clary:")]


@pytest.mark.long(10)
def test_three_nodes_train_with_smddp_and_leave_no_process(cluster, aws):
    name = unique("ddp")
    request = script_request(
        aws,
        name,
        {"train.py": DDP},
        instance_count=3,
        hyperparameters={"sagemaker_distributed_dataparallel_enabled": "true"},
    )
    aws.sagemaker.create_training_job(**request)
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    lines = lines_with(log_of(aws, name), "rank ")
    assert len([line for line in lines if "of 3" in line and "[6.0, 6.0, 6.0, 6.0]" in line]) == 3
    assert any("3 hosts were granted: node-1 node-2 node-3" in message for message in messages(facts))


@pytest.mark.long(12)
def test_a_pending_job_reports_the_reason_and_can_be_stopped(cluster, aws):
    first, second = unique("holder"), unique("waits")
    aws.sagemaker.create_training_job(**job_request(first, "sleep 300", ResourceConfig=hosts(3)))
    wait(aws, first, until=("Training",))
    aws.sagemaker.create_training_job(**job_request(second, "true", ResourceConfig=hosts(2)))
    facts = wait(aws, second, until=("Pending",))
    soon(lambda: "waits: " in messages(aws.sagemaker.describe_training_job(TrainingJobName=second))[-1])
    assert facts["TrainingJobStatus"] == "InProgress"
    assert len(cluster.queue()) == 2
    for name in (second, first):
        aws.sagemaker.stop_training_job(TrainingJobName=name)
        assert wait(aws, name)["TrainingJobStatus"] == "Stopped"


@pytest.mark.long
def test_a_killed_service_finds_its_hosts_again_and_loses_no_log_line(cluster, aws):
    name = unique("survives")
    command = "for i in $(seq 40); do echo line $i of $(hostname); sleep 0.25; done"
    aws.sagemaker.create_training_job(**job_request(name, command, ResourceConfig=hosts(2)))
    wait(aws, name, until=("Training",))
    record = json.loads((cluster.service.home / "run" / "service.json").read_text())
    os.kill(record["pid"], signal.SIGKILL)
    time.sleep(1.0)
    refused = cluster.service.clary("up", "--engine", "local", check=False)  # this engine would lose the hosts
    assert refused.returncode == 1
    assert f"hosts of engine slurm, and this service would have engine local: {name}" in refused.stderr
    cluster.service.clary("up")
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    for host in ("algo-1", "algo-2"):
        said = [line for line in lines_with(log_of(aws, name), f"of {host}") if line.startswith("line ")]
        assert said == [f"line {number} of {host}" for number in range(1, 41)]


@pytest.mark.long(35)
def test_a_preempted_job_gets_one_sigterm_and_resumes_from_its_checkpoint(cluster, aws):
    name = unique("spot")
    limits = {"MaxRuntimeInSeconds": 600, "MaxWaitTimeInSeconds": 900}
    request = counting(aws, name, 2, EnableManagedSpotTraining=True, StoppingCondition=limits)
    aws.sagemaker.create_training_job(**request)
    wait(aws, name, until=("Training",))
    time.sleep(3)
    other = cluster.bed.run(
        "sbatch", "--parsable", "--partition=prod", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 6"
    )
    wait(aws, name, until=("Interrupted",))
    facts = wait(aws, name, timeout_s=150)
    assert facts["TrainingJobStatus"] == "Completed", (facts.get("FailureReason"), other)
    assert "was preempted" in " ".join(messages(facts)) or "taken back" in " ".join(messages(facts))
    lines = log_of(aws, name)
    for host in ("algo-1", "algo-2"):
        (heard,) = lines_with(lines, f"{host} heard SIGTERM")
        assert "heard SIGTERM 1 times" in heard
        step = int(heard.rpartition(" ")[2])
        begun = [int(line.rpartition(" ")[2]) for line in lines_with(lines, f"{host} begins at step")]
        assert begun[0] == 0
        assert begun[1] == step  # the step stored after the signal was the program's last
    assert facts["RetryStrategy"] == {"MaximumRetryAttempts": 2}


@pytest.mark.long
def test_a_node_that_loses_power_is_replaced_and_the_job_completes(cluster, aws):
    name = unique("power")
    aws.sagemaker.create_training_job(**counting(aws, name, 2, steps=80))
    wait(aws, name, until=("Training",))
    time.sleep(3)
    cluster.bed.power_off("node-2")
    try:
        wait(aws, name, until=("Restarting",))
        soon(lambda: len(cluster.queue()) == 2)  # one more Slurm job, of one node; the other host keeps its job
    finally:
        cluster.bed.power_on("node-2", until_idle=False)
    facts = wait(aws, name, timeout_s=150)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    assert "Restarting" in statuses(facts)
    begun = [int(line.rpartition(" ")[2]) for line in lines_with(log_of(aws, name), "begins at step")]
    assert len(begun) == 4
    assert max(begun) > 0


@pytest.mark.long(45)
def test_a_replacement_for_a_lost_node_is_requested_while_the_other_host_still_stops(cluster, aws):
    name = unique("stops")
    aws.sagemaker.create_training_job(**counting(aws, name, 2, steps=80, ends_in_s=6.0))
    wait(aws, name, until=("Training",))
    soon(lambda: len(lines_with(log_of(aws, name), "begins at step")) == 2)
    granted = messages(aws.sagemaker.describe_training_job(TrainingJobName=name))
    node = next(words for words in granted if "2 hosts were granted" in words).split()[-1]
    cluster.bed.power_off(node)
    try:
        soon(lambda: len(cluster.queue()) == 2, within_s=60)
        assert "Restarting" not in statuses(aws.sagemaker.describe_training_job(TrainingJobName=name))
    finally:
        cluster.bed.power_on(node, until_idle=False)
    facts = wait(aws, name, timeout_s=150)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    assert statuses(facts).count("Restarting") == 1  # the replacement did not end with the lost host
    assert len(lines_with(log_of(aws, name), "begins at step")) == 4


@pytest.mark.long(10)
def test_an_administrator_who_cancels_is_named(cluster, aws):
    name = unique("cancelled")
    aws.sagemaker.create_training_job(**job_request(name, "sleep 300", ResourceConfig=hosts(2)))
    wait(aws, name, until=("Training",))
    (row,) = cluster.queue()
    cluster.bed.run("scancel", row.split()[0])
    wait(aws, name, until=("Interrupted",))
    soon(
        lambda: "was cancelled by root" in " ".join(messages(aws.sagemaker.describe_training_job(TrainingJobName=name)))
    )
    aws.sagemaker.stop_training_job(TrainingJobName=name)
    wait(aws, name)


@pytest.mark.long
def test_a_job_survives_an_outage_of_the_slurm_controller(cluster, aws):
    name = unique("controller")
    aws.sagemaker.create_training_job(**job_request(name, "sleep 8; echo done", ResourceConfig=hosts(2)))
    wait(aws, name, until=("Training",))
    cluster.bed.kill_controller()
    time.sleep(3)
    cluster.bed.start_controller()
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")


@pytest.mark.long
def test_a_service_that_starts_without_slurm_keeps_its_job_and_accepts_new_jobs(cluster, aws):
    name, later = unique("away"), unique("later")
    aws.sagemaker.create_training_job(**job_request(name, "sleep 8; echo done", ResourceConfig=hosts(2)))
    wait(aws, name, until=("Training",))
    record = json.loads((cluster.service.home / "run" / "service.json").read_text())
    os.kill(record["pid"], signal.SIGKILL)
    cluster.bed.kill_controller()
    up = cluster.service.clary("up")
    assert "note   Slurm does not answer" in up.stdout
    aws.sagemaker.create_training_job(**job_request(later, "echo ran", ResourceConfig=hosts(1)))
    soon(
        lambda: (
            "Slurm does not answer" in " ".join(messages(aws.sagemaker.describe_training_job(TrainingJobName=later)))
        )
    )
    cluster.bed.start_controller()
    for one in (name, later):
        facts = wait(aws, one)
        assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    assert "Slurm does not answer" not in cluster.service.clary("up").stdout


@pytest.mark.long
def test_warm_nodes_are_released_to_another_users_waiting_job(cluster, aws):
    name = unique("kept")
    kept = hosts(3, KeepAlivePeriodInSeconds=600)
    aws.sagemaker.create_training_job(**job_request(name, "true", ResourceConfig=kept))
    assert wait(aws, name)["TrainingJobStatus"] == "Completed"
    wait_for_pool(aws, name, "Available")
    command = ["sbatch", "--parsable", "--nodes=2", "--exclusive", "--output=/dev/null", "--chdir=/", "--wrap=true"]
    number = cluster.bed.run(*command, user=THEIR_USER)
    wait_for_pool(aws, name, "Terminated")
    soon(lambda: "JobState=COMPLETED" in cluster.bed.run("scontrol", "show", "job", number))
    assert f"Slurm job {number} of " in (cluster.service.home / "service.log").read_text()
