"""jax in jobs: `jax.distributed.initialize()` without arguments, sums and training over several hosts.

Results are compared with one process of jax, which trains on the same digits without a job.
"""

import json
import subprocess

import pytest
from boto3_clients import Clients, log_of, unique
from framework_jobs import PROGRAMS, digits_channel, digits_file, framework_service
from program_jobs import failure_of, model_of, run, script_request

from needs import python_of

pytestmark = [
    pytest.mark.clients,
    pytest.mark.needs("jax"),
    pytest.mark.needs("sdk2"),
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("jax-jobs"),
]

IMAGE = "team/jax:1"
TORCH = {"sagemaker_torch_distributed_enabled": "true"}
MPI = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}
STEPS = 30


@pytest.fixture(scope="module")
def aws(tmp_path_factory):
    with framework_service(tmp_path_factory.mktemp("jax") / "home", "jax", image="team/jax:*") as service:
        yield Clients(service)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the results of one process without a job."""
    folder = tmp_path_factory.mktemp("jax-alone")
    command = [python_of("jax"), PROGRAMS / "jax_digits.py", "--alone", "--out", folder]
    command += ["--data", digits_file().parent, "--steps", str(STEPS)]
    subprocess.run(command, check=True, timeout=120)
    return json.loads((folder / "process-0.json").read_text())


def train(aws, label, hyperparameters, *, num_hosts=2, instance_type="ml.m5.large", **members):
    """Run the training as a job; return the job's name, and the results of each process."""
    request = script_request(
        aws,
        unique(label),
        {"train.py": (PROGRAMS / "jax_digits.py").read_text()},
        hyperparameters={"steps": str(STEPS), **hyperparameters},
        instance_count=num_hosts,
        ResourceConfig={"InstanceType": instance_type, "VolumeSizeInGB": 10},
        InputDataConfig=[digits_channel(aws)],
        **members,
    )
    request["AlgorithmSpecification"]["TrainingImage"] = IMAGE
    described = run(aws, request, timeout_s=200)
    assert described["TrainingJobStatus"] == "Completed", log_of(aws, request["TrainingJobName"])
    files = model_of(aws, described)
    return request["TrainingJobName"], [json.loads(files[f"process-{process}.json"]) for process in range(len(files))]


def check(found, alone, *, number):
    """Assert that all processes formed a group, summed, and trained like one process."""
    assert [facts["process"] for facts in found] == list(range(number))
    for facts in found:
        assert facts["number"] == number
        assert facts["devices"] == [1, number]
        assert facts["sums"] == [2.0**number - 1]
        assert facts["losses"] == pytest.approx(alone["losses"], rel=1e-4)
        assert facts["weights"] == pytest.approx(alone["weights"], rel=1e-4)
        assert (facts["losses"], facts["weights"]) == (found[0]["losses"], found[0]["weights"])
    assert found[0]["losses"][-1] < 0.5 * found[0]["losses"][0]


@pytest.mark.long(10)
def test_hosts_without_a_distribution_initialize_without_arguments(aws, alone):
    _, found = train(aws, "jax-plain", {})
    check(found, alone, number=2)


@pytest.mark.parametrize("form", [TORCH, MPI], ids=["torch_distributed", "mpi"])
@pytest.mark.long(10)
def test_more_ranks_than_hosts_initialize_without_arguments(aws, alone, form):
    instance_type = "ml.p4d.24xlarge" if form is TORCH else "ml.m5.large"
    _, found = train(aws, "jax-ranks", form, instance_type=instance_type)
    check(found, alone, number=4)


@pytest.mark.long(60)
def test_hosts_of_plain_processes_initialize_without_arguments(tmp_path, alone):
    images = {"image": "team/jax:*", "CLARY_ISOLATION": "processes"}
    with framework_service(tmp_path / "home", "jax", **images) as service:
        _, found = train(Clients(service), "jax-shared", {})
    check(found, alone, number=2)


DIES = """
import os, signal, sys, time
import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils
jax.distributed.initialize()
for step in range(100_000):
    if step == 5 and jax.process_index() == 1:
        if "--raises" in sys.argv: raise ValueError("of process 1 alone")
        os.kill(os.getpid(), signal.SIGKILL)
    multihost_utils.process_allgather(jnp.ones(10))
"""


@pytest.mark.long(10)
def test_a_process_that_dies_is_the_first_cause_and_ends_the_job(aws):
    request = script_request(aws, unique("jax-dies"), {"train.py": DIES}, instance_count=2)
    request["AlgorithmSpecification"]["TrainingImage"] = IMAGE
    reason = failure_of(run(aws, request, timeout_s=120))
    assert "algo-2" in reason
    assert "signal 9" in reason


@pytest.mark.long(13)
def test_an_exception_ends_the_job_at_once_despite_jaxs_barrier_at_exit(aws):
    request = script_request(aws, unique("jax-raises"), {"train.py": DIES}, instance_count=2)
    request["AlgorithmSpecification"]["TrainingImage"] = IMAGE
    request["HyperParameters"]["raises"] = "1"
    reason = failure_of(run(aws, request, timeout_s=60))  # jax's barrier at exit would wait 300 s
    assert "algo-2" in reason
    assert "ValueError: of process 1 alone" in reason
