"""Programs that connect late to the master port: the ledger counts the wait as rendezvous, not as training."""

import json
import os
import signal
import time
from datetime import datetime

import pytest
from attempts_of_jobs import agent_of
from boto3_clients import Clients, job_request, log_of, unique, wait
from program_jobs import script_request, start

from clary.testing.gangs import has_namespaces

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600), pytest.mark.xdist_group("rendezvous")]

LATE_S = 4.0
TRAINS_S = 3.0
SLACK_S = 2.0  # tolerance for the service to learn, on a busy machine, that programs run and that they have connected
LIMIT_S = 240
TWO_HOSTS = {"InstanceCount": 2, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 10}
# algo-1 listens and starts no connection itself; both hosts keep their connection during training.
SOCKETS = f"""
import os, socket, time

place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["SM_CURRENT_HOST"] == "algo-1":
    with socket.create_server(("", place[1])) as server:
        held, _ = server.accept()
else:
    time.sleep({LATE_S})
    held = None
    while held is None:
        try:
            held = socket.create_connection(place, timeout=60)
        except ConnectionRefusedError:  # algo-1's program starts later
            time.sleep(0.2)
print("met", flush=True)
time.sleep(float(os.environ.get("TRAINS_S", {TRAINS_S})))
"""
# Ranks of torch; the second rank of algo-2 connects late.
TORCH = f"""
import os, time

import torch.distributed as dist

if os.environ["RANK"] == os.environ["LATE_RANK"]:
    time.sleep({LATE_S})
    print("late", time.time(), flush=True)
dist.init_process_group("gloo")
dist.barrier()
print("met", flush=True)
time.sleep({TRAINS_S})
dist.destroy_process_group()
"""
# Processes that users start themselves count as one process per host.
TORCHRUN = f"""
import os, subprocess, sys, time

index = int(os.environ["SM_CURRENT_HOST"].removeprefix("algo-")) - 1
if index == 1:
    time.sleep({LATE_S})
    print("late", time.time(), flush=True)
place = ["--master-addr", os.environ["MASTER_ADDR"], "--master-port", os.environ["MASTER_PORT"]]
torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(index), *place]
subprocess.run([*torchrun, "--no-python", "sleep", "{TRAINS_S}"], check=True)
"""


@pytest.fixture(scope="module")
def aws(service):
    if not has_namespaces(service.home):
        pytest.skip("hosts share the machine's network here: nobody tells their connections apart")
    return Clients(service)


def page_of(service, aws, name, *, status="Completed"):
    facts = wait(aws, name, timeout_s=LIMIT_S)
    assert facts["TrainingJobStatus"] == status, (facts.get("FailureReason"), log_of(aws, name))
    page = json.loads(service.clary("describe", name, "--json").stdout)
    for host in page["ledger"]["hosts"]:
        assert sum(host["seconds"].values()) == pytest.approx(page["ledger"]["wall_s"], abs=1e-3)
    return page


def meetings_of(service, page):
    """Return the time at which all processes of each host had connected, or fail with the agents' log lines."""
    words = [
        line for path in service.home.rglob("agent.log") for line in path.read_text().splitlines() if "port" in line
    ]
    assert all(host["rendezvous_at"] for host in page["hosts"]), (page["hosts"], words)
    return {host["name"]: datetime.fromisoformat(host["rendezvous_at"]).timestamp() for host in page["hosts"]}


def parts_of(page):
    return {host["name"]: host["seconds"] for host in page["ledger"]["hosts"]}


