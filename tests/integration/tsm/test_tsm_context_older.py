"""Models of transformers 4.37 and 4.46 under `torch.sagemaker`, with sequences cut over ranks."""

from pathlib import Path

import pytest
import torch_ranks
from torch_ranks import assert_passed, names

from needs import python_of

PROGRAM = Path(__file__).with_name("tsm_context_older_program.py")
VERSIONS = ("transformers-4.37", "transformers-4.46")

# a program runs once in each worker: run all its functions in one worker
pytestmark = pytest.mark.xdist_group("tsm-context-older")


@pytest.mark.long(12)
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.sweep("version")
@pytest.mark.parametrize("version", [pytest.param(one, marks=pytest.mark.needs(one)) for one in VERSIONS])
def test_context_of_older_transformers(version: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_ranks, "TRAIN_PYTHON", python_of(version))
    assert_passed(PROGRAM, name, 2, CLARY_TEST_BACKEND="gloo", CLARY_TEST_VERSION=version)
