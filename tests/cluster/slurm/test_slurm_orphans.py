"""A service that is killed at any point of a launch: it asks Slurm for hosts once, and gives all back. Needs root."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from boto3_clients import job_request, log_of, refusal, unique, wait

pytest_plugins = ["slurm_service"]
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="machines of a cluster are namespaces: needs root"),
    pytest.mark.needs("slurm"),
    pytest.mark.xdist_group("slurm-orphans"),
    pytest.mark.timeout(150),
]

NUM_LINES = 12
PROGRAM = f"for i in $(seq {NUM_LINES}); do echo line $i of $(hostname); sleep 0.2; done"
HOSTS = {"InstanceCount": 2, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 10}
# Where a service is killed, in the order of a launch: what it does, before or after, and which call of it.
POINTS = {
    "before-the-allocation-is-stored": ("AllocationAsked", "before", 1),
    "after-the-allocation-is-stored": ("AllocationAsked", "after", 1),
    "before-sbatch": ("sbatch", "before", 1),
    "after-sbatch": ("sbatch", "after", 1),
    "while-it-is-pending": ("not granted", "after", 1),
    "at-the-grant": ("granted", "after", 1),
    "after-the-attempt-is-stored": ("HostsAsked", "after", 1),
    "before-any-boot-enrols": ("enrol", "before", 1),
    "when-one-has-enrolled": ("enrolled", "after", 1),
    "when-all-have-enrolled": ("enrolled", "after", 2),
    "after-addresses-are-stored": ("NetworkReady", "after", 1),
    "after-boots-are-let-in": ("start_agents", "after", 1),
    "before-the-first-report": ("report", "before", 1),
    "while-one-host-prepares": ("HostReported preparing", "after", 1),
    "while-all-prepare": ("HostReported preparing", "after", 2),
}


def kill_point_of(home):
    return home / "kill-point.json"


def SERVICE_VARIABLES(home):
    return {"PYTHONPATH": str(Path(__file__).parent / "killed_services"), "KILL_POINT_FILE": str(kill_point_of(home))}


class Queue:
    """Samples of Slurm's own list of jobs, from a thread of its own."""

    def __init__(self, bed):
        self._bed = bed
        self.before = frozenset()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.known = set()  # jobs that were ever there
        self.most = 0  # that were there at once

    def __enter__(self):
        self.known = set(self._jobs("--states=all"))
        self.before = frozenset(self.known)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join()

    @property
    def new(self):
        return self.known - self.before

    def _jobs(self, *options):
        return self._bed.run("squeue", "--noheader", "--format=%A", *options, check=False).split()

    def _run(self):
        while not self._is_over.wait(0.2):
            living = set(self._jobs("--states=PENDING,CONFIGURING,RUNNING"))
            self.known |= living | set(self._jobs("--states=all"))
            self.most = max(self.most, len(living - self.before))


def soon(look, *, within_s=30.0, what="it"):
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what} did not come to be"
        time.sleep(0.1)
    return found


def service_pid(service):
    return json.loads((service.home / "run" / "service.json").read_text())["pid"]


