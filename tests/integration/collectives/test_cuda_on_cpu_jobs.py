"""Jobs with the hyperparameter that maps CUDA to the CPU: scripts for GPUs run unchanged, on one host and on two."""

from pathlib import Path

import pytest
from boto3_clients import log_of, unique
from program_jobs import failure_of, model_of, run, script_request

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600), pytest.mark.xdist_group("cuda-on-cpu-jobs")]

SCRIPTS = Path(__file__).parent / "cuda_scripts"
ON_CPU = {"sagemaker_clary_cuda_on_cpu": "true"}
NOTICE = "clary: CLARY_CUDA_ON_CPU=1: this process computes on the CPU"


def request(aws, label, script, hyperparameters, **members):
    files = {"train.py": (SCRIPTS / script).read_text()}
    return script_request(aws, unique(label), files, hyperparameters=hyperparameters, **members)


def test_a_job_for_one_gpu_trains_and_its_log_has_the_notice(aws):
    facts = run(aws, request(aws, "cuda-mnist", "mnist.py", {**ON_CPU, "epochs": "1"}), timeout_s=250)
    assert list(model_of(aws, facts)) == ["model.pth"]
    lines = log_of(aws, facts["TrainingJobName"])
    assert sum(NOTICE in line for line in lines) == 1
    assert "saved and loaded" in lines


@pytest.mark.long(10)
def test_ranks_on_two_hosts_train_with_backend_nccl(aws):
    facts = run(
        aws,
        request(
            aws,
            "cuda-ddp",
            "ddp_amp.py",
            {**ON_CPU, "sagemaker_torch_distributed_enabled": "true"},
            instance_count=2,
            ResourceConfig={"InstanceType": "ml.p4d.24xlarge", "VolumeSizeInGB": 10},
        ),
        timeout_s=250,
    )
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")


def test_without_the_hyperparameter_the_same_job_fails_for_lack_of_a_gpu(aws):
    facts = run(
        aws, request(aws, "cuda-none", "ddp_amp.py", {"sagemaker_torch_distributed_enabled": "true"}), timeout_s=250
    )
    assert "this script needs a GPU" in failure_of(facts)
