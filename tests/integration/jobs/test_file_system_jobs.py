"""Folders of the machine as file systems: a job gets only folders named in the settings, with any key."""

import json

import pytest
from boto3_clients import Clients, job_request, log_of, refusal, unique
from program_jobs import run, script_request
from running_service import SETTINGS, start_service

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("file-system-jobs")]

READABLE, WHOLE, UNKNOWN, OF_THE_SERVICE = ("fs-0000000000000000" + digit for digit in "1234")

# A program that uses its own key to create another job, with the whole machine as a writable channel.
PROGRAM = """
import boto3, json
from botocore.config import Config
from botocore.exceptions import ClientError

client = boto3.client("sagemaker", config=Config(retries={"max_attempts": 1}))
for request in json.load(open("/opt/ml/code/requests.json")):
    try:
        client.create_training_job(**request)
        print("CREATED", flush=True)
    except ClientError as error:
        print("REFUSED", error.response["Error"]["Code"], error, flush=True)
"""


def mounted(file_system_id, directory="/", access="rw"):
    source = {
        "FileSystemId": file_system_id,
        "FileSystemType": "EFS",
        "DirectoryPath": directory,
        "FileSystemAccessMode": access,
    }
    return [{"ChannelName": "host", "DataSource": {"FileSystemDataSource": source}}]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A service whose jobs' keys may create jobs: its clients, and the folder that jobs may read."""
    base = tmp_path_factory.mktemp("file-systems")
    (base / "shared" / "set").mkdir(parents=True)
    (base / "shared" / "set" / "data").write_text("to be read")
    for folder in (base.parent, base, base / "shared", base / "shared" / "set"):
        folder.chmod(0o755)
    entries = {READABLE: (base / "shared", "ro"), WHOLE: ("/", "rw"), OF_THE_SERVICE: (base / "home", "rw")}
    lines = [f'"{name}" = {{ path = "{path}", access = "{access}" }}' for name, (path, access) in entries.items()]
    settings = "\n".join(('job_api_access = "full"', SETTINGS, "[file_systems]", *lines))
    service = start_service(base / "home", settings)
    yield Clients(service), base / "shared"
    service.clary("down", check=False)


REFUSED = [
    (mounted(UNKNOWN), "the settings of this service name no such file system"),
    (mounted(WHOLE), "holds the state folder of the service or lies in it"),
    (mounted(WHOLE, "/root"), "holds the state folder of the service or lies in it"),
    (mounted(OF_THE_SERVICE, "/secrets", "ro"), "holds the state folder of the service or lies in it"),
    (mounted(READABLE), "FileSystemAccessMode is rw, and jobs may only read it"),
    (mounted(READABLE, "/set/../..", "ro"), "cannot be opened"),
]


@pytest.mark.parametrize(("channels", "said"), REFUSED)
@pytest.mark.long(10)
def test_a_folder_outside_the_settings_is_refused_at_create(world, channels, said):
    aws, _ = world
    name = unique("mounts")
    code, message = refusal(aws.sagemaker.create_training_job, **job_request(name, "true", InputDataConfig=channels))
    assert code == "ValidationException"
    assert said in message
    assert refusal(aws.sagemaker.describe_training_job, TrainingJobName=name)[0] == "ValidationException"


@pytest.mark.long(10)
def test_a_key_with_full_access_gets_no_other_folder_of_the_machine(world):
    aws, shared = world
    requests = [job_request(unique("inner"), "true", InputDataConfig=channels) for channels, _ in REFUSED]
    files = {"train.py": PROGRAM, "requests.json": json.dumps(requests)}
    request = script_request(aws, unique("outer"), files)
    request["AlgorithmSpecification"]["TrainingImage"] = "team/remote:1"  # its environment has boto3
    described = run(aws, request, timeout_s=200)
    lines = [line for line in log_of(aws, request["TrainingJobName"]) if line.startswith(("CREATED", "REFUSED"))]
    assert described["TrainingJobStatus"] == "Completed", (described, lines)
    assert [line.split()[:2] for line in lines] == [["REFUSED", "ValidationException"]] * len(REFUSED), lines
    assert (shared / "set" / "data").read_text() == "to be read"


def test_a_read_only_file_system_can_be_read_but_not_written(world):
    aws, shared = world
    name = unique("reads")
    command = (
        "cd /opt/ml/input/data/host && echo got: $(cat data); echo x > data; echo x > new; ln -s / out; rm -f data; "
        "ls; chroot . id; true"
    )
    described = run(aws, job_request(name, command, InputDataConfig=mounted(READABLE, "/set", "ro")))
    assert described["TrainingJobStatus"] == "Completed", described
    said = log_of(aws, name)
    assert "got: to be read" in said
    assert len([line for line in said if "Read-only file system" in line]) == 4, said
    assert sorted(path.name for path in (shared / "set").iterdir()) == ["data"]
    assert (shared / "set" / "data").read_text() == "to be read"