@pytest.mark.long
def test_hosts_wait_in_rendezvous_for_the_host_that_connects_late(service, aws):
    name = unique("late")
    start(aws, script_request(aws, name, {"train.py": SOCKETS}, instance_count=2))
    page = page_of(service, aws, name)
    parts = parts_of(page)
    for host in ("algo-1", "algo-2"):
        assert parts[host]["rendezvous"] >= LATE_S - SLACK_S
        assert parts[host]["productive"] >= TRAINS_S - SLACK_S
    assert all(host["rendezvous_at"] is not None for host in page["hosts"])
    book = page["ledger"]
    assert book["goodput"] == pytest.approx(book["seconds"]["productive"] / (2 * book["wall_s"]))
    table = service.clary("describe", name).stdout.split("time and money\n")[1]
    assert "  rendezvous " in table


@pytest.mark.long
def test_the_slowest_rank_of_torch_ends_the_rendezvous_of_every_host(service, aws):
    name = unique("ranks")
    request = script_request(
        aws,
        name,
        {"train.py": TORCH},
        instance_count=2,
        hyperparameters={"sagemaker_torch_distributed_enabled": "true"},
        ResourceConfig={**TWO_HOSTS, "InstanceType": "ml.g5.12xlarge"},
        Environment={"LATE_RANK": "3"},
    )
    start(aws, request)
    page = page_of(service, aws, name)
    log = log_of(aws, name)
    assert log.count("met") == 4
    (late_at,) = (float(line.split()[1]) for line in log if line.startswith("late "))
    met_at = meetings_of(service, page)
    assert met_at["algo-2"] >= late_at, "its first rank is not enough"
    for host, seconds in parts_of(page).items():
        assert seconds["rendezvous"] >= LATE_S - SLACK_S, host
        assert seconds["productive"] >= TRAINS_S - SLACK_S, host


@pytest.mark.long
def test_a_host_waits_in_rendezvous_for_torchrun_started_late_on_the_other(service, aws):
    name = unique("torchrun")
    start(aws, script_request(aws, name, {"train.py": TORCHRUN}, instance_count=2))
    page = page_of(service, aws, name)
    (late_at,) = (float(line.split()[1]) for line in log_of(aws, name) if line.startswith("late "))
    met_at = meetings_of(service, page)
    assert met_at["algo-2"] >= late_at
    for host, seconds in parts_of(page).items():
        assert seconds["rendezvous"] >= LATE_S - SLACK_S, host
        assert seconds["productive"] >= TRAINS_S - SLACK_S, host


@pytest.mark.long
def test_an_attempt_after_a_lost_host_has_a_new_rendezvous(service, aws):
    name = unique("again")
    request = script_request(
        aws,
        name,
        {"train.py": SOCKETS},
        instance_count=2,
        RetryStrategy={"MaximumRetryAttempts": 1},
        Environment={"TRAINS_S": "60"},
    )
    start(aws, request)
    first = parts_of(wait_until_met(service, name, attempt=1))
    os.kill(agent_of(service, name, "algo-2"), signal.SIGKILL)
    wait_until_met(service, name, attempt=2)
    aws.sagemaker.stop_training_job(TrainingJobName=name)
    for host, seconds in parts_of(page_of(service, aws, name, status="Stopped")).items():
        assert seconds["rendezvous"] >= first[host]["rendezvous"] + LATE_S - SLACK_S, host


def wait_until_met(service, name, *, attempt):
    """Wait until the service reports that all hosts of an attempt have connected; return its page."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        page = json.loads(service.clary("describe", name, "--json").stdout)
        if page["attempt"] == attempt and page["hosts"] and all(host["rendezvous_at"] for host in page["hosts"]):
            return page
        time.sleep(0.3)
    raise AssertionError(f"attempt {attempt} has not met within {LIMIT_S} s: {page['hosts']}")


def test_hosts_that_never_connect_count_as_productive_from_the_start(service, aws):
    name = unique("strangers")
    aws.sagemaker.create_training_job(**job_request(name, f"sleep {TRAINS_S}", ResourceConfig=TWO_HOSTS))
    page = page_of(service, aws, name)
    assert "rendezvous" not in page["ledger"]["seconds"]
    for seconds in parts_of(page).values():
        assert seconds["productive"] >= TRAINS_S - SLACK_S
