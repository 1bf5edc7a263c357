"""transformers' Trainer under SMP v1 on hosts without a GPU, in three versions: training, saving, resuming.

The script uses no name of Clary. Results are compared with one process that trains on the same batches.
"""

import json

import pytest
from boto3_clients import Clients, unique
from library_jobs import facts_of, library_service, request_of, run_ranks

PROGRAM = "trainer_smp_program.py"
ENVIRONMENTS = {"trainer": "4.28.", "trainer-4.46": "4.46.", "hf": "5.24."}
WEIGHTS = {"trainer": "pytorch_model.bin", "trainer-4.46": "model.safetensors", "hf": "model.safetensors"}
CUTS = {  # ranks, partitions, samples of a replica's step, files of the optimizer
    "pipeline": (2, 2, 16, {"optimizer.pt_0", "optimizer.pt_1"}),
    "replicas": (2, 1, 8, {"optimizer.pt_0"}),
    "both": (4, 2, 8, {"optimizer.pt_0", "optimizer.pt_1"}),
}
NUM_SAMPLES, EVALUATED = 16, 12
OLD_FILES = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}  # 4.28 and 4.46 load files like torch before 2.6

pytestmark = [
    pytest.mark.timeout(500),
    pytest.mark.xdist_group("trainer-smp"),
    pytest.mark.needs(*ENVIRONMENTS),
]


@pytest.fixture(scope="module")
def aws(tmp_path_factory):
    with library_service(tmp_path_factory.mktemp("trainer-smp") / "home", *ENVIRONMENTS) as service:
        yield Clients(service)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return a function that maps an environment to the facts of one process without a job."""
    found = {}

    def run_alone(environment):
        if environment not in found:
            folder = tmp_path_factory.mktemp("alone")
            (found[environment],) = run_ranks(
                environment, PROGRAM, num_ranks=1, folder=folder, CHECKPOINTS=str(folder / "checkpoints")
            )
        return found[environment]

    return run_alone


def keys_of(num_partitions):
    return {"partitions": num_partitions, "microbatches": 2, "ddp": True}


def check(found, alone, environment, *, cut):
    """Assert that ranks have trained and evaluated like one process, and saved half-way."""
    _, num_partitions, _, optimizer_files = CUTS[cut]
    for facts in found:
        assert facts["version"].startswith(ENVIRONMENTS[environment])
        assert (facts["mode"], facts["device"]) == ("SAGEMAKER_MODEL_PARALLEL", "cpu")
        assert facts["replicas"] == len(found) // num_partitions
        assert (facts["wrapper"], facts["optimizer"]) == ("DistributedModel", "DistributedOptimizer")
        assert facts["epochs"] == alone["epochs"]  # no rank has skipped samples or used them twice
        assert facts["evaluation"]["samples"] == EVALUATED
        assert facts["evaluation"]["labels"] == alone["evaluation"]["labels"]
        assert "user_content.pt" in facts["saved"]
    saved = {name for facts in found for name in facts["saved"]}  # each host has its own folder
    assert optimizer_files | {WEIGHTS[environment]} <= saved
    assert found[0]["losses"] == pytest.approx(alone["losses"], abs=2e-4)  # old versions round losses to four places
    if found[0]["replicas"] == 1:  # with more replicas, the mean includes the samples that pad the last batch
        assert found[0]["evaluation"]["loss"] == pytest.approx(alone["evaluation"]["loss"], rel=1e-4)


@pytest.mark.long(70)
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.sweep("environment", "cut")
def test_ranks_train_save_and_resume_like_one_process(environment, cut, alone, tmp_path):
    num_ranks, num_partitions, batch, _ = CUTS[cut]
    assert batch * (num_ranks // num_partitions) == NUM_SAMPLES
    for resume in ("no", "yes"):
        found = run_ranks(
            environment,
            PROGRAM,
            f"--batch={batch}",
            f"--resume={resume}",
            num_ranks=num_ranks,
            folder=tmp_path / resume,
            CHECKPOINTS=str(tmp_path / "checkpoints"),
            SM_FRAMEWORK_PARAMS=json.dumps({"sagemaker_mpi_enabled": True}),
            SM_HP_MP_PARAMETERS=json.dumps(keys_of(num_partitions)),
            **OLD_FILES,
        )
        check(found, alone(environment), environment, cut=cut)


def run_job(aws, environment, place, *, resume):
    """Run the program on two hosts with two ranks each: a pipeline on each host, replicas between the hosts."""
    hyperparameters = {
        "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": "2",
        "mp_parameters": json.dumps(keys_of(2)),
        "batch": "8",
        "resume": resume,
    }
    request = request_of(
        aws,
        environment,
        PROGRAM,
        hyperparameters,
        CheckpointConfig={"S3Uri": place},
        Environment=OLD_FILES,
    )
    return facts_of(aws, request, num_ranks=4)


@pytest.mark.long(35)
def test_the_newest_version_trains_and_saves_in_a_job_of_two_hosts(aws, alone):
    found = run_job(aws, "hf", f"s3://clary/checkpoints/{unique('hf')}", resume="no")
    check(found, alone("hf"), "hf", cut="both")


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.long(135)
def test_a_second_job_resumes_from_the_first_jobs_checkpoint(aws, alone, environment):
    place = f"s3://clary/checkpoints/{unique('resumed')}"
    for resume in ("no", "yes"):
        check(run_job(aws, environment, place, resume=resume), alone(environment), environment, cut="both")
