"""A service killed at any point of a launch on boxes starts each host once and leaves no process. Needs root."""

import contextlib
import json
import os
import threading

import pytest
from boto3_clients import job_request, log_of, unique, wait
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

pytest_plugins = ["box_jobs"]
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of machines: needs root"),
    pytest.mark.xdist_group("box-orphans"),
    pytest.mark.timeout(240),
]

HOSTS = {"InstanceCount": 2, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 10}
SERVICE_VARIABLES = service_variables
POINTS = {
    **ASKED_POINTS,
    "before-the-order-is-stored": ("put_allocation", "before", 1),
    "after-the-order-is-stored": ("put_allocation", "after", 1),
    "after-boxes-are-given": ("put_allocation", "after", 2),
    "when-one-box-has-told-its-proof": ("put_allocation", "after", 3),
    **GRANTED_POINTS,
}


class Leases:
    """Samples the leases of all allocations in a separate thread; leases stay on disk while no service runs."""

    def __init__(self, boxes):
        self._folder = boxes.home / "boxes" / "allocations"
        self._nodes = boxes.bed.folder / "homes"
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._before = frozenset()
        self.seen = {}  # tag -> every lease seen of this allocation
        self.words = {}  # log of a box -> last lines of its boot or agent; the log is removed with the lease

    def __enter__(self):
        self._before = frozenset(path.stem for path in self._folder.glob("*.json"))
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join()

    def _run(self):
        while not self._is_over.wait(0.1):
            for path in self._folder.glob("*.json"):
                if path.stem not in self._before:
                    record = json.loads(path.read_text())
                    self.seen.setdefault(path.stem, set()).update(lease["lease"] for lease in record["leases"])
            for path in self._nodes.glob("*/*/.clary-node/*/leases/*/output.log"):
                with contextlib.suppress(FileNotFoundError):
                    self.words[str(path)] = path.read_text()[-3000:]


def running(boxes):
    """Return the processes on boxes that do not belong to the daemon."""
    found = [args for box in boxes.bed.boxes for args in boxes.bed.processes(box).values()]
    return [args for args in found if ".pyz run " not in args]


def require_clean(boxes):
    """Wait until no process of any job is left on boxes, and each box is free for the next host."""
    soon(lambda: not running(boxes), what="boxes without processes", within_s=60)
    states = ("ready", "ready")
    soon(lambda: tuple(row["state"] for row in boxes.bed.rows().values()) == states, what="boxes that are ready")
    allocations = boxes.home / "allocations"
    soon(lambda: not allocations.exists() or not list(allocations.iterdir()), what="no record of an allocation")


@pytest.fixture
def aws(boxes):
    """Clients of a service with two boxes; the service is started again after each test."""
    kill_point_of(boxes.home).unlink(missing_ok=True)
    if not boxes.bed.rows():
        boxes.clary("hosts", "add", "ml@box1", "root@box2")
    require_clean(boxes)
    yield boxes.aws
    kill_point_of(boxes.home).unlink(missing_ok=True)
    boxes.clary("up")
    require_clean(boxes)


@pytest.mark.long(10)
@pytest.mark.sweep("point")
@pytest.mark.parametrize("point", POINTS)
def test_a_service_killed_at_any_point_of_a_launch_starts_each_host_once(boxes, aws, point):
    name, pid = unique("killed"), outside(boxes.bed, service_pid(boxes.home))
    set_kill_point(boxes.home, POINTS[point], name)
    with Leases(boxes) as leases:
        aws.sagemaker.create_training_job(**job_request(name, PROGRAM, ResourceConfig=HOSTS))
        soon(lambda: not is_there(pid), what=f"a service killed at {point}")
        boxes.clary("up")
        facts = wait(aws, name, timeout_s=60)
        assert facts["TrainingJobStatus"] == "Completed", (facts.get("FailureReason"), leases.words)
        require_clean(boxes)
    assert [len(found) for found in leases.seen.values()] == [2], "one allocation, and one lease a host"
    said = log_of(aws, name)
    for host in ("algo-1", "algo-2"):
        own = [line for line in said if line.startswith("line ") and line.endswith(f"of {host}")]
        assert own == [f"line {number} of {host}" for number in range(1, NUM_LINES + 1)]
    assert "Restarting" not in [row["Status"] for row in facts["SecondaryStatusTransitions"]]


def outside(bed, pid):
    """Return the pid that a process of the head has in this machine's pid namespace."""
    space = os.stat(f"/proc/{bed.first_process('head')}/ns/pid").st_ino
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}/ns/pid").st_ino != space:
                continue
            with open(f"/proc/{name}/status") as file:
                numbers = next(line for line in file if line.startswith("NSpid")).split()
        except (OSError, StopIteration):
            continue
        if int(numbers[-1]) == pid:
            return int(name)
    raise AssertionError(f"the head has no process {pid}")
