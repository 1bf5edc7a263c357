"""`clary restart`: jobs, their hosts and clients go on while one service takes the place of another."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from boto3_clients import Clients, job_request, log_of, unique, wait
from running_service import SETTINGS, start_service
from service_processes import service_pid

pytestmark = [pytest.mark.timeout(300)]

NUM_LINES = 300  # a minute
# Counts, and saves a checkpoint each time.
PROGRAM = (
    f"for i in $(seq {NUM_LINES}); do echo line $i; echo $i > /opt/ml/checkpoints/count; sleep 0.2; done; "
    "echo kept > /opt/ml/model/kept"
)


@pytest.fixture
def service(tmp_path):
    service = start_service(tmp_path / "home", SETTINGS)
    yield service
    service.clary("down", check=False)
    assert "left behind" not in service.clary("doctor", check=False).stdout


@pytest.fixture
def begin():
    """Begin a command of `clary` in the background; it is ended with the test."""
    begun = []

    def run(service, *arguments, stdout=subprocess.DEVNULL):
        environment = {**os.environ, **service.variables, "CLARY_HOME": str(service.home)}
        command = [sys.executable, "-m", "clary.cli.main", *arguments]
        begun.append(subprocess.Popen(command, env=environment, stdout=stdout, stderr=subprocess.DEVNULL))
        return begun[-1]

    yield run
    for process in begun:
        process.kill()
        process.wait()


def start_counting(aws, name):
    request = job_request(name, PROGRAM)
    request["CheckpointConfig"] = {"S3Uri": f"s3://clary/checkpoints/{name}"}
    request["ResourceConfig"]["InstanceCount"] = 2
    aws.sagemaker.create_training_job(**request)
    wait(aws, name, until=("Training",))


def assert_untouched(aws, name):
    facts = wait(aws, name, timeout_s=200)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    assert [one["Status"] for one in facts["SecondaryStatusTransitions"]].count("Training") == 1, "one attempt"
    count = aws.s3.get_object(Bucket="clary", Key=f"checkpoints/{name}/count")["Body"].read()
    assert count.split() == [str(NUM_LINES).encode()]
    numbers = [int(line.split()[1]) for line in log_of(aws, name) if line.startswith("line ")]
    assert sorted(numbers) == sorted([*range(1, NUM_LINES + 1)] * 2)


class Hammer:
    """Clients that ask and store without a pause; each of their errors is kept."""

    def __init__(self, **works):
        self.errors = []
        self.counts = dict.fromkeys(works, 0)
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._repeat, args=item) for item in works.items()]

    def _repeat(self, name, work):
        while not self._ends.wait(0.02):
            try:
                work()
                self.counts[name] += 1
            except Exception as error:  # noqa: BLE001 - reported by the test
                self.errors.append((name, repr(error)))

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._ends.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.long(40)
def test_jobs_and_clients_go_on_over_restarts_with_changed_settings(service, begin, tmp_path):
    aws, name = Clients(service), unique("counting")
    start_counting(aws, name)
    first = service_pid(service)
    out = tmp_path / "followed"
    with out.open("w") as file:
        follower = begin(service, "logs", "-f", name, stdout=file)
    (service.home / "settings.toml").write_text("max_runtime_s = 500000\n" + SETTINGS)
    body = os.urandom(1 << 20)
    works = {
        "describe": lambda: aws.sagemaker.describe_training_job(TrainingJobName=name),
        "put": lambda: aws.s3.put_object(Bucket="clary", Key="hammer", Body=body),
        "events": lambda: log_of(aws, name),
    }
    with Hammer(**works) as hammer:
        for _ in range(2):
            said = json.loads(service.clary("restart", "--json").stdout)
            assert said["go_on"] == [name]
            assert said["ended"] == []
    assert hammer.errors == []
    assert all(hammer.counts.values())
    assert service_pid(service) == said["pid"] != first
    assert_untouched(aws, name)
    assert follower.wait(timeout=60) == 0
    assert sum("line " in line for line in out.read_text().splitlines()) == 2 * NUM_LINES


@pytest.mark.long(25)
def test_what_cannot_change_or_start_leaves_the_service_and_its_jobs_alone(service):
    aws, name = Clients(service), unique("counting")
    start_counting(aws, name)
    pid = service_pid(service)
    settings = service.home / "settings.toml"
    for text, told in (
        ('isolation = "processes"\n', "isolation"),
        ('prices_file = "/nowhere"\n', "/nowhere"),
        ("max_hosts = -1\n", "max_hosts"),
    ):
        settings.write_text(text + SETTINGS.replace("max_hosts = 8\n", "") if "max_hosts" in text else text + SETTINGS)
        done = service.clary("restart", check=False)
        assert done.returncode != 0
        assert told in done.stderr
        assert service_pid(service) == pid
    settings.write_text(SETTINGS)
    assert_untouched(aws, name)


@pytest.mark.long(40)
def test_a_command_that_is_killed_leaves_what_up_recovers_from(service, begin):
    aws, name = Clients(service), unique("counting")
    start_counting(aws, name)
    for after_s in (0.2, 1.0, 2.0):
        command = begin(service, "restart")
        time.sleep(after_s)
        command.send_signal(signal.SIGKILL)
        command.wait()
        service.clary("up")
    assert_untouched(aws, name)


@pytest.mark.long(25)
def test_a_command_that_is_interrupted_stops_no_job(service, begin):
    aws, name = Clients(service), unique("counting")
    start_counting(aws, name)
    command = begin(service, "restart")
    log = service.home / "service.log"
    deadline = time.monotonic() + 60
    while "hands over" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    command.send_signal(signal.SIGINT)
    assert command.wait(timeout=60) in (0, 130)
    service.clary("up")
    assert_untouched(aws, name)
