"""The listing of a ResourceConfig with a warm pool, by boto3 and by the AWS CLI."""

import json
import subprocess

import pytest
from boto3_clients import log_of, unique, wait
from program_jobs import script_request, start
from seed_listings import printed, program
from warm_pools import end_pool, wait_for_pool

from needs import NEEDS, require

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("seeds")]

LISTED = json.loads(printed("warm_pool.json"))


def request_of(aws, label):
    """Return the request of a job with the listing's ResourceConfig as printed."""
    return {**script_request(aws, unique(label), {"train.py": program("ranks_program.py")}), **LISTED}


@pytest.mark.long(10)
def test_boto3_keeps_the_printed_host_warm_and_the_next_job_reuses_it(aws):
    first, second = request_of(aws, "seed-pool"), request_of(aws, "seed-pool")
    name = start(aws, first)
    try:
        assert wait(aws, name)["TrainingJobStatus"] == "Completed"
        assert wait_for_pool(aws, name, "Available")["Status"] == "Available"
        described = aws.sagemaker.describe_training_job(TrainingJobName=name)["ResourceConfig"]
        assert described.items() >= LISTED["ResourceConfig"].items()
        next_name = start(aws, second)
        assert wait(aws, next_name)["TrainingJobStatus"] == "Completed"
        assert wait_for_pool(aws, name, "Reused")["ReusedByJob"] == next_name
        name = next_name
        wait_for_pool(aws, name, "Available")
    finally:
        end_pool(aws, name)
    assert any("8 GPUs" in line for line in log_of(aws, name)), "the type's size and this machine's are told"


def create(program, environment, folder, request):
    """Create a job by the AWS CLI; return the completed process."""
    (folder / "job.json").write_text(json.dumps(request))
    return subprocess.run(
        [program, "sagemaker", "create-training-job", "--cli-input-json", "file://job.json"],
        env={**environment, "AWS_PAGER": ""},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def see_it_kept(aws, said):
    """Check that the job was created and completes, and that its host is kept warm."""
    assert said.returncode == 0, said.stderr
    name = json.loads(said.stdout)["TrainingJobArn"].rpartition("/")[2]
    try:
        assert wait(aws, name)["TrainingJobStatus"] == "Completed"
        wait_for_pool(aws, name, "Available")
    finally:
        end_pool(aws, name)


@pytest.mark.long(10)
def test_the_aws_cli_accepts_the_printed_document_as_part_of_its_input(service, aws, tmp_path):
    require("awscli1")
    see_it_kept(aws, create(NEEDS["awscli1"].path, service.environment, tmp_path, request_of(aws, "seed-cli1")))


def test_debians_older_cli_accepts_the_printed_document_once_a_volume_is_added(service, aws, tmp_path):
    require("awscli2")
    request = request_of(aws, "seed-cli2")
    said = create(NEEDS["awscli2"].path, service.tls_environment, tmp_path, request)
    if said.returncode != 0:
        assert 'Missing required parameter in ResourceConfig: "VolumeSizeInGB"' in said.stderr
        request["ResourceConfig"] = {**request["ResourceConfig"], "VolumeSizeInGB": 30}
        said = create(NEEDS["awscli2"].path, service.tls_environment, tmp_path, request)
    see_it_kept(aws, said)
