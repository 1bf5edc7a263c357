"""A rank that catches its peer's loss and calls `sys.exit(1)` hides neither a dead host nor a cut link."""

import asyncio
import json
import os
import signal

import pytest
from attempts_of_jobs import LIMIT_S, agent_of, statuses_of, wait_for_line
from boto3_clients import Clients, unique, wait
from program_jobs import script_request, start

from clary.control.engines.local.attempt_record import pool_folder
from clary.control.engines.local.network_faults import partition
from clary.testing.gangs import has_namespaces

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("survivors")]

# The second attempt finds the file of the first, and exits with 0.
PAIR = """
import os, pathlib, signal, socket, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a service that notices sooner stops who is left
marker = pathlib.Path("/opt/ml/checkpoints/began")
if marker.exists():
    print("the second attempt", flush=True)
    sys.exit(0)
if os.environ["SM_CURRENT_HOST"] == "algo-1":
    marker.touch()
    with socket.create_server(("0.0.0.0", 7777)) as listener:
        listener.settimeout(60)
        peer, _ = listener.accept()
else:
    while True:
        try:
            peer = socket.create_connection(("algo-1", 7777), timeout=1)
            break
        except OSError:
            time.sleep(0.1)
peer.settimeout(0.7)  # a cut link is noticed after two seconds
print("connected", flush=True)
try:
    while True:
        peer.sendall(b"x")
        if not peer.recv(1024):
            raise ConnectionError("the peer is gone")
        time.sleep(0.05)
except OSError as error:
    print("caught:", error, flush=True)
    sys.exit(1)
"""


LEAVES = """
import os, sys, time
if os.environ["SM_CURRENT_HOST"] == "algo-2":
    time.sleep(1)
    sys.exit(3)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def aws(service):
    if not has_namespaces(service.home):
        pytest.skip("hosts are plain processes here: they share the machine's network, which nobody cuts")
    return Clients(service)


@pytest.fixture
def pair(service, aws):
    """Return the name of a job with retries, whose two hosts hold a connection."""
    name = unique("survivors")
    config = {"S3Uri": f"s3://clary/checkpoints/{name}"}
    start(aws, script_request(aws, name, {"train.py": PAIR}, instance_count=2, CheckpointConfig=config))
    wait_for_line(service, name, "connected")
    return name


def is_restarted_for(service, aws, name, reason):
    facts = wait(aws, name, timeout_s=LIMIT_S)
    said = service.clary("logs", name, check=False).stdout
    assert facts["TrainingJobStatus"] == "Completed", f"{facts.get('FailureReason')}\n{said}"
    assert statuses_of(aws, name).count("Restarting") == 1
    assert "caught:" in said, "a survivor left by itself"
    past = json.loads(service.clary("describe", name, "--json").stdout)["past_attempts"]
    assert reason in past[0]["reason"]


@pytest.mark.long
def test_a_job_whose_host_dies_is_restarted_though_its_peer_exits_with_1(service, aws, pair):
    os.kill(agent_of(service, pair, "algo-2"), signal.SIGKILL)
    is_restarted_for(service, aws, pair, "algo-2 was lost: its agent ended")


@pytest.mark.long
def test_a_job_whose_link_is_cut_is_restarted_though_both_ranks_exit_with_1(service, aws, pair):
    folder = pool_folder(service.home / "jobs" / pair / "1")
    asyncio.run(partition(str(folder), "algo-2", up=False))
    is_restarted_for(service, aws, pair, "algo-2 was lost: its link has carried nothing")


def test_a_job_whose_rank_exits_by_itself_is_not_restarted_and_fails_soon(service, aws):
    name = unique("leaves")
    config = {"S3Uri": f"s3://clary/checkpoints/{name}"}
    start(aws, script_request(aws, name, {"train.py": LEAVES}, instance_count=2, CheckpointConfig=config))
    facts = wait(aws, name, timeout_s=LIMIT_S)
    assert facts["FailureReason"].startswith("AlgorithmError: algo-2: the program ended with exit code 3")
    assert statuses_of(aws, name).count("Restarting") == 0
