"""`clary dump` of real jobs at a standstill: it names the culprit; for a running job it names no rank."""

import json
import time

import pytest
from boto3_clients import unique, wait
from program_jobs import script_request, start

pytestmark = [pytest.mark.clients, pytest.mark.timeout(240), pytest.mark.xdist_group("dump-jobs")]

LIMIT_S = 120
SCRIPT = """
import os, signal, sys, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")

def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)

class Stuck(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        time.sleep(600)

def loading():
    next(iter(torch.utils.data.DataLoader(Stuck(), num_workers=1)))

def reading():
    os.mkfifo("/tmp/fifo")
    open("/tmp/fifo").read()

def in_another_order():
    dist.barrier()

def step(culprit):
    for number in range(100_000):
        if number == 5 and dist.get_rank() == 1 and culprit != "nobody":
            globals()[culprit]()
        dist.all_reduce(torch.ones(4))
        if number == 4:
            print("begins", flush=True)
        if culprit == "nobody":
            sum(range(20_000_000))  # a slow step, all of it computing

step(os.environ["CULPRIT"])
"""


@pytest.fixture
def job_with(service, aws):
    """A function that starts a job with a fault in rank 1; the fixture stops the job at the end."""
    started = []

    def begin(culprit):
        name = unique(culprit.replace("_", "-"))
        request = script_request(
            aws,
            name,
            {"train.py": SCRIPT},
            instance_count=2,
            hyperparameters={"sagemaker_torch_distributed_enabled": "true"},
            Environment={"CULPRIT": culprit},
        )
        started.append(start(aws, request))
        end_s = time.monotonic() + LIMIT_S
        while service.clary("logs", name, check=False).stdout.count("begins") < 2:
            assert time.monotonic() < end_s
            time.sleep(0.3)
        return name

    yield begin
    for name in started:
        if aws.sagemaker.describe_training_job(TrainingJobName=name)["TrainingJobStatus"] == "InProgress":
            aws.sagemaker.stop_training_job(TrainingJobName=name)
            wait(aws, name)


CULPRITS = {
    "stopped": ["is stopped by a signal (state T)", "stopped (train.py:8)"],
    "loading": [
        "waits for its data loader: loading (train.py:17)",
        "its worker stands at Stuck.__getitem__ (train.py:14)",
        "it has not entered all_reduce #6 of group",
    ],
    "reading": [
        "is held up by a file or disk: reading (train.py:21)",
        "1 rank waits for it in all_reduce; it has not entered all_reduce #6 of group",
    ],
    "in_another_order": [
        "rank 0 in all_reduce at step (train.py:30)",
        "rank 1 in barrier at in_another_order (train.py:24)",
        "rank 1 entered barrier #6 while rank 0 entered all_reduce #6",
    ],
}


@pytest.mark.parametrize("culprit", CULPRITS)
@pytest.mark.long
def test_the_cause_of_a_standstill_is_named_with_its_source_line(service, job_with, culprit):
    name = job_with(culprit)
    end_s = time.monotonic() + LIMIT_S
    while True:  # the last ranks may not have reached their wait yet
        said = service.clary("dump", name).stdout
        if all(words in said.replace("\n    ", " ") for words in CULPRITS[culprit][:1]) or time.monotonic() > end_s:
            break
        time.sleep(1)
    suspects = [line for line in said.splitlines() if line.startswith("SUSPECT")]
    assert len(suspects) == 1, said
    for words in CULPRITS[culprit]:
        place = said if culprit == "stopped" else suspects[0]
        assert words in place or _as_frame(words) in " ".join(said.split()), said
    if culprit != "in_another_order":
        assert "rank 1 on algo-2" in suspects[0]
        assert "<< stands out" in said
    again = service.clary("dump", name, "--last").stdout
    assert suspects[0] in again
    assert "LAST COLLECTIVE" in again
    assert "all_reduce #6, 4 float32" in again


def _as_frame(words):
    """Return `step (train.py:3)` in the form in which a group lists its calls."""
    return words.replace("(", "").replace(")", "")


@pytest.mark.long
def test_a_running_job_has_no_suspects_and_its_dump_is_available_as_json(service, job_with, aws):
    name = job_with("nobody")
    never = service.clary("dump", name, "--last", check=False)
    assert (never.returncode, never.stdout) == (3, "")
    assert f"{name} has no dump; none was taken" in never.stderr
    answer = json.loads(service.clary("dump", name, "--json").stdout)
    assert [item for item in answer["autopsy"]["suspicions"] if item["weight"] == "suspect"] == []
    assert answer["missing"] == []
    ranks = {process["rank"]: host for host, dump in answer["dumps"].items() for process in dump["processes"]}
    assert (ranks[0], ranks[1]) == ("algo-1", "algo-2")
    assert "<module>" in service.clary("dump", name, "--threads", "--last").stdout
    aws.sagemaker.stop_training_job(TrainingJobName=name)
    wait(aws, name)
    refused = service.clary("dump", name, check=False)
    assert refused.returncode == 1
    assert "no program of" in refused.stderr
    assert service.clary("dump", "nobody", check=False).returncode == 3


def test_the_last_dump_of_an_unknown_job_is_not_found(service):
    refused = service.clary("dump", "nobody", "--last", check=False)
    assert refused.returncode == 3
    assert "there is no training job 'nobody'" in refused.stderr
