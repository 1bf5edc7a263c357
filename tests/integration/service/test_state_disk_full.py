"""A real service whose state folder is on a full disk: no acknowledged write is lost; with free space it continues."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import time

import pytest
from boto3_clients import Clients, job_request, log_of, unique, wait
from botocore.exceptions import ClientError
from running_service import SETTINGS, RunningService, start_service

pytestmark = [pytest.mark.timeout(300), pytest.mark.root]

DISK_MIB = 400
NUM_LINES = 150
# The program's own file needs space too; other tests cover programs that fail on a full disk.
PROGRAM = (
    f"for i in $(seq {NUM_LINES}); do echo line $i; sleep 0.05; done; "
    "until [ $(df -k --output=avail /opt/ml/model | tail -1) -gt 50000 ]; do sleep 0.2; done; "
    "echo kept > /opt/ml/model/kept"
)


@pytest.fixture
def disk(tmp_path):
    place, image = tmp_path / "disk", tmp_path / "disk.img"
    place.mkdir()
    with open(image, "wb") as file:
        file.truncate(DISK_MIB * 1024**2)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", str(image), str(place)], capture_output=True, text=True)
    if mounted.returncode:
        print(f"a tmpfs takes the place of ext4, since here is no loop device: {mounted.stderr}")
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "none", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def home(disk):
    home = disk / "home"
    yield home
    make_room(disk)
    RunningService(home, {}, {}, {}).clary("down", check=False)


def fill(disk):
    with open(disk / "filler", "ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)


def make_room(disk):
    (disk / "filler").unlink(missing_ok=True)


def refused(call, **parameters):
    with pytest.raises(ClientError) as told:
        call(**parameters)
    error = told.value.response
    assert error["ResponseMetadata"]["HTTPStatusCode"] == 503, error
    return error["Error"]["Message"]


@pytest.mark.long
def test_a_full_disk_loses_no_acknowledged_write(home, disk):
    home.mkdir()
    (home / "settings.toml").write_text(SETTINGS)
    fill(disk)
    said = RunningService(home, {}, {}, {"CLARY_PORT": "0"}).clary("up", check=False).stderr
    assert "No space left on device; free space there" in said
    make_room(disk)

    service = start_service(home)
    aws = Clients(service)
    running, lasting = unique("running"), unique("lasting")
    aws.sagemaker.create_training_job(**job_request(running, PROGRAM))
    aws.sagemaker.create_training_job(**job_request(lasting, "sleep 300"))
    for name in (running, lasting):
        wait(aws, name, until=("Training",))
    fill(disk)
    acknowledged = put_until_refused(aws, disk)
    assert "disk is full" in refused(aws.sagemaker.create_training_job, **job_request(unique("refused"), "true"))
    assert "disk is full" in refused(aws.sagemaker.stop_training_job, TrainingJobName=lasting)
    assert aws.sagemaker.describe_training_job(TrainingJobName=running)["TrainingJobStatus"] == "InProgress"
    os.kill(json.loads((home / "run" / "service.json").read_text())["pid"], signal.SIGKILL)
    time.sleep(0.5)
    assert f"the disk of {home} is full" in service.clary("up", check=False).stderr
    make_room(disk)

    service.clary("up")
    assert wait(aws, running)["TrainingJobStatus"] == "Completed"
    lines = [line for line in log_of(aws, running) if line.startswith("line ")]
    assert lines == [f"line {number}" for number in range(1, NUM_LINES + 1)]
    for key, digest in acknowledged.items():
        assert hashlib.sha256(aws.s3.get_object(Bucket="clary", Key=key)["Body"].read()).hexdigest() == digest
    listed = aws.sagemaker.list_training_jobs()["TrainingJobSummaries"]
    assert sorted(item["TrainingJobName"] for item in listed) == sorted([running, lasting])

    fill(disk)
    down = service.clary("down", check=False)
    assert down.returncode == 1
    assert f"jobs run on without it: the disk of {home} is full" in down.stderr
    make_room(disk)
    service.clary("up")
    assert aws.sagemaker.describe_training_job(TrainingJobName=lasting)["TrainingJobStatus"] == "InProgress"
    aws.sagemaker.stop_training_job(TrainingJobName=lasting)
    assert wait(aws, lasting)["TrainingJobStatus"] == "Stopped"


def put_until_refused(aws, disk):
    """Put objects until the store refuses one; return the digests of the stored ones, by key."""
    digests = {}
    for number in range(10):
        body = os.urandom(3_000_000)
        try:
            aws.s3.put_object(Bucket="clary", Key=f"object-{number}", Body=body)
        except ClientError as error:
            if "is full" not in error.response["Error"]["Message"]:
                raise
            return digests
        digests[f"object-{number}"] = hashlib.sha256(body).hexdigest()
        fill(disk)  # also fill space reserved by the store
    raise AssertionError("a full disk took thirty megabytes")
