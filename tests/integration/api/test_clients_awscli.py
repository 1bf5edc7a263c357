"""AWS CLI v1 (PyPI) and v2 (Debian), unmodified."""

import json
import subprocess
import time

import pytest

from needs import NEEDS, require

pytestmark = [pytest.mark.clients, pytest.mark.timeout(240), pytest.mark.xdist_group("clients-awscli")]

V1, V2 = NEEDS["awscli1"].path, NEEDS["awscli2"].path
GROUP = "/aws/sagemaker/TrainingJobs"


def run(service, command, *arguments, check=True, timeout=120, cwd=None, variables=None):
    # Debian's v2 is older than AWS_ENDPOINT_URL: it reaches the service by AWS's host names, which `clary env --tls`
    # sets up.
    environment = {**(service.tls_environment if command == V2 else service.environment), "AWS_PAGER": ""}
    environment |= variables or {}
    completed = subprocess.run(
        [command, *arguments], env=environment, capture_output=True, text=True, timeout=timeout, cwd=cwd
    )
    if check:
        assert completed.returncode == 0, f"{arguments}: {completed.stdout}{completed.stderr}"
    return completed


@pytest.fixture(params=[V1, V2], ids=["v1", "v2"])
def aws(request, service):
    require("awscli1" if request.param == V1 else "awscli2")

    def call(*arguments, **options):
        return run(service, request.param, *arguments, **options)

    call.version = "v1" if request.param == V1 else "v2"
    return call


def request_for(name, command):
    return json.dumps(
        {
            "TrainingJobName": name,
            "RoleArn": "arn:aws:iam::000000000000:role/ClaryExecutionRole",
            "AlgorithmSpecification": {
                "TrainingImage": "registry.example/team/bring-your-own:1",
                "TrainingInputMode": "File",
                "ContainerEntrypoint": ["bash", "-c", command],
            },
            "OutputDataConfig": {"S3OutputPath": "s3://clary/cli"},
            "ResourceConfig": {"InstanceCount": 1, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 10},
            "StoppingCondition": {"MaxRuntimeInSeconds": 120},
            "Tags": [{"Key": "by", "Value": "cli"}],
        }
    )


def status_at_the_end(aws, name):
    """Describe a job until it has ended; return its final status, or InProgress after a minute."""
    deadline = time.monotonic() + 60
    while True:
        described = json.loads(aws("sagemaker", "describe-training-job", "--training-job-name", name).stdout)
        if described["TrainingJobStatus"] not in ("InProgress", "Stopping") or time.monotonic() > deadline:
            return described["TrainingJobStatus"]
        time.sleep(0.5)


@pytest.mark.long
def test_a_job_is_created_waited_for_described_listed_tagged_and_deleted(aws):
    name = f"cli-{aws.version}-{time.time_ns() % 10**9}"
    created = aws("sagemaker", "create-training-job", "--cli-input-json", request_for(name, "echo from the cli"))
    arn = json.loads(created.stdout)["TrainingJobArn"]
    assert status_at_the_end(aws, name) == "Completed"
    # The job has ended: the waiter's first poll, before its pause of two minutes, must suffice.
    aws("sagemaker", "wait", "training-job-completed-or-stopped", "--training-job-name", name, timeout=60)
    listed = json.loads(aws("sagemaker", "list-training-jobs", "--name-contains", name).stdout)
    assert [item["TrainingJobName"] for item in listed["TrainingJobSummaries"]] == [name]
    tags = json.loads(aws("sagemaker", "list-tags", "--resource-arn", arn).stdout)["Tags"]
    assert tags == [{"Key": "by", "Value": "cli"}]
    if aws.version == "v2":
        tail = aws("logs", "tail", GROUP, "--log-stream-name-prefix", f"{name}/", "--since", "10m")
        assert "from the cli" in tail.stdout
    else:  # Debian's v2 lacks DeleteTrainingJob
        aws("sagemaker", "delete-training-job", "--training-job-name", name)
        gone = aws("sagemaker", "describe-training-job", "--training-job-name", name, check=False)
        assert "Requested resource not found." in gone.stderr


@pytest.mark.long(9)
def test_stop_ends_a_running_job(aws):
    name = f"cli-stop-{aws.version}-{time.time_ns() % 10**9}"
    aws("sagemaker", "create-training-job", "--cli-input-json", request_for(name, "sleep 60"))
    aws("sagemaker", "stop-training-job", "--training-job-name", name)
    assert status_at_the_end(aws, name) == "Stopped"
    aws("sagemaker", "wait", "training-job-completed-or-stopped", "--training-job-name", name, timeout=60)


def test_an_error_has_the_wording_of_the_real_service(aws):
    failed = aws("sagemaker", "describe-training-job", "--training-job-name", "no-such-job", check=False)
    assert failed.returncode != 0
    assert "(ValidationException)" in failed.stderr
    assert "Requested resource not found." in failed.stderr


