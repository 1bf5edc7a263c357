"""Measurements of hosts of real jobs, read from a real service."""

import json
import os
import signal
import time
from itertools import pairwise

import pytest
from boto3_clients import Clients, job_request, unique, wait
from program_jobs import script_request
from running_service import start_service
from service_processes import service_pid
from warm_pools import end_pool, wait_for_pool

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("host-metrics-jobs"),
]

LIMIT_S = 120
MS_PER_S = 1000
AT_MS, LEAST, GREATEST, MEAN, COUNT, LAST = range(6)
TWO_HOSTS = {"InstanceCount": 2, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 10}
# An entry point that starts its own ranks, like SDK v3's.
BUSY = (
    "import time as t; d = bytearray(40_000_000); end = t.time() + 6; [0 for _ in iter(lambda: t.time() < end, False)]"
)
TWO_RANKS = f"for rank in 0 1; do RANK=$rank python3 -c '{BUSY}' & done; wait"


@pytest.fixture(scope="module")
def own_service(tmp_path_factory):
    """A service of this module."""
    own = start_service(tmp_path_factory.mktemp("metrics"))
    yield own
    own.clary("down")


def series_of(service, name, since="10m"):
    page = json.loads(service.clary("metrics", name, "--json", "--since", since).stdout)
    return page, {(one["host"], one["name"]): one["points"] for one in page["series"]}


def greatest(points):
    return max(point[GREATEST] for point in points if point[GREATEST] is not None)


@pytest.mark.long
def test_a_jobs_hosts_and_ranks_are_measured_from_their_preparation_to_their_end(own_service):
    aws, name = Clients(own_service), unique("measured")
    aws.sagemaker.create_training_job(**job_request(name, TWO_RANKS, ResourceConfig=TWO_HOSTS))
    facts = wait(aws, name, timeout_s=LIMIT_S)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    page, series = series_of(own_service, name)
    assert page["num_dropped"] == 0
    assert page["damaged"] == []
    for host in ("algo-1", "algo-2"):
        assert greatest(series[host, "host/cpu_percent"]) > 0
        # Two ranks on one host, each with 40 MB and an interpreter.
        assert greatest(series[host, "rank-0/memory_bytes"]) > 40_000_000
        assert greatest(series[host, "rank-1/memory_bytes"]) > 40_000_000
        assert greatest(series[host, "rank-0/num_processes"]) >= 1
        assert greatest(series[host, "rank-1/cpu_percent"]) > 0
        assert 0 < greatest(series[host, "host/memory_percent"]) <= 100
        assert 0 < greatest(series[host, "host/disk_used_percent"]) <= 100
        phases = [point[LEAST] for point in series[host, "host/phase"]]
        assert min(phases) <= 2.0, "rows of the preparation are there"
        assert greatest(series[host, "host/phase"]) >= 3.0
        assert (host, "host/network_sent_bytes_s") in series or os.geteuid() != 0
    assert not [name for _, name in series if name.startswith(("gpu-", "rank-2"))]


@pytest.mark.long
def test_the_last_rows_of_a_program_are_stored_when_its_job_has_ended(own_service):
    aws, name = Clients(own_service), unique("last")
    request = job_request(name, "sleep 3", ProfilerConfig={"ProfilingIntervalInMilliseconds": 100})
    aws.sagemaker.create_training_job(**request)
    wait(aws, name, timeout_s=LIMIT_S)
    ended_ms = aws.sagemaker.describe_training_job(TrainingJobName=name)["TrainingEndTime"].timestamp() * MS_PER_S
    _, series = series_of(own_service, name)
    points = series["algo-1", "host/num_processes"]
    assert sum(point[COUNT] for point in points) >= 10, "ten rows a second for three seconds, on a machine with work"
    assert ended_ms - points[-1][AT_MS] < 30 * MS_PER_S


@pytest.mark.long
def test_without_a_profiler_a_job_is_measured_rarely_and_with_interval_0_never(own_service, tmp_path):
    aws, name = Clients(own_service), unique("rare")
    request = job_request(name, "sleep 4", ProfilerConfig={"DisableProfiler": True})
    aws.sagemaker.create_training_job(**request)
    wait(aws, name, timeout_s=LIMIT_S)
    assert json.loads(own_service.clary("plan", name).stdout)["metrics_interval_s"] == 5.0
    _, series = series_of(own_service, name)
    assert sum(point[COUNT] for point in series["algo-1", "agent/memory_bytes"]) < 4 * 4
    silent = start_service(tmp_path / "silent", CLARY_METRICS_INTERVAL_S="0")
    try:
        aws, name = Clients(silent), unique("silent")
        aws.sagemaker.create_training_job(**job_request(name, "sleep 1"))
        assert wait(aws, name, timeout_s=LIMIT_S)["TrainingJobStatus"] == "Completed"
        assert series_of(silent, name)[1] == {}
    finally:
        silent.clary("down")


@pytest.mark.long
def test_hosts_that_are_plain_processes_are_measured_without_their_network(tmp_path):
    service = start_service(tmp_path / "plain", CLARY_ISOLATION="processes")
    try:
        aws, name = Clients(service), unique("plain")
        aws.sagemaker.create_training_job(**job_request(name, TWO_RANKS))
        facts = wait(aws, name, timeout_s=LIMIT_S)
        assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
        _, series = series_of(service, name)
        assert greatest(series["algo-1", "rank-1/memory_bytes"]) > 40_000_000
        assert not [quantity for _, quantity in series if "network" in quantity]
    finally:
        service.clary("down")


@pytest.mark.long
def test_rows_measured_while_the_service_was_down_are_stored_later(own_service):
    aws, name = Clients(own_service), unique("away")
    aws.sagemaker.create_training_job(**job_request(name, "sleep 15"))
    wait(aws, name, until=("Training", "Completed", "Failed"), timeout_s=LIMIT_S)
    os.kill(service_pid(own_service), signal.SIGKILL)
    time.sleep(3)
    own_service.clary("up")
    assert wait(Clients(own_service), name, timeout_s=LIMIT_S)["TrainingJobStatus"] == "Completed"
    page, series = series_of(own_service, name, "2m")  # points at steps of two seconds
    assert page["num_dropped"] == 0
    times = [point[AT_MS] for point in series["algo-1", "host/num_processes"]]
    gaps = [after - before for before, after in pairwise(times)]
    assert max(gaps) < 10 * MS_PER_S, "no hole where the service was away"


@pytest.mark.long
def test_each_job_of_a_warm_pool_is_measured_separately_including_forked_ranks(own_service):
    aws, names = Clients(own_service), []
    for _ in range(2):
        names.append(unique("pooled"))
        hyperparameters = {"sagemaker_torch_distributed_enabled": "true"}
        request = script_request(
            aws, names[-1], {"train.py": "import time; time.sleep(3)"}, hyperparameters=hyperparameters
        )
        request["ResourceConfig"]["KeepAlivePeriodInSeconds"] = 600
        aws.sagemaker.create_training_job(**request)
        facts = wait(aws, names[-1], timeout_s=LIMIT_S)
        assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
        page, series = series_of(own_service, names[-1])
        assert page["num_dropped"] == 0
        assert greatest(series["algo-1", "rank-0/num_processes"]) >= 1
        assert min(point[LEAST] for point in series["algo-1", "host/phase"]) <= 2.0
        wait_for_pool(aws, names[-1], "Available")
    end_pool(aws, names[-1])
