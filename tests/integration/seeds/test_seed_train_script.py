"""The listing of a train.py and its estimator: four hosts with eight ranks each, by mpirun, through SDK v2."""

import os
import re

import pytest
from running_service import SDK2_PYTHON
from seed_listings import Listing, completed_of, printed, run_listings

from needs import require_python
from sweeps import SEED

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600), pytest.mark.xdist_group("seeds")]

XLA = '        "pytorchxla": {"enabled": False},  # optional\n'
ACCOUNT = {"<account>": "000000000000"}
BESIDE = {"PyTorch(\n": 'PyTorch(\n    source_dir=".",\n'}


@pytest.mark.long
def test_the_printed_train_py_and_estimator_run_32_ranks(service, digits, buckets, tmp_path):
    if os.environ.get(SEED):
        pytest.skip("32 ranks take two minutes of two quiet cores: make test-all runs them")
    require_python(SDK2_PYTHON)
    listing = Listing(
        text=printed("mpi_estimator.txt"),
        program=printed("mnist_ddp.txt"),
        changes={**ACCOUNT, XLA: "", **BESIDE},
        beside=str(digits),
    )
    told = run_listings(service, SDK2_PYTHON, "estimator_client.py", tmp_path / "run", {"printed": listing})["printed"]
    log = completed_of(told)
    began = {int(rank) for line in log for rank in re.findall(r"\[1,(\d+)\]<stderr>:clary: CLARY_CUDA_ON_CPU=1", line)}
    assert began == set(range(32)), "each rank has begun, and mpirun ends with an error where one of them fails"
    assert told["hyperparameters"]["sagemaker_mpi_custom_mpi_options"] == '"--NCCL_DEBUG INFO"'
    assert told["job"]["RoleArn"] == "arn:aws:iam::000000000000:role/SageMakerRole"
    assert sum("channel training: 1 object" in line for line in log) == 4, "s3://my-bucket/data is on each host"