@pytest.mark.long(30)
def test_s3_copies_and_syncs_both_ways(aws, tmp_path):
    prefix = f"s3://clary/cli-sync-{aws.version}-{time.time_ns() % 10**9}"
    source = tmp_path / "source"
    (source / "deep er").mkdir(parents=True)
    (source / "deep er" / "\u00fc+%.txt").write_text("text")
    (source / "large.bin").write_bytes(bytes(range(256)) * 40_000)  # 10 MB: a multipart upload
    aws("s3", "sync", str(source), prefix)
    aws("s3", "cp", f"{prefix}/large.bin", str(tmp_path / "large.bin"))
    assert (tmp_path / "large.bin").read_bytes() == (source / "large.bin").read_bytes()
    aws("s3", "sync", prefix, str(tmp_path / "back"))
    assert (tmp_path / "back" / "deep er" / "\u00fc+%.txt").read_text() == "text"
    listed = aws("s3", "ls", "--recursive", prefix).stdout
    assert "large.bin" in listed
    aws("s3", "rm", "--recursive", prefix)
    assert aws("s3", "ls", "--recursive", prefix, check=False).stdout == ""


def test_get_caller_identity_returns_a_session_of_the_execution_role(aws):
    identity = json.loads(aws("sts", "get-caller-identity").stdout)
    assert identity["Account"] == "000000000000"
    assert ":assumed-role/ClaryExecutionRole/" in identity["Arn"]


def test_a_script_sets_up_its_role_and_policies_first(aws):
    role = ("--role-name", "MyTrainer")
    document = '{"Version": "2012-10-17", "Statement": []}'
    assert (
        "EntityAlreadyExists"
        in aws("iam", "create-role", *role, "--assume-role-policy-document", document, check=False).stderr
    )
    made = json.loads(aws("iam", "create-policy", "--policy-name", "Mine", "--policy-document", document).stdout)
    policy = ("--policy-arn", made["Policy"]["Arn"])
    assert policy[1] == "arn:aws:iam::000000000000:policy/Mine"
    aws("iam", "wait", "policy-exists", *policy)
    aws("iam", "attach-role-policy", *role, *policy)
    aws("iam", "put-role-policy", *role, "--policy-name", "own", "--policy-document", document)
    aws("iam", "tag-role", *role, "--tags", "Key=k,Value=v")
    aws("iam", "wait", "role-exists", *role)
    listed = json.loads(aws("iam", "list-roles", "--path-prefix", "/service-role/").stdout)["Roles"]
    assert [item["RoleName"] for item in listed] == ["AmazonSageMaker-ExecutionRole-clary"]
    paged = json.loads(aws("iam", "list-roles", "--page-size", "1").stdout)["Roles"]
    assert len({item["Arn"] for item in paged}) == len(paged) == 2


@pytest.mark.needs("awscli2")
def test_v2_follows_a_log_while_the_job_runs(service):
    name = f"cli-follow-{time.time_ns() % 10**9}"
    run(
        service,
        V2,
        "sagemaker",
        "create-training-job",
        "--cli-input-json",
        request_for(name, "for i in 1 2 3 4; do echo line $i; sleep 1; done"),
    )
    tail = subprocess.Popen(
        [V2, "logs", "tail", GROUP, "--log-stream-name-prefix", f"{name}/", "--follow", "--format", "short"],
        env={**service.tls_environment, "AWS_PAGER": "", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        seen = []
        deadline = time.monotonic() + 60
        while len([line for line in seen if " line " in line]) < 4 and time.monotonic() < deadline:
            seen.append(tail.stdout.readline())
    finally:
        tail.terminate()
        tail.wait(timeout=20)
        tail.stdout.close()
    found = [line.rsplit(" ", 1)[1].strip() for line in seen if " line " in line]
    assert found == ["1", "2", "3", "4"], seen


def test_profiles_lead_to_the_service_and_never_to_keys_of_the_user(aws, service, tmp_path):
    service.clary("env", "--profile", "my")
    (tmp_path / ".aws").mkdir()
    keys = "aws_access_key_id = AKIAREAL\naws_secret_access_key = real\n"
    (tmp_path / ".aws" / "credentials").write_text(f"[prod]\n{keys}")
    for named in ({"AWS_PROFILE": "my"}, {"AWS_PROFILE": "default"}, {}):
        assert " clary\n" in aws("s3", "ls", variables={"HOME": str(tmp_path), **named}).stdout
    for name in ("default", "my"):
        assert " clary\n" in aws("s3", "ls", "--profile", name, variables={"HOME": str(tmp_path)}).stdout
        assert aws("configure", "get", "region", "--profile", name).stdout == "us-west-2\n"
    assert aws("configure", "get", "region").stdout == "us-west-2\n"
    refused = aws("s3", "ls", "--profile", "prod", variables={"HOME": str(tmp_path)}, check=False)
    assert refused.returncode != 0
    assert "profile (prod) could not be found" in refused.stderr
