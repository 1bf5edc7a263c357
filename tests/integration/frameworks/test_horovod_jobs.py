"""Horovod in jobs: SDK v2 under `mpi`, plain ranks, horovodrun, a lost rank, and elastic training over attempts."""

import json
import os
import signal
import subprocess

import pytest
from attempts_of_jobs import agent_of, wait_for_line
from boto3_clients import Clients, log_of, unique, wait
from framework_jobs import PROGRAMS, digits_channel, digits_file
from horovod_programs import TRAIN_PYTHON
from program_jobs import failure_of, model_of, run, script_request, start
from running_service import SDK2_PYTHON, SETTINGS, start_service

pytestmark = [
    pytest.mark.clients,
    pytest.mark.needs("sdk2"),
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("horovod-jobs"),
]

MPI = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}
TORCH = {"sagemaker_torch_distributed_enabled": "true"}
SIZE = 4


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    running = start_service(tmp_path_factory.mktemp("horovod") / "home", SETTINGS)
    yield running
    running.clary("down", check=False)


@pytest.fixture(scope="module")
def aws(service):
    return Clients(service)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the results of one process that trains on the same batches without a job."""
    folder = tmp_path_factory.mktemp("horovod-alone")
    root = PROGRAMS.parents[2]
    command = [TRAIN_PYTHON, PROGRAMS / "horovod_digits.py", "--data", digits_file().parent, "--out", folder]
    environment = {"PYTHONPATH": f"{root / 'src/clary/compat'}:{root / 'src'}", "PATH": "/usr/bin:/bin"}
    subprocess.run(command, check=True, timeout=120, env=environment)
    return json.loads((folder / "rank-0.json").read_text())


def check_ranks(ranks, alone, size=SIZE):
    """Assert that every rank had the right rank and host, and trained like one process."""
    assert [facts["rank"] for facts in ranks] == list(range(size))
    for rank, facts in enumerate(ranks):
        assert (facts["size"], facts["local_rank"], facts["local_size"]) == (size, rank % 2, 2)
        assert (facts["cross_rank"], facts["cross_size"]) == (rank // 2, size // 2)
        assert facts["host"] == f"algo-{rank // 2 + 1}"
        assert facts["equal"], "models of ranks differ"
        assert facts["losses"] == pytest.approx(alone["losses"], rel=2e-3, abs=2e-4)
        assert facts["accuracy"] == pytest.approx(alone["accuracy"], abs=0.01)
    assert alone["accuracy"] > 0.85


@pytest.mark.long(60)
def test_sdk_v2_trains_with_horovod_under_mpi_like_one_process(service, alone):
    arguments = (str(PROGRAMS), "horovod_digits.py", str(digits_file()))
    _, facts = service.run_client(SDK2_PYTHON, "v2_horovod.py", *arguments)
    check_ranks([json.loads(facts["ranks"][f"rank-{rank}.json"]) for rank in range(SIZE)], alone)


def horovod_request(aws, label, script, hyperparameters, *, instance_count=2, **members):
    """Return a request for hosts with two ranks each."""
    return script_request(
        aws,
        unique(label),
        {"train.py": script},
        hyperparameters=hyperparameters,
        instance_count=instance_count,
        ResourceConfig={"InstanceType": "ml.p3.8xlarge", "VolumeSizeInGB": 10},
        **members,
    )


@pytest.mark.long(10)
def test_ranks_started_by_torch_distributed_can_use_horovod(aws, alone):
    script = (PROGRAMS / "horovod_digits.py").read_text()
    request = horovod_request(aws, "hvd-torch", script, TORCH, InputDataConfig=[digits_channel(aws)])
    described = run(aws, request, timeout_s=200)
    files = model_of(aws, described)
    ranks = [json.loads(content) for _, content in sorted(files.items())]
    assert len(ranks) == 2 * ranks[0]["local_size"]
    assert all(facts["equal"] for facts in ranks)
    assert ranks[0]["losses"] == pytest.approx(alone["losses"], rel=2e-3, abs=2e-4)


DIES = """
import os, signal
import torch, horovod.torch as hvd
hvd.init()
for step in range(1_000_000):
    if step == 20 and hvd.rank() == 2: os.kill(os.getpid(), signal.SIGKILL)
    hvd.allreduce(torch.ones(100_000), name="gradient")
"""


@pytest.mark.long(10)
def test_a_rank_that_dies_is_the_first_cause_and_its_peers_are_not(aws):
    reason = failure_of(run(aws, horovod_request(aws, "hvd-dies", DIES, MPI), timeout_s=150))
    assert "rank 2" in reason, reason
    assert "signal 9" in reason, reason


RUNS = """
import subprocess, sys
program = "import horovod.torch as hvd; hvd.init(); print('of', hvd.size(), flush=True)"
subprocess.run(["horovodrun", "-np", "2", "-H", "localhost:2", sys.executable, "-c", program], check=True)
"""


@pytest.mark.long(60)
def test_horovodrun_is_on_the_path_of_jobs(aws):
    request = horovod_request(aws, "hvd-run", RUNS, {}, instance_count=1)
    described = run(aws, request, timeout_s=120)
    lines = log_of(aws, request["TrainingJobName"])
    assert described["TrainingJobStatus"] == "Completed", lines
    assert {line.rsplit("[", 1)[-1] for line in lines if line.endswith("of 2")} == {
        "0]<stdout>:of 2",
        "1]<stdout>:of 2",
    }


ELASTIC = """
import time
import torch, horovod.torch as hvd
hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())

@hvd.elastic.run
def train(state):
    while state.step < 40:
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.step += 1
        print("step", state.step, flush=True)
        state.commit()
        time.sleep(0.6)

state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
train(state)
print("finished at", state.step, flush=True)
"""


@pytest.mark.long(60)
def test_an_elastic_job_resumes_from_its_last_commit_after_a_host_is_lost(service, aws):
    uri = f"s3://clary/{unique('hvd-commits')}/"
    request = horovod_request(aws, "hvd-elastic", ELASTIC, TORCH, CheckpointConfig={"S3Uri": uri})
    name = start(aws, request)
    wait_for_line(service, name, "step 25")
    os.kill(agent_of(service, name, "algo-2"), signal.SIGKILL)
    described = wait(aws, name, timeout_s=200)
    assert described["TrainingJobStatus"] == "Completed", described.get("FailureReason")
    assert json.loads(service.clary("describe", name, "--json").stdout)["attempt"] == 2
    lines = service.clary("logs", name, "--attempt", "2").stdout.splitlines()
    steps = [int(line.rsplit("step ", 1)[1]) for line in lines if "| step " in line or "]step " in line]
    assert steps, lines[-20:]
    assert min(steps) > 1, "the second attempt began at the beginning"
    assert max(steps) == 40
