"""One host of a real job gets little processor time: the service names the host and the cause."""

import json
import os
import time

import pytest
from boto3_clients import Clients, unique, wait
from program_jobs import script_request, start

from clary.testing.slow_hosts import limit_processors, rank_processes

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("straggler-jobs")]

LIMIT_S = 120
PROCESSOR_SHARE = 0.04  # less than each host gets on a busy machine
SCRIPT = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
torch.set_num_threads(1)
dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 64))
optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
step = 0
while True:
    for batch in DataLoader(torch.ones(512, 256), batch_size=128):
        net(batch).sum().backward()
        optimizer.step()
        step += 1
        if step == 5:
            print("begins", flush=True)
"""


@pytest.fixture
def job(service):
    """The name of a job of two hosts that trains until the end of the test."""
    aws, name = Clients(service), unique("straggler")
    hyperparameters = {"sagemaker_torch_distributed_enabled": "true"}
    start(aws, script_request(aws, name, {"train.py": SCRIPT}, instance_count=2, hyperparameters=hyperparameters))
    try:
        until(lambda: service.clary("logs", name, check=False).stdout.count("begins") == 2)
        yield name
    finally:
        aws.sagemaker.stop_training_job(TrainingJobName=name)
        wait(aws, name)


def until(holds):
    end_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end_s, "it did not come to that in time"
        time.sleep(1.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may limit the processors of a job's host")
@pytest.mark.long
def test_a_host_with_little_processor_time_is_named_in_every_output(service, job):
    processes = rank_processes(job, "algo-2")
    assert set(processes.values()) == {1}
    for pid in processes:
        limit_processors(pid, share=PROCESSOR_SHARE)
    pages = []

    def is_found():
        pages.append(json.loads(service.clary("stragglers", job, "--json").stdout))
        verdict = pages[-1]["verdict"]
        return verdict["kind"] == "compute" and any("refuses algo-2" in words for words in verdict["evidence"])

    until(is_found)
    verdict = pages[-1]["verdict"]
    assert (verdict["host"], verdict["ranks"]) == ("algo-2", [1])
    ranks = {rank["rank"]: rank for rank in pages[-1]["ranks"]}
    assert ranks[0]["communication_s"] > ranks[1]["communication_s"], "rank 0 waits for rank 1"
    assert ranks[0]["host"] == "algo-1"
    said = service.clary("stragglers", job).stdout
    assert "COMMUNICATION" in said
    described = service.clary("describe", job).stdout
    assert "stragglers\n  algo-2 (rank 1) is slow: compute" in described
    facts = json.loads(service.clary("describe", job, "--json").stdout)
    assert any("algo-2 (rank 1) is slow: compute" in words for words in facts["warnings"])
    series = json.loads(service.clary("metrics", job, "--json", "--names", "rank-*/step*,host/network_r*").stdout)
    names = {(one["host"], one["name"]) for one in series["series"]}
    assert {("algo-2", "rank-1/steps"), ("algo-2", "rank-1/step_s"), ("algo-1", "rank-0/step_max_s")} <= names
    assert ("algo-1", "host/network_rtt_ms") in names
