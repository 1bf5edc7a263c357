"""Misspelt keys of the platform get a warning with the likely key; keys that SDKs send get no warning."""

import json
from pathlib import Path

import pytest

from clary.contract.settings.platform_keys import KNOWN_KEYS, warnings

ASSETS = next(parent for parent in Path(__file__).resolve().parents if parent.name == "tests") / "assets" / "requests"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("sagemaker_mpi_enable", "sagemaker_mpi_enabled"),
        ("sagemaker_mpi_num_processes_per_host", "sagemaker_mpi_num_of_processes_per_host"),
        ("sagemaker_torch_distributed_enable", "sagemaker_torch_distributed_enabled"),
        ("sagemaker_programm", "sagemaker_program"),
    ],
)
@pytest.mark.parametrize("has_command", [False, True])
def test_a_misspelt_key_gets_a_warning_with_the_nearest_name(written, meant, has_command):
    (sentence,) = warnings({written: "true"}, has_command=has_command)
    assert repr(written) in sentence
    assert sentence.endswith(f"did you mean {meant!r}?")


@pytest.mark.parametrize("name", ["sagemaker_use_mpi", "sagemaker_app", "sagemaker_image"])
def test_the_prefix_that_all_keys_have_makes_no_two_names_similar(name):
    (sentence,) = warnings({name: "true"}, has_command=False)
    assert "did you mean" not in sentence
    assert warnings({name: "true"}, has_command=True) == ()


def test_an_unknown_key_gets_a_warning_unless_the_program_may_read_it():
    assert len(warnings({"sagemaker_my_own": "1"}, has_command=False)) == 1
    assert warnings({"sagemaker_my_own": "1"}, has_command=True) == ()


def test_known_keys_and_keys_of_users_get_no_warning():
    assert warnings({**dict.fromkeys(KNOWN_KEYS, "0"), "sage": "1", "epochs": "1"}, has_command=False) == ()


@pytest.mark.parametrize("value", ["yes", "on", '"maybe"', "tru"])
def test_a_switch_that_is_neither_true_nor_false_gets_a_warning(value):
    (sentence,) = warnings({"sagemaker_mpi_enabled": value}, has_command=False)
    assert sentence.startswith("hyperparameter 'sagemaker_mpi_enabled' counts as false: expected true or false, got ")
    assert warnings({"sagemaker_mpi_enabled": value}, has_command=True) == ()


@pytest.mark.parametrize("value", ["true", "false", "True", '"True"', "1", "0", "null", ""])
def test_a_switch_in_either_dialect_gets_no_warning(value):
    assert warnings(dict.fromkeys(("sagemaker_mpi_enabled", "sagemaker_amp"), value), has_command=False) == ()


def test_the_launcher_that_another_one_overrides_gets_a_warning():
    both = {"sagemaker_torch_distributed_enabled": "true", "sagemaker_mpi_enabled": "true"}
    (sentence,) = warnings(both, has_command=False)
    assert sentence == (
        "hyperparameter 'sagemaker_torch_distributed_enabled' has no effect beside 'sagemaker_mpi_enabled', which "
        "chooses the launcher"
    )
    assert warnings({**both, "sagemaker_mpi_enabled": "false"}, has_command=False) == ()
    library = {"sagemaker_torch_distributed_enabled": "true", "sagemaker_distributed_dataparallel_enabled": "true"}
    assert warnings(library, has_command=False) == (), "the SDK sends both, and the library goes with every launcher"


def test_every_key_of_the_recorded_requests_is_known():
    for path in ASSETS.glob("*.CreateTrainingJob.json"):
        assert warnings(json.loads(path.read_text()).get("HyperParameters") or {}, has_command=False) == (), path.name
