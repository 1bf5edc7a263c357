"""`clary rehearse` with programs that resume correctly or not: the certificate names the forgotten part."""

import http.client
import json
import time
from datetime import datetime
from itertools import pairwise
from urllib.parse import urlsplit

import pytest
from boto3_clients import Clients, job_request, unique, wait
from program_jobs import script_request, start
from rehearsal_commands import FAIL, FOLDER, INCONCLUSIVE, LIMIT_S, PASS, USAGE, forgetting, rehearse, request_file
from running_service import start_service

from clary.control.state_folder import StateFolder

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("rehearsal")]

RANKS_PROGRAM = (FOLDER / "rehearsed_ranks_program.py").read_text()


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A service whose hosts poll their checkpoints often."""
    running = start_service(tmp_path_factory.mktemp("rehearsals"), CLARY_CHECKPOINT_INTERVAL_S="0.5")
    yield running
    running.clary("down")


@pytest.fixture(scope="module")
def aws(own):
    return Clients(own)


@pytest.mark.long(35)
def test_a_program_that_restores_everything_passes_without_changing_user_checkpoints(own, aws, tmp_path):
    path, name = request_file(aws, tmp_path, forgetting(""))
    done, certificate = rehearse(own, tmp_path, path, "--reclaim", "step:12")
    assert done.returncode == PASS, done.stdout + done.stderr
    assert certificate["verdict"] == "PASS"
    assert certificate["losses"]["num_equal"] == certificate["losses"]["num_compared"] == 32
    assert certificate["samples"]["num_compared"] == 128
    assert (certificate["samples"]["num_twice"], certificate["samples"]["num_never"]) == (0, 0)
    (interruption,) = certificate["interruptions"]
    assert "was reclaimed" in interruption["why"]
    assert 0 <= certificate["steps_lost"] < 32
    assert "PASS: all 32 losses are equal to the twin's, as printed" in done.stdout
    listed = aws.s3.list_objects_v2(Bucket="clary", Prefix=f"users-own/{name}")
    assert listed["KeyCount"] == 0
    jobs = own.clary("jobs", "--json").stdout
    assert certificate["twin"] not in jobs, "both jobs are gone after a PASS"


@pytest.mark.parametrize(
    ("forgets", "reason", "advice"),
    [
        ("optimizer", "though samples are right: the state of the optimizer", "optimizer.state_dict()"),
        ("sampler", "the sampler's place in the data is not restored", "how far the data was read"),
        ("checkpoint", "1 file was restored: the checkpoint is never read", "look for the newest checkpoint"),
    ],
)
@pytest.mark.long
def test_a_program_that_forgets_a_part_fails_and_the_certificate_names_the_part(
    own, aws, tmp_path, forgets, reason, advice
):
    path, _ = request_file(aws, tmp_path, forgetting(forgets))
    done, certificate = rehearse(own, tmp_path, path, "--reclaim", "step:12")
    assert done.returncode == FAIL, done.stdout + done.stderr
    assert certificate["verdict"] == "FAIL"
    assert reason in certificate["reason"]
    assert advice in certificate["advice"]
    jobs = own.clary("jobs", "--json").stdout
    assert certificate["rehearsal"] in jobs, "the job of a failed rehearsal is kept"


@pytest.mark.parametrize(
    ("faults", "lost"),
    [
        (("--kill", "algo-2@step:14", "--slow", "algo-1@step:2+1s:20mbit"), "algo-2"),
        (("--partition", "algo-1@step:14"), "its link has carried nothing"),
    ],
)
@pytest.mark.long
def test_two_ranks_on_two_hosts_are_rehearsed_from_a_job_that_has_run(own, aws, tmp_path, faults, lost):
    name = unique("ranks")
    request = script_request(
        aws,
        name,
        {"train.py": RANKS_PROGRAM},
        instance_count=2,
        hyperparameters={"sagemaker_torch_distributed_enabled": "true"},
        CheckpointConfig={"S3Uri": f"s3://clary/users-own/{name}"},
    )
    assert wait(aws, start(aws, request), timeout_s=LIMIT_S)["TrainingJobStatus"] == "Completed"
    done, certificate = rehearse(own, tmp_path, name, *faults)
    assert done.returncode == PASS, done.stdout + done.stderr
    drawn = certificate["samples"]["num_compared"]
    assert drawn == 36 * 2 * 2, f"batches of both ranks, not those that were skipped: {certificate['samples']}"
    assert lost in certificate["interruptions"][0]["why"]
    assert certificate["twin"].startswith(f"{name}-twin-")


@pytest.mark.long
def test_a_temporary_cut_between_two_hosts_delays_a_job_of_three_without_loss(own, aws, tmp_path):
    path, _ = request_file(
        aws,
        tmp_path,
        RANKS_PROGRAM,
        instance_count=3,
        hyperparameters={"sagemaker_torch_distributed_enabled": "true"},
    )
    cuts = ("--partition", "algo-1:algo-2@step:6+4s", "--partition", "algo-2:algo-3@step:6+4s")
    done, certificate = rehearse(own, tmp_path, path, *cuts, "--keep")
    assert done.returncode == PASS, done.stdout + done.stderr
    assert "  partition algo-1 from algo-2 at step 6 for 4 s\n" in done.stdout
    assert certificate["interruptions"] == [], "a temporary cut interrupts no host"
    lines = own.clary("logs", certificate["rehearsal"], "--timestamps", "--grep", "'step': ").stdout.splitlines()
    times = [datetime.fromisoformat(line.split(" ", 1)[0]).timestamp() for line in lines]
    assert max(after - before for before, after in pairwise(times)) > 2, "ranks wait for each other meanwhile"
    assert [strike["note"] for strike in certificate["strikes"]] == ["", ""]


@pytest.mark.long
def test_a_fault_after_the_end_gives_no_verdict(own, aws, tmp_path):
    short = forgetting("").replace("= 32, 5, 4, 64", "= 3, 5, 4, 64")
    path, _ = request_file(aws, tmp_path, short)
    done, certificate = rehearse(own, tmp_path, path, "--reclaim", "step:900")
    assert done.returncode == INCONCLUSIVE, done.stdout + done.stderr
    assert "it never struck" in certificate["reason"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no fault is given; give at least one"),
        (("--kill", "algo-7@1s"), "the job has no host algo-7"),
        (("--partition", "algo-1@1s"), "a job of one host has no network"),
        (("--random", "2", "--together"), "leave --together out"),
        (("--kill", "soon"), "--kill: expected algo-2@180s"),
    ],
)
@pytest.mark.long(10)
def test_an_impossible_rehearsal_is_refused_before_any_job_starts(own, aws, tmp_path, arguments, words):
    path, name = request_file(aws, tmp_path, forgetting(""))
    done = own.clary("rehearse", str(path), *arguments, check=False)
    assert done.returncode == USAGE
    assert words in done.stderr
    assert name not in own.clary("jobs", "--json").stdout


def test_a_job_outside_a_rehearsal_gets_no_fault(own, aws):
    name = unique("bystander")
    aws.sagemaker.create_training_job(**job_request(name, "echo up; sleep 30"))
    wait(aws, name, until=("Training",))
    token = StateFolder(own.home).load_secrets().admin_token
    address = urlsplit(own.environment["AWS_ENDPOINT_URL"])
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
    try:
        body = json.dumps({"kind": "kill", "hosts": ["algo-1"]})
        connection.request(
            "POST", f"/clary/v1/jobs/{name}/strike", body=body, headers={"authorization": f"Bearer {token}"}
        )
        answer = connection.getresponse()
        assert (answer.status, "is not a rehearsal" in answer.read().decode()) == (403, True)
    finally:
        connection.close()
    time.sleep(1)
    assert aws.sagemaker.describe_training_job(TrainingJobName=name)["TrainingJobStatus"] == "InProgress"
    aws.sagemaker.stop_training_job(TrainingJobName=name)
