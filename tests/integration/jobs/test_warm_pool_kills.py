"""SIGKILL of service, agents and networks at any moment of jobs that share a warm pool: every job completes.

CLARY_POOL_KILLS sets the number of kills; each prints its seed and the killed process.
"""

import json
import os
import random
import signal
import time

import pytest
from boto3_clients import Clients, job_request, unique, wait
from running_service import SETTINGS, start_service

from clary.base.processes import ProcessId

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900), pytest.mark.xdist_group("warm-pool-kills")]

NUM_KILLS = int(os.environ.get("CLARY_POOL_KILLS", "9"))
COMMAND = "echo token > /opt/ml/model/$TRAINING_JOB_NAME; echo works; sleep 0.4"
KINDS = ("service", "agent", "network")
LONGEST_S = 1.6  # latest kill after the request; jobs on warm hosts end earlier, so some kills hit idle hosts


def hosts_file(home, name):
    """Return the document `name` of the pool's folder, the newest if there are several; None if it is missing."""
    folders = sorted((home / "jobs").glob(f"pool_*/1/{name}"), key=lambda path: path.stat().st_mtime)
    try:
        return json.loads(folders[-1].read_text()) if folders else None
    except (OSError, ValueError):
        return None


def victim(kind, home, generator):
    """Return the process to kill, or None if it does not exist at present."""
    if kind == "service":
        record = json.loads((home / "run/service.json").read_text())
        return ProcessId(record["pid"], record["process_started"])
    if kind == "network":
        ready = hosts_file(home, "network-ready.json")
        return ProcessId(ready["pid"], ready["started"]) if ready else None
    agents = (hosts_file(home, "engine.json") or {}).get("agents") or {}
    if not agents:
        return None
    chosen = agents[generator.choice(sorted(agents))]
    return ProcessId(chosen["pid"], chosen["started"])


@pytest.mark.long
def test_every_job_on_a_pool_completes_despite_kills_and_no_process_is_left(tmp_path):
    home = tmp_path / "home"
    service = start_service(home, SETTINGS)
    num_killed = num_reused = 0
    try:
        aws = Clients(service)
        for seed in range(NUM_KILLS):
            generator = random.Random(seed)
            kind = KINDS[seed % len(KINDS)]
            name = unique("struck")
            request = job_request(name, COMMAND)
            request["ResourceConfig"] |= {"KeepAlivePeriodInSeconds": 600, "InstanceCount": 2}
            request["RetryStrategy"] = {"MaximumRetryAttempts": 5}
            aws.sagemaker.create_training_job(**request)
            time.sleep(generator.uniform(0, LONGEST_S))
            process = victim(kind, home, generator)
            print(f"seed {seed}: {name}: {kind} {process}")
            if process is not None and process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
                num_killed += 1
            if kind == "service":
                service = start_service(home, SETTINGS)
                aws = Clients(service)
            facts = wait(aws, name)
            assert facts["TrainingJobStatus"] == "Completed", (seed, kind, facts.get("FailureReason"))
            assert aws.s3.head_object(Bucket="clary", Key=f"out/{name}/output/model.tar.gz")
            num_reused += "warm pool" in " ".join(row["StatusMessage"] for row in facts["SecondaryStatusTransitions"])
    finally:
        service.clary("down")
    assert num_killed >= NUM_KILLS // 3
    assert num_reused >= NUM_KILLS // 3, "most jobs were to have hosts of the one before"
    assert not list((home / "jobs").glob("pool_*")), "pools end with the service"
    left = [pid for pid in os.listdir("/proc") if pid.isdigit() and is_of(pid, str(home))]
    assert left == []


def is_of(pid, home):
    """Return whether a process has the state folder in its command line or as its working folder."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            text = file.read().decode(errors="replace") + os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return False
    return home in text
