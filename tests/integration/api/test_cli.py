"""The `clary` command against a running service."""

import contextlib
import io
import json
import os
import re
import shlex
import sqlite3
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from boto3_clients import Clients, job_request, unique, wait
from running_service import SETTINGS, start_service

from clary.control.state_folder import StateFolder

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("cli")]

RANKS_PROGRAM = """
import os, time
print("I am rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
"""


@pytest.fixture(scope="module")
def finished_job(aws):
    """A completed job of two hosts with two ranks each."""
    name = unique("cli-ranks")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        member = tarfile.TarInfo("ranks.py")
        member.size = len(RANKS_PROGRAM)
        tar.addfile(member, io.BytesIO(RANKS_PROGRAM.encode()))
    aws.s3.put_object(Bucket="clary", Key=f"{name}/source.tar.gz", Body=archive.getvalue())
    request = job_request(name, "true")
    del request["AlgorithmSpecification"]["ContainerEntrypoint"]
    del request["AlgorithmSpecification"]["ContainerArguments"]
    request["ResourceConfig"]["InstanceCount"] = 2
    request["Environment"] = {"GREETING": "hello"}
    request["HyperParameters"] = {
        "sagemaker_program": '"ranks.py"',
        "sagemaker_submit_directory": json.dumps(f"s3://clary/{name}/source.tar.gz"),
        "sagemaker_torch_distributed_enabled": "true",
    }
    aws.sagemaker.create_training_job(**request)
    facts = wait(aws, name, timeout_s=90)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    return name


def secrets_of(service, name):
    """Return every secret of the service and of a running job, by a descriptive name."""
    keys = StateFolder(service.home).load_secrets()
    secrets = {
        "owner's secret": keys.secret_access_key,
        "admin token": keys.admin_token,
        "master key": keys.master_key,
        "object store's secret": keys.store_credentials.secret_access_key,
    }
    plan = json.loads(service.clary("plan", name).stdout)
    secrets["job's key"] = keys.job_secret(plan["job_endpoint"]["credentials"]["access_key_id"])
    with contextlib.closing(sqlite3.connect(f"file:{service.home / 'clary.db'}?mode=ro", uri=True)) as database:
        (document,) = database.execute("SELECT document FROM jobs WHERE name = ?", (name,)).fetchone()
    secrets["agent's token"] = json.loads(document)["plan"]["agent_token"]
    secrets["pool's token"] = json.loads(document)["plan"]["pool_token"]
    assert all(len(secret) >= 30 for secret in secrets.values())
    return secrets


def agents_of(service, name):
    """Return the process ids of the agents of a running job."""
    (record,) = service.home.glob(f"jobs/{name}/*/engine.json")
    (record,) = service.home.glob(f"jobs/{json.loads(record.read_text())['pool']}/*/engine.json")
    return [agent["pid"] for agent in json.loads(record.read_text())["agents"].values()]


def assert_no_secret(text, secrets):
    assert [what for what, secret in secrets.items() if secret in text] == []


def test_up_on_a_running_service_prints_its_url_and_starts_no_second_one(service):
    record = (service.home / "run" / "service.json").read_text()
    again = service.clary("up")
    assert again.stdout.startswith(f"clary already runs at {json.loads(record)['url']}")
    assert (service.home / "run" / "service.json").read_text() == record


def test_env_prints_exports_of_all_variables_and_unset_removes_them(service):
    for arguments in ((), ("--tls",)):
        lines = service.clary("env", *arguments).stdout
        names = re.findall(r"^export (\w+)=", lines, re.MULTILINE)
        assert ("HTTPS_PROXY" in names) is bool(arguments)
        unset = service.clary("env", "--unset", *arguments).stdout
        script = f"export AWS_PROFILE=mine\n{lines}\nenv\necho ----\n{unset}\nenv"
        shell = subprocess.run(
            ["sh", "-c", script], env={"PATH": os.defpath}, capture_output=True, text=True, check=True
        )
        during, _, after = f"\n{shell.stdout}".partition("----")
        assert all(f"\n{name}=" in during for name in names)
        assert "AWS_PROFILE" not in during
        assert not [name for name in names if f"\n{name}=" in after]


