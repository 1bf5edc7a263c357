"""Tensor-parallel models of transformers compared with the unsharded models, in environments with three versions of
transformers: the newest, one of the time of SMP v1, and one between them."""

from pathlib import Path

import pytest
import torch_ranks
from torch_ranks import assert_passed, names

from needs import python_of, require

PROGRAM = Path(__file__).with_name("tensor_huggingface_program.py")
PYTHON = python_of("hf")
OLDER = {"trainer": "4.28", "transformers-4.46": "4.46"}  # environment -> its version of transformers
OF_ALL_VERSIONS = [
    "test_gpt2",
    "test_gpt2_with_scores_scaled_by_layer",
    "test_gpt_neo",
    "test_gpt_neox",
    "test_gptj",
    "test_bert",
    "test_roberta",
    "test_opt",
    "test_opt_with_another_head",
    "test_t5",
    "test_llama",
    "test_eager_attention_masks",
    "test_blocks_of_other_models",
    "test_blocks_of_a_classifier",
    "test_a_class_registered_late",
]

pytestmark = pytest.mark.xdist_group("tensor-huggingface")  # a program runs once per worker


@pytest.mark.needs("hf")
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long
def test_tensor_huggingface(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_ranks, "TRAIN_PYTHON", PYTHON)
    assert_passed(PROGRAM, name, 2, CLARY_TEST_BACKEND="gloo", CLARY_TEST_TRANSFORMERS="newest")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("environment", OLDER)
@pytest.mark.parametrize("name", OF_ALL_VERSIONS)
@pytest.mark.long(60)
def test_tensor_huggingface_of_older_versions(name: str, environment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require(environment)
    monkeypatch.setattr(torch_ranks, "TRAIN_PYTHON", python_of(environment))
    assert_passed(PROGRAM, name, 2, CLARY_TEST_BACKEND="gloo", CLARY_TEST_TRANSFORMERS=OLDER[environment])
