"""SDK v3 lacks the estimators that the listings import; equivalent requests are sent by ModelTrainer."""

import json
import subprocess

import pytest
from running_service import SDK3_PYTHON
from seed_listings import CLIENT_TIMEOUT_S, HERE, completed_of, facts_of, printed, program

from needs import require_python

pytestmark = [pytest.mark.long(60), pytest.mark.clients, pytest.mark.timeout(600), pytest.mark.xdist_group("seeds")]


@pytest.fixture(scope="module")
def told(service, buckets, tmp_path_factory):
    """The outcome of every form, by name."""
    require_python(SDK3_PYTHON)
    folder = tmp_path_factory.mktemp("trainers")
    programs = {
        "smddp_program.py": printed("smddp_wrapped.txt"),
        "amp_program.py": printed("amp_names.txt"),
        "checkpoint_program.py": "",
        "mpi_program.py": "",
    }
    (folder / "source").mkdir()
    for name, listing in programs.items():
        (folder / "source" / name).write_text(program(name, listing))
    completed = subprocess.run(
        [str(SDK3_PYTHON), str(HERE / "trainer_client.py"), str(folder / "source"), str(folder / "told.json")],
        env=service.environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=CLIENT_TIMEOUT_S,
        check=False,
    )
    assert completed.returncode == 0, (completed.stdout + completed.stderr)[-6000:]
    return json.loads((folder / "told.json").read_text())


def test_v3_has_no_estimator_of_the_listings(told):
    assert told["missing"] == ["sagemaker.pytorch", "sagemaker.estimator", "sagemaker.horovod", "sagemaker.debugger"]


def test_v3_sends_data_parallel_ranks_by_torchrun_and_the_listing_wraps_their_model(told):
    facts = facts_of(completed_of(told["smddp"]))
    assert [(one["world_size"], one["backend"], one["is_one_model"]) for one in facts] == [(2, "smddp", True)] * 2


def test_v3_sends_mpi_by_its_class(told):
    facts = facts_of(completed_of(told["mpi"]))
    assert sorted((one["rank"], one["size"], one["sum"]) for one in facts) == [(0, 2, 3.0), (1, 2, 3.0)]


def test_v3_sends_amp_as_a_json_hyperparameter(told):
    log = completed_of(told["amp"])
    (facts,) = facts_of(log)
    assert facts["amp"] is True
    assert facts["dtypes"] == ["torch.bfloat16"]


def test_v3_sends_spot_by_compute_and_stopping_condition_with_checkpoints(told):
    (facts,) = facts_of(completed_of(told["spot"]))
    assert facts["found"] == []
    job = told["spot"]["job"]
    assert job["EnableManagedSpotTraining"] is True
    limits = job["StoppingCondition"]
    assert (limits["MaxRuntimeInSeconds"], limits["MaxWaitTimeInSeconds"]) == (1800, 3600)
    assert job["CheckpointConfig"]["LocalPath"] == "/opt/ml/checkpoints"


def test_v3_sends_a_warm_pool_by_compute(told):
    completed_of(told["warm_pool"])
    assert told["warm_pool"]["job"]["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 3600
    assert told["warm_pool"]["job"]["WarmPoolStatus"]["Status"] in ("Available", "InUse")
