"""Models of transformers over eight real ranks of SMP v1, in pipelines, tensor groups, replicas and shards."""

from pathlib import Path

import pytest
from smp_variables import VARIABLES
from torch_ranks import names, outcomes

from needs import python_of

PROGRAM = Path(__file__).with_name("smp_eight_huggingface_program.py")
PYTHON = python_of("hf")
GANG_LIMIT_S = 400.0

pytestmark = pytest.mark.needs("hf")


@pytest.mark.timeout(GANG_LIMIT_S + 50)
@pytest.mark.xdist_group("smp-eight-huggingface")
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long
def test_models_of_transformers_on_eight_ranks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_ranks.TRAIN_PYTHON", PYTHON)
    told = outcomes(PROGRAM, 8, GANG_LIMIT_S, **VARIABLES | {"CLARY_PARALLEL_TIMEOUT_S": "60"})[name]
    words = "\n".join(f"rank {rank}: {failure}" for rank, failure in enumerate(told) if failure is not None)
    assert not words, f"{name}\n{words}"
