"""A service killed at any point of a launch: it requests hosts from Slurm once and releases them all. Needs root."""

import os
import signal
import threading
import time

import pytest
from boto3_clients import job_request, log_of, refusal, unique, wait
from kill_points import (
    ASKED_POINTS,
    GRANTED_POINTS,
    NUM_LINES,
    PROGRAM,
    is_there,
    kill_point_of,
    service_pid,
    service_variables,
    set_kill_point,
    soon,
)

pytest_plugins = ["slurm_service"]
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="machines of a cluster are namespaces: needs root"),
    pytest.mark.needs("slurm"),
    pytest.mark.xdist_group("slurm-orphans"),
    pytest.mark.timeout(150),
]

HOSTS = {"InstanceCount": 2, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 10}
SERVICE_VARIABLES = service_variables
POINTS = {
    **ASKED_POINTS,
    "before-sbatch": ("sbatch", "before", 1),
    "after-sbatch": ("sbatch", "after", 1),
    **GRANTED_POINTS,
}


class Queue:
    """Samples Slurm's list of jobs in a separate thread."""

    def __init__(self, bed):
        self._bed = bed
        self.before = frozenset()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.known = set()  # jobs that were ever in the list
        self.most = 0  # highest number of new jobs at the same time

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


def require_clean(cluster):
    """Wait until no trace of any job is left in Slurm, on its nodes and in the service's records."""
    soon(lambda: not cluster.queue(), what="an empty queue", within_s=60)
    soon(lambda: not cluster.processes(), what="nodes without processes")
    cluster.bed.wait_for_states(dict.fromkeys(cluster.bed.nodes, "idle"))
    allocations = cluster.service.home / "allocations"
    soon(lambda: not allocations.exists() or not list(allocations.iterdir()), what="no record of an allocation")


def hold_all(bed):
    """Occupy every node with one Slurm job; return its number."""
    options = (f"--nodes={len(bed.nodes)}", "--exclusive", "--output=/dev/null", "--wrap=sleep 300")
    number = bed.run("sbatch", "--parsable", *options)
    bed.wait_for_states(dict.fromkeys(bed.nodes, "allocated"))
    return number


def lines_of(aws, name, host):
    return [line for line in log_of(aws, name) if line.startswith("line ") and line.endswith(f"of {host}")]


@pytest.fixture
def aws(cluster):
    """Clients of the service; the service is started again after each test."""
    kill_point_of(cluster.service.home).unlink(missing_ok=True)
    yield cluster.aws
    kill_point_of(cluster.service.home).unlink(missing_ok=True)
    cluster.service.clary("up")
    require_clean(cluster)


@pytest.mark.long(10)
@pytest.mark.sweep("point")
@pytest.mark.parametrize("point", POINTS)
def test_a_service_killed_at_any_point_of_a_launch_gets_its_hosts_once(cluster, aws, point):
    name, pid = unique("killed"), service_pid(cluster.service.home)
    set_kill_point(cluster.service.home, POINTS[point], name)
    holder = hold_all(cluster.bed) if point == "while-it-is-pending" else ""
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
def test_hosts_of_a_job_missing_from_the_database_are_released(cluster, aws):
    service, name = cluster.service, unique("forgotten")
    service.clary("down")
    backup = {path: path.read_bytes() for path in service.home.glob("clary.db*")}
    service.clary("up")
    aws.sagemaker.create_training_job(**job_request(name, "sleep 300", ResourceConfig=HOSTS))
    wait(aws, name, until=("Training",))
    pid = service_pid(service.home)
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
def test_a_late_allocation_that_no_job_claims_is_ended(cluster, aws):
    name = unique("claims")
    aws.sagemaker.create_training_job(**job_request(name, "sleep 300", ResourceConfig=HOSTS))
    wait(aws, name, until=("Training",))
    (mine,) = cluster.bed.run("squeue", "--noheader", "--format=%k").splitlines()
    own, mark, _, _, grace = mine.split(":")
    # Submitted as by a call of sbatch that a killed service has left running.
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
