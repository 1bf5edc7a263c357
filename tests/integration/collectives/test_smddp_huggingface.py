"""Hugging Face's own use of SMDDP, unmodified, on hosts without GPUs: accelerate and transformers' Trainer."""

import json
import shutil

import pytest
from boto3_clients import Clients, unique
from program_jobs import model_of, run, script_request
from running_service import CLIENTS, SETTINGS, start_service

from needs import python_of

HF_PYTHON = python_of("hf")
pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("smddp-huggingface"),
    pytest.mark.needs("hf"),
]

SIZE = 4
SMDDP = {"sagemaker_distributed_dataparallel_enabled": "true"}
PYTORCHDDP = {"sagemaker_pytorch_ddp_enabled": "true"}
ACCELERATE = {"ACCELERATE_USE_SAGEMAKER": "true", "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE": "DATA_PARALLEL"}


@pytest.fixture(scope="module")
def aws(tmp_path_factory):
    home = tmp_path_factory.mktemp("hugging-face") / "home"
    settings = SETTINGS.replace("[environments]", f'"team/hf:*" = "hf"\n[environments]\nhf = "{HF_PYTHON}"')
    service = start_service(home, settings)
    yield Clients(service)
    service.clary("down", check=False)
    shutil.rmtree(home, ignore_errors=True)


def run_hf(aws, script, hyperparameters, **members):
    """Run a script of `clients/source` on two hosts with two ranks each; return the job's description at its end."""
    request = script_request(
        aws,
        unique("hf"),
        {"train.py": (CLIENTS / "source" / script).read_text()},
        hyperparameters=hyperparameters,
        instance_count=2,
        ResourceConfig={"InstanceType": "ml.p4d.24xlarge", "VolumeSizeInGB": 10},
        **members,
    )
    request["AlgorithmSpecification"]["TrainingImage"] = "team/hf:1"
    return run(aws, request, timeout_s=300)


def facts_of(aws, described):
    ranks = model_of(aws, described)
    return [json.loads(ranks[f"rank-{rank}.json"]) for rank in range(SIZE)]


@pytest.mark.long
def test_accelerate_selects_smddp_by_sagemaker_variables_and_stays_on_the_cpu(aws):
    for facts in facts_of(aws, run_hf(aws, "smddp_accelerate.py", SMDDP, Environment=ACCELERATE)):
        assert (facts["backend"], facts["processes"], facts["device"]) == ("smddp", SIZE, "cpu")
        assert facts["state"] == "DistributedType.MULTI_GPU"
        assert facts["wrapper"] == "DistributedDataParallel"
        assert facts["equal"]
        assert facts["loss"] < 1.0


@pytest.mark.long(10)
def test_trainer_uses_the_group_that_its_script_has_created(aws):
    for facts in facts_of(aws, run_hf(aws, "smddp_trainer.py", PYTORCHDDP)):
        assert (facts["backend"], facts["processes"]) == ("smddp", SIZE)
        assert facts["mode"] == "ParallelMode.DISTRIBUTED"
        assert facts["wrapper"] == "DistributedDataParallel"
        assert facts["equal"]


@pytest.mark.long
def test_trainer_under_smdistributed_uses_the_group_that_its_script_has_created(aws):
    for facts in facts_of(aws, run_hf(aws, "smddp_trainer.py", SMDDP)):
        assert (facts["backend"], facts["processes"]) == ("smddp", SIZE)
        assert facts["mode"] == "ParallelMode.SAGEMAKER_DATA_PARALLEL"
        assert facts["wrapper"] == "DistributedDataParallel"
        assert facts["equal"]
