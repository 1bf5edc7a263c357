"""MXNet in jobs: scheduler, servers and workers on two hosts, a training with gluon, and workers that fail."""

import json
import time

import pytest
from boto3_clients import Clients, log_of, unique
from framework_jobs import PROGRAMS, digits_channel, digits_file, framework_service
from program_jobs import failure_of, model_of, processes_with, run, script_request, wait_for_none
from running_service import SDK2_PYTHON

pytestmark = [
    pytest.mark.clients,
    pytest.mark.needs("mxnet"),
    pytest.mark.needs("sdk2"),
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("mxnet-jobs"),
]

IMAGE = "763104351884.dkr.ecr.us-west-2.amazonaws.com/mxnet-training:1.9.0-cpu-py38"
SERVERS = {"sagemaker_parameter_server_enabled": "true"}
SCRIPT = PROGRAMS / "mxnet_digits.py"
NUM_HOSTS = 2


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with framework_service(tmp_path_factory.mktemp("mxnet") / "home", "mxnet", image="mxnet-training:*") as running:
        yield running


@pytest.fixture(scope="module")
def aws(service):
    return Clients(service)


def request_for(aws, label, text, hyperparameters=None, **members):
    request = script_request(
        aws,
        unique(label),
        {"train.py": text},
        hyperparameters={**SERVERS, **(hyperparameters or {})},
        instance_count=NUM_HOSTS,
        **members,
    )
    request["AlgorithmSpecification"]["TrainingImage"] = IMAGE
    return request


def check(found):
    """Assert that all hosts trained the same model."""
    assert sorted(facts["rank"] for facts in found) == list(range(NUM_HOSTS))
    for facts in found:
        assert (facts["workers"], facts["kind"]) == (NUM_HOSTS, "dist_sync")
        assert facts["weights"] == found[0]["weights"], "hosts differ"
        assert facts["losses"][-1] < 0.6 * facts["losses"][0]
        assert facts["accuracy"] > 0.9


@pytest.mark.long(60)
def test_hosts_train_one_model_through_parameter_servers_that_leave_no_process(aws):
    request = request_for(aws, "mxnet-sync", SCRIPT.read_text(), InputDataConfig=[digits_channel(aws)])
    described = run(aws, request, timeout_s=200)
    assert described["TrainingJobStatus"] == "Completed", log_of(aws, request["TrainingJobName"])
    found = [json.loads(body) for _, body in sorted(model_of(aws, described).items())]
    assert len(found) == NUM_HOSTS
    check(found)
    assert not wait_for_none(lambda: processes_with("clary_parameter_server"))


@pytest.mark.parametrize("argument", ["distribution", "distributions"])
@pytest.mark.sweep("argument")
@pytest.mark.long(10)
def test_sdk_v2_accepts_the_distribution_by_its_v2_and_its_v1_argument_name(service, argument):
    _, facts = service.run_client(SDK2_PYTHON, "v2_mxnet.py", argument, str(SCRIPT), str(digits_file()))
    check(list(facts["hosts"].values()))


FAILS = """
import os, signal, subprocess, sys, time
import mxnet as mx
how = sys.argv[sys.argv.index("--how") + 1]
store = mx.kv.create("dist_async" if how == "async" else "dist_sync")
values = mx.nd.ones((10, 10))
store.init("w", values)
for step in range(100_000):
    if step == 5 and store.rank == 1:
        if how == "killed": os.kill(os.getpid(), signal.SIGKILL)
        if how == "raises": raise ValueError("of worker 1 alone")
        if how == "server":
            found = subprocess.check_output(["pgrep", "-f", "import mxnet$"], text=True)
            for pid in found.split(): os.kill(int(pid), signal.SIGKILL)
    store.push("w", values)
    store.pull("w", out=values)
    mx.nd.waitall()
"""


@pytest.mark.long(18)
@pytest.mark.sweep("how")
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("killed", ["signal 9"]),
        ("raises", ["ValueError: of worker 1 alone"]),
        ("server", ["parameter server ended with signal 9"]),
        ("async", ["Updater needs to be set for async mode"]),
    ],
)
def test_a_worker_or_a_server_that_fails_ends_the_job_with_its_reason(aws, how, words):
    request = request_for(aws, f"mxnet-{how}", FAILS, {"how": how})
    begun_s = time.monotonic()
    reason = failure_of(run(aws, request, timeout_s=90))
    print(how, time.monotonic() - begun_s, reason)
    assert all(word in reason for word in words), reason
    assert not wait_for_none(lambda: processes_with("clary_parameter_server"))


HOROVOD = """
import os, sys
sys.argv[1:] = [os.environ["SM_CHANNEL_DIGITS"], os.environ["SM_MODEL_DIR"]]
import horovod_program
horovod_program.main()
"""


@pytest.mark.long(60)
def test_the_mpi_distribution_runs_horovod_on_two_hosts(aws):
    request = script_request(
        aws,
        unique("mxnet-horovod"),
        {"train.py": HOROVOD, "horovod_program.py": (PROGRAMS / "horovod_mxnet_program.py").read_text()},
        hyperparameters={"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "1"},
        instance_count=NUM_HOSTS,
        InputDataConfig=[digits_channel(aws)],
    )
    request["AlgorithmSpecification"]["TrainingImage"] = IMAGE
    described = run(aws, request, timeout_s=200)
    assert described["TrainingJobStatus"] == "Completed", log_of(aws, request["TrainingJobName"])
    ranks = [json.loads(body) for _, body in sorted(model_of(aws, described).items())]
    assert [facts["size"] for facts in ranks] == [NUM_HOSTS] * NUM_HOSTS
    assert ranks[0] == ranks[1]
    losses = ranks[0]["trainer"]["losses"]
    assert losses[-1] < 0.5 * losses[0]
