"""SageMaker's libraries with SDK v2's TensorFlow estimator: its compiler, and SMP by `modelparallel`.

The SDK itself sends both requests.
"""

import json

import pytest
from boto3_clients import Clients, log_of
from framework_jobs import PROGRAMS
from running_service import SDK2_PYTHON
from tensorflow_jobs import PROGRAM, tensorflow_service, train_alone

pytestmark = [
    pytest.mark.clients,
    pytest.mark.needs("tensorflow", "sdk2"),
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("tensorflow-libraries"),
]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with tensorflow_service(tmp_path_factory.mktemp("tensorflow-libraries") / "home") as running:
        yield running


def run(service, form, program, *pairs):
    """Train in a job that the SDK submits; return its facts and its log."""
    _, facts = service.run_client(SDK2_PYTHON, "v2_tensorflow_libraries.py", form, str(program), *pairs)
    return facts, "\n".join(log_of(Clients(service), facts["name"]))


@pytest.mark.long(25)
def test_compiler_config_of_tensorflow_trains_the_same_and_the_log_explains_it(service, tmp_path):
    facts, log = run(service, "compiler", PROGRAM, "way=alone")
    assert facts["hyperparameters"]["sagemaker_training_compiler_enabled"] == "true"
    assert facts["hyperparameters"]["sagemaker_training_compiler_debug_mode"] == "true"
    found = json.loads(facts["files"]["rank-0.json"])
    alone = train_alone(tmp_path / "alone")
    assert found["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert found["weights"] == pytest.approx(alone["weights"], rel=1e-4)
    assert "here TensorFlow compiles operations on GPUs with XLA (TF_XLA_FLAGS=--tf_xla_auto_jit=2)" in log
    assert "On hosts without a GPU it has no effect, because XLA is slower there" in log
    assert "torch.compile" not in log


@pytest.mark.long(20)
def test_modelparallel_of_the_tensorflow_estimator_partitions_the_examples_model(service):
    facts, log = run(service, "modelparallel", PROGRAMS / "smp_tensorflow_digits.py")
    sent = facts["hyperparameters"]
    assert sent["sagemaker_mpi_enabled"] == "true"
    assert sent["sagemaker_mpi_num_of_processes_per_host"] == "2"
    assert json.loads(sent["mp_parameters"])["partitions"] == 2
    ranks = [json.loads(facts["files"][f"rank-{rank}.json"]) for rank in range(2)]
    for rank, found in enumerate(ranks):
        assert found["rank"] == [rank, 2, rank, 0, rank]
        assert found["partitions"] == 2
        assert found["losses"] == ranks[0]["losses"]
        assert found["losses"][-1] < found["losses"][0] / 3
        assert found["accuracy"] > 0.8
    assert sum(len(found["variables"]) for found in ranks) == 6
    assert {"checkpoints/mp_rank_0/checkpoint", "checkpoints/mp_rank_1/checkpoint", "1/saved_model.pb"} <= set(
        facts["files"]
    )
    assert "Partition assignments:" in log
