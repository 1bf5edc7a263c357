"""`clary profile` of real jobs with unmodified scripts."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from boto3_clients import unique, wait
from program_jobs import BUCKET, processes_with, script_request, start

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("profile-jobs")]

LIMIT_S = 120
SCRIPT = """
import time
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(4)]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(256, 128))
for epoch in range(100_000):
    for number, (batch,) in enumerate(torch.utils.data.DataLoader(data, batch_size=16)):
        if dist.get_rank() == 1:
            time.sleep(0.03)  # comes late to every collective
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if (epoch, number) == (0, 3):
            print("begins", flush=True)
"""


@pytest.fixture(scope="module")
def begin(service, aws):
    """Start a job of two hosts; stop it at the end."""
    started = []

    def begin_job(label, **members):
        request = script_request(
            aws,
            unique(label),
            {"train.py": SCRIPT},
            instance_count=2,
            hyperparameters={"sagemaker_torch_distributed_enabled": "true"},
            **members,
        )
        started.append(start(aws, request))
        end_s = time.monotonic() + LIMIT_S
        while service.clary("logs", started[-1], check=False).stdout.count("begins") < 2:
            assert time.monotonic() < end_s
            time.sleep(0.3)
        return started[-1]

    yield begin_job
    for name in started:
        if aws.sagemaker.list_training_jobs(NameContains=name, StatusEquals="InProgress")["TrainingJobSummaries"]:
            aws.sagemaker.stop_training_job(TrainingJobName=name)
            wait(aws, name)


@pytest.fixture(scope="module")
def job(begin):
    """A running job whose request asks for a profile of two steps, from the second step on."""
    config = {
        "S3OutputPath": f"s3://{BUCKET}/profiles",
        "ProfilingParameters": {"DetailedProfilingConfig": '{"StartStep": 2, "NumSteps": 2, }'},
    }
    return begin("profiled", ProfilerConfig=config)


def test_an_unmodified_script_is_profiled_while_it_runs_and_the_late_rank_is_named(service, job, tmp_path):
    page = json.loads(service.clary("profile", job, "--steps", "4", "--output", str(tmp_path), "--json").stdout)
    summary = page["summary"]
    assert [(rank["rank"], rank["host"], rank["num_steps"]) for rank in summary["ranks"]] == [
        (0, "algo-1", 4),
        (1, "algo-2", 4),
    ]
    waiting, _ = summary["ranks"]
    for rank in summary["ranks"]:
        shares = [rank[f"{part}_share"] for part in ("compute", "exposed_communication", "data_wait", "rest")]
        assert all(0 <= share <= 1 for share in shares)
        assert sum(shares) == pytest.approx(1, abs=0.01)
        assert rank["exposed_communication_share"] <= rank["communication_share"]
        assert rank["data_wait_share"] > 0
        assert rank["step_ms"] > 25
        assert {"aten::addmm", "gloo:all_reduce"} <= {item["name"] for item in rank["top"]}
    assert waiting["exposed_communication_share"] > 0.2, "it waits for the other one"
    assert summary["skew"]["num_collectives"] >= 3, "of the steps that both have recorded"
    assert summary["skew"]["last"]["1"] > summary["skew"]["last"]["0"]
    assert summary["skew"]["mean_behind_ms"]["1"] > 10
    assert summary["clocks"]["method"] == "one clock"
    merged = json.loads(gzip.decompress((tmp_path / "merged.trace.json.gz").read_bytes()))
    labels = {event["args"]["name"] for event in merged["traceEvents"] if event["name"] == "process_name"}
    assert {"rank 0 (algo-1)", "rank 1 (algo-2)"} <= labels
    assert len([event for event in merged["traceEvents"] if event.get("cat") == "step"]) == 8
    shown = service.clary("profile", job, "--last").stdout
    assert "rank 1 comes last" in shown
    assert "COMMUNICATION" in shown


def test_only_the_requested_ranks_are_profiled(service, job):
    page = json.loads(service.clary("profile", job, "--steps", "2", "--ranks", "1", "--json").stdout)
    assert [rank["rank"] for rank in page["summary"]["ranks"]] == [1]
    refused = service.clary("profile", job, "--steps", "0", check=False)
    assert (refused.returncode, "1 to 100 steps, got 0" in refused.stderr) == (1, True)


def test_a_requested_profile_is_taken_at_its_step_and_stored_like_in_sagemaker(service, aws, job):
    prefix = f"profiles/{job}/profiler-output/framework/1/"
    wanted = {"rank-0.trace.json.gz", "rank-1.trace.json.gz", "merged.trace.json.gz", "summary.json"}
    end_s = time.monotonic() + LIMIT_S
    while True:
        stored = aws.s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
        keys = {item["Key"].removeprefix(prefix) for item in stored}
        if wanted <= keys:
            break
        assert time.monotonic() < end_s, keys
        time.sleep(0.5)
    summary = json.loads(aws.s3.get_object(Bucket=BUCKET, Key=f"{prefix}summary.json")["Body"].read())
    assert [(rank["first_step"], rank["num_steps"]) for rank in summary["ranks"]] == [(2, 2), (2, 2)]


@pytest.mark.long
def test_equal_requests_share_a_profile_and_a_different_one_must_wait(service, job):
    first = _profile(service, job, "--seconds", "20")
    _wait_for(service, job, lambda page: page["asked"]["duration_s"] == 20 and page["states"])
    second = _profile(service, job, "--seconds", "20")
    refused = service.clary("profile", job, "--steps", "3", check=False)
    assert (refused.returncode, "another profile of" in refused.stderr) == (1, True)
    time.sleep(1.0)  # until the second request is sent
    service.clary("profile", job, "--cancel")
    pages = [json.loads(process.communicate(timeout=LIMIT_S)[0]) for process in (first, second)]
    assert pages[0]["number"] == pages[1]["number"]
    assert all(rank["window_ms"] < 20_000 for rank in pages[0]["summary"]["ranks"]), "what it had is kept"


def test_an_update_of_the_job_starts_a_profile(service, aws, job):
    update = {"ProfilingParameters": {"DetailedProfilingConfig": '{"StartStep": 0, "NumSteps": 1, }'}}
    aws.sagemaker.update_training_job(TrainingJobName=job, ProfilerConfig=update)
    last = _wait_for(service, job, lambda page: page["is_over"])
    assert last["reason"] == "asked for by UpdateTrainingJob"
    assert [rank["num_steps"] for rank in last["summary"]["ranks"]] == [1, 1]


@pytest.mark.long
def test_the_command_ends_with_the_name_of_a_rank_killed_while_profiled(service, aws, begin):
    name = begin("profile-killed")
    asking = _profile(service, name, "--seconds", "50")
    _wait_for(service, name, lambda page: [state["state"] for state in page["states"]].count("recording") == 2)
    victims = [pid for pid in processes_with("train.py") if _is_rank(pid, name, "1")]
    assert len(victims) == 1
    os.kill(victims[0], signal.SIGKILL)
    said, _ = asking.communicate(timeout=LIMIT_S)
    assert asking.returncode == 1
    page = json.loads(said)
    states = {rank["rank"]: rank for rank in page["summary"]["ranks"]}
    assert states[1]["state"] == "lost"
    assert "rank 1 ended before its trace was whole" in states[1]["words"]
    assert "rank 1 (algo-2) has no trace: rank 1 ended" in service.clary("profile", name, "--last", check=False).stdout
    wait(aws, name)
    assert "no program of" in service.clary("profile", name, check=False).stderr
    aws.sagemaker.delete_training_job(TrainingJobName=name)
    assert not Path(page["folder"]).exists()


def _wait_for(service, name, is_there):
    """Return the newest profile once the condition holds for it."""
    end_s = time.monotonic() + LIMIT_S
    while True:
        said = service.clary("profile", name, "--last", "--json", check=False)
        if said.stdout and is_there(page := json.loads(said.stdout)):
            return page
        assert time.monotonic() < end_s, said
        time.sleep(0.3)


def _profile(service, name, *options):
    """Start the command in the background."""
    return subprocess.Popen(
        [sys.executable, "-m", "clary.cli.main", "profile", name, *options, "--json"],
        env={**os.environ, **service.variables, "CLARY_HOME": str(service.home)},
        stdout=subprocess.PIPE,
        text=True,
    )


def _is_rank(pid, name, rank):
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"TRAINING_JOB_NAME={name}".encode() in variables and f"RANK={rank}".encode() in variables