def test_jobs_are_listed_newest_first_and_by_status(service, finished_job):
    rows = service.clary("jobs").stdout.splitlines()
    assert rows[0].split() == ["NAME", "STATUS", "PHASE", "CREATED", "TOOK"]
    assert any(row.startswith(finished_job) and "Completed" in row for row in rows)
    listed = json.loads(service.clary("jobs", "--json", "-n", "1", "--status", "Completed").stdout)
    assert [job["TrainingJobStatus"] for job in listed] == ["Completed"]


def test_describe_prints_phases_and_hosts(service, finished_job):
    text = service.clary("describe", finished_job).stdout
    assert text.startswith(f"{finished_job}  Completed (Completed)")
    for phase in ("Starting", "Downloading", "Training", "Uploading", "Completed"):
        assert re.search(rf"^  {phase} ", text, re.MULTILINE), text
    assert re.search(r"^  algo-2 .*rank \d: 0", text, re.MULTILINE), text
    facts = json.loads(service.clary("describe", finished_job, "--json").stdout)
    assert [host["name"] for host in facts["hosts"]] == ["algo-1", "algo-2"]


@pytest.mark.long
def test_wait_cp_rerun_and_delete_work_on_a_completed_job(service, finished_job, tmp_path):
    assert service.clary("wait", finished_job).stdout == f"{finished_job} is Completed\n"
    service.clary("cp", f"{finished_job}:model", str(tmp_path))
    with tarfile.open(tmp_path / "model.tar.gz") as model:
        assert model.getnames() == []
    service.clary("cp", f"{finished_job}:logs", str(tmp_path / "logs"))
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["algo-1.log", "algo-2.log"]
    assert "I am rank 0 of" in (tmp_path / "logs" / "algo-1.log").read_text()
    service.clary("cp", "-x", f"{finished_job}:code", str(tmp_path / "code"))
    assert (tmp_path / "code" / "ranks.py").read_text() == RANKS_PROGRAM
    again = unique("cli-again")
    made = json.loads(service.clary("rerun", finished_job, "--name", again, "-e", "GREETING=bye", "--json").stdout)
    assert made["TrainingJobName"] == again
    (ended,) = json.loads(service.clary("wait", again, "--timeout", "90", "--json").stdout)
    assert ended["State"] == "Completed", ended
    sent = json.loads(service.clary("rerun", again, "--dry-run").stdout)
    assert sent["Environment"]["GREETING"] == "bye"
    assert sent["HyperParameters"]["sagemaker_program"] == '"ranks.py"'
    assert "is deleted" in service.clary("delete", again).stdout
    assert again not in service.clary("jobs", "--names").stdout.split()


@pytest.mark.long
def test_logs_can_be_limited_to_one_host_or_one_rank(service, finished_job):
    everything = service.clary("logs", finished_job).stdout.splitlines()
    said = sorted(line.partition(" | ")[2] for line in everything if "I am rank" in line)
    world = len(said)
    assert world >= 2
    assert said == [f"I am rank {rank} of {world}" for rank in range(world)]
    of_host = service.clary("logs", finished_job, "--host", "algo-2").stdout.splitlines()
    assert of_host == [line for line in everything if line.startswith("algo-2 | ")]
    assert of_host
    of_rank = service.clary("logs", finished_job, "--rank", str(world - 1)).stdout
    assert "I am rank" in of_rank
    assert not [line for line in of_rank.splitlines() if "I am rank" in line and f"rank {world - 1} " not in line]
    missing = service.clary("logs", finished_job, "--host", "algo-3", check=False)
    assert missing.returncode == 3
    assert "has no host 'algo-3'; it has algo-1, algo-2" in missing.stderr


def test_follow_prints_all_lines_and_ends_with_the_job(service, aws):
    name = unique("cli-follow")
    aws.sagemaker.create_training_job(**job_request(name, "for i in $(seq 5); do echo tick $i; sleep 0.3; done"))
    followed = service.clary("logs", "--follow", "--timestamps", name)
    ticks = [line for line in followed.stdout.splitlines() if "tick" in line]
    assert [line.partition(" | ")[2] for line in ticks] == [f"tick {number}" for number in range(1, 6)]
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d algo-1 \| ", line) for line in ticks)
    assert wait(aws, name)["TrainingJobStatus"] == "Completed"