def is_there(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def require_clean(cluster):
    """Wait until nothing of any job is left in Slurm, on its nodes and in the service's records."""
    soon(lambda: not cluster.queue(), what="an empty queue", within_s=60)
    soon(lambda: not cluster.processes(), what="nodes without processes")
    cluster.bed.wait_for_states(dict.fromkeys(cluster.bed.nodes, "idle"))
    allocations = cluster.service.home / "allocations"
    soon(lambda: not allocations.exists() or not list(allocations.iterdir()), what="no record of an allocation")


def hold_all(bed):
    """Take every node; return the number of the Slurm job that does."""
    options = (f"--nodes={len(bed.nodes)}", "--exclusive", "--output=/dev/null", "--wrap=sleep 300")
    number = bed.run("sbatch", "--parsable", *options)
    bed.wait_for_states(dict.fromkeys(bed.nodes, "allocated"))
    return number


def lines_of(aws, name, host):
    return [line for line in log_of(aws, name) if line.startswith("line ") and line.endswith(f"of {host}")]


@pytest.fixture
def aws(cluster):
    """Clients of the service, which is up again after each test."""
    kill_point_of(cluster.service.home).unlink(missing_ok=True)
    yield cluster.aws
    kill_point_of(cluster.service.home).unlink(missing_ok=True)
    cluster.service.clary("up")
    require_clean(cluster)


@pytest.mark.long(10)
@pytest.mark.sweep("point")
@pytest.mark.parametrize("point", POINTS)
def test_a_service_killed_at_a_point_of_a_launch_has_its_hosts_once(cluster, aws, point):
    what, when, call = POINTS[point]
    name, pid = unique("killed"), service_pid(cluster.service)
    wanted = {"point": what, "when": when, "call": call, "job": name}
    kill_point_of(cluster.service.home).write_text(json.dumps(wanted))
    holder = hold_all(cluster.bed) if what == "not granted" else ""
    with Queue(cluster.bed) as queue:
        aws.sagemaker.create_training_job(**job_request(name, PROGRAM, ResourceConfig=HOSTS))
        soon(lambda: not is_there(pid), what=f"a service killed at {point}")
        time.sleep(0.5)
        cluster.service.clary("up")
        if holder:
            wait(aws, name, until=("Pending",))
            cluster.bed.run("scancel", holder)
        facts = wait(aws, name, timeout_s=40)
        assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
        require_clean(cluster)
    assert len(queue.new) == 1
    assert queue.most == 1
    for host in ("algo-1", "algo-2"):
        assert lines_of(aws, name, host) == [f"line {number} of {host}" for number in range(1, NUM_LINES + 1)]
    assert "Restarting" not in [row["Status"] for row in facts["SecondaryStatusTransitions"]]


@pytest.mark.long
def test_hosts_of_a_job_that_the_database_does_not_know_are_taken_back(cluster, aws):
    service, name = cluster.service, unique("forgotten")
    service.clary("down")
    backup = {path: path.read_bytes() for path in service.home.glob("clary.db*")}
    service.clary("up")
    aws.sagemaker.create_training_job(**job_request(name, "sleep 300", ResourceConfig=HOSTS))
    wait(aws, name, until=("Training",))
    pid = service_pid(service)
    os.kill(pid, signal.SIGKILL)
    soon(lambda: not is_there(pid), what="a killed service")
    for path in service.home.glob("clary.db*"):
        path.unlink()
    for path, data in backup.items():
        path.write_bytes(data)
    service.clary("up")
    up_at = time.monotonic()
    assert refusal(aws.sagemaker.describe_training_job, TrainingJobName=name)[0] == "ValidationException"
    require_clean(cluster)
    assert time.monotonic() - up_at < 60


@pytest.mark.long
def test_an_allocation_that_comes_late_and_that_no_job_claims_is_ended(cluster, aws):
    name = unique("claims")
    aws.sagemaker.create_training_job(**job_request(name, "sleep 300", ResourceConfig=HOSTS))
    wait(aws, name, until=("Training",))
    (mine,) = cluster.bed.run("squeue", "--noheader", "--format=%k").splitlines()
    own, mark, _, _, grace = mine.split(":")
    # As a call of sbatch does that a killed service had left running.
    options = ("--parsable", "--nodes=1", "--exclusive", "--output=/dev/null", "--wrap=sleep 300")
    others = {
        words: cluster.bed.run("sbatch", f"--comment={comment}", *options)
        for words, comment in {
            "nobody's": f"{own}:{mark}:pool_ffffffffffff:0:{grace}",
            "another service's": f"{own}:{mark[::-1]}ab:pool_ffffffffffff:0:{grace}",
        }.items()
    }

    def numbers():
        return [row.split()[0] for row in cluster.queue()]

    soon(lambda: others["nobody's"] not in numbers(), within_s=75, what="the end of an allocation of nobody")
    assert others["another service's"] in numbers()
    assert aws.sagemaker.describe_training_job(TrainingJobName=name)["SecondaryStatus"] == "Training"
    cluster.bed.run("scancel", others["another service's"])
    aws.sagemaker.stop_training_job(TrainingJobName=name)
    assert wait(aws, name)["TrainingJobStatus"] == "Stopped"
