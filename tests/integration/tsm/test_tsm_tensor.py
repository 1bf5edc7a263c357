"""`torch.sagemaker` cuts layers over tensor ranks: over gloo, with models written here and with models of transformers,
which need another environment."""

from pathlib import Path

import pytest
import torch_ranks
from torch_ranks import assert_passed, names

from needs import python_of

TRAINING = Path(__file__).with_name("tsm_tensor_program.py")
STATES = Path(__file__).with_name("tsm_tensor_states_program.py")
PYTHON = python_of("hf")

pytestmark = [pytest.mark.timeout(200)]


def variables(families: str) -> dict[str, str]:
    return {"CLARY_TEST_BACKEND": "gloo", "CLARY_TEST_FAMILIES": families}


@pytest.mark.xdist_group("tsm-tensor-2")  # a program runs once in each worker: run all its functions in one worker
@pytest.mark.parametrize("name", names(TRAINING))
@pytest.mark.long
def test_training_on_2_ranks(name: str) -> None:
    assert_passed(TRAINING, name, 2, **variables("own"))


@pytest.mark.xdist_group("tsm-tensor-4")
@pytest.mark.parametrize("name", names(TRAINING))
@pytest.mark.long
def test_training_on_4_ranks(name: str) -> None:
    assert_passed(TRAINING, name, 4, **variables("own"))


@pytest.mark.xdist_group("tsm-tensor-states")
@pytest.mark.parametrize("name", names(STATES))
@pytest.mark.long
def test_states_of_models_cut_over_tensor_ranks(name: str) -> None:
    assert_passed(STATES, name, 4, **variables("own"))


@pytest.mark.long(10)
@pytest.mark.needs("hf")
@pytest.mark.xdist_group("tsm-tensor-transformers")
@pytest.mark.parametrize("name", names(TRAINING))
def test_training_of_transformers_models(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_ranks, "TRAIN_PYTHON", PYTHON)
    assert_passed(TRAINING, name, 2, **variables("transformers"))


@pytest.mark.needs("hf")
@pytest.mark.xdist_group("tsm-tensor-transformers-states")
@pytest.mark.parametrize("name", names(STATES))
@pytest.mark.long(25)
def test_states_of_transformers_models(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_ranks, "TRAIN_PYTHON", PYTHON)
    assert_passed(STATES, name, 4, **variables("transformers"))