def test_stop_with_wait_returns_after_the_job_has_ended_with_its_model(service, aws):
    name = unique("cli-stop")
    aws.sagemaker.create_training_job(**job_request(name, "echo kept > /opt/ml/model/kept; sleep 600"))
    wait(aws, name, until=("Training",))
    time.sleep(0.5)
    stopped = service.clary("stop", name, "--wait", "60")
    assert stopped.stdout == f"{name} is Stopped\n"
    assert aws.s3.head_object(Bucket="clary", Key=f"out/{name}/output/model.tar.gz")
    again = service.clary("stop", name, check=False)
    assert again.returncode == 1
    assert again.stderr.startswith("clary: ValidationException: ")


@pytest.mark.long
def test_no_secret_is_printed_logged_or_shown_in_a_command_line(service, aws):
    name = unique("cli-secrets")
    aws.sagemaker.create_training_job(**job_request(name, "sleep 600"))
    wait(aws, name, until=("Training",))
    secrets = secrets_of(service, name)
    plan = service.clary("plan", name).stdout
    assert json.loads(plan)["agent_token"] == "(hidden)"
    assert_no_secret(plan, secrets)
    assert_no_secret(service.clary("describe", name).stdout + service.clary("describe", name, "--json").stdout, secrets)
    assert_no_secret(service.clary("logs", name).stdout + service.clary("doctor", check=False).stdout, secrets)
    variables = [Path(f"/proc/{agent}/environ") for agent in agents_of(service, name)]
    assert variables
    for path in (*variables, *Path("/proc").glob("[0-9]*/cmdline")):
        try:
            shown = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        assert_no_secret(shown, secrets)
    service.clary("stop", name, "--wait", "60")
    logs = [service.home / "service.log", service.home / "run" / "seaweed.log", *service.home.glob("jobs/*/*/**/*.log")]
    assert len(logs) > 2
    for path in logs:
        assert_no_secret(path.read_text(errors="replace"), secrets)


@pytest.mark.parametrize("command", ["describe", "plan", "logs", "stop"])
@pytest.mark.long
def test_an_unknown_job_is_reported_as_not_found(service, command):
    missing = service.clary(command, "no-such-job", check=False)
    assert (missing.returncode, missing.stdout) == (3, "")
    assert missing.stderr == "clary: there is no training job 'no-such-job'\n"


def test_doctor_finds_no_fault_in_a_running_service(service):
    report = service.clary("doctor", check=False)
    url = json.loads((service.home / "run" / "service.json").read_text())["url"]
    assert re.search(rf"^ok  service +{re.escape(url)}, process \d+", report.stdout, re.MULTILINE)
    problems = [line for line in report.stdout.splitlines() if line.startswith("!!")]
    assert report.returncode == (1 if problems else 0)
    assert not [line for line in problems if line.split()[1] in ("service", "object", "environment", "machine")]


@pytest.mark.long
def test_down_stops_a_running_job_and_its_model_is_readable_after_up(tmp_path):
    service = start_service(tmp_path / "home", SETTINGS)
    try:
        aws = Clients(service)
        name = unique("cli-down")
        aws.sagemaker.create_training_job(**job_request(name, "echo kept > /opt/ml/model/kept; sleep 600"))
        wait(aws, name, until=("Training",))
        time.sleep(0.5)
        down = service.clary("down")
        assert down.stdout.startswith("clary is down")
        assert service.clary("jobs", check=False).returncode == 69
        assert not (service.home / "run" / "service.json").exists()
        service.clary("up")
        line = next(line for line in service.clary("env").stdout.splitlines() if "AWS_ENDPOINT_URL" in line)
        service.environment["AWS_ENDPOINT_URL"] = shlex.split(line)[1].partition("=")[2]
        aws = Clients(service)
        assert aws.sagemaker.describe_training_job(TrainingJobName=name)["TrainingJobStatus"] == "Stopped"
        assert aws.s3.head_object(Bucket="clary", Key=f"out/{name}/output/model.tar.gz")
    finally:
        service.clary("down", check=False)
        assert "left behind" not in service.clary("doctor", check=False).stdout
