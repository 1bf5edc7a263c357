"""transformers' Trainer with model parallelism, through its own call sites, on two real ranks without a GPU."""

import json
from pathlib import Path

import pytest
from smp_variables import VARIABLES
from torch_ranks import assert_passed, names

from needs import python_of

PROGRAM = Path(__file__).with_name("smp_trainer_program.py")
PYTHON = python_of("trainer")

pytestmark = pytest.mark.needs("trainer")


@pytest.mark.long(21)
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", names(PROGRAM))
def test_trainer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_ranks.TRAIN_PYTHON", PYTHON)
    assert_passed(
        PROGRAM,
        name,
        2,
        **VARIABLES,
        CLARY_CUDA_ON_CPU="1",
        LOCAL_WORLD_SIZE="2",  # as launchers set it: the number of simulated GPUs
        TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1",  # this transformers loads its files as torch before 2.6 did
        SM_HP_MP_PARAMETERS=json.dumps({"partitions": 2, "microbatches": 4, "ddp": True})
        .replace("{", "{{")
        .replace("}", "}}"),
        SM_FRAMEWORK_PARAMS=json.dumps({"sagemaker_mpi_enabled": True}).replace("{", "{{").replace("}", "}}"),
    )
