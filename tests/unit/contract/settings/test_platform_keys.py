"""Misspelt keys of the platform are told with the likely meaning; keys that SDKs send are not told."""

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
def test_a_misspelt_key_is_told_of_with_the_nearest_name(written, meant, has_command):
    (sentence,) = warnings({written: "true"}, has_command=has_command)
    assert repr(written) in sentence
    assert sentence.endswith(f"did you mean {meant!r}?")


def test_a_key_of_nobody_is_told_of_unless_the_program_may_read_it():
    assert len(warnings({"sagemaker_my_own": "1"}, has_command=False)) == 1
    assert warnings({"sagemaker_my_own": "1"}, has_command=True) == ()


def test_known_keys_and_those_of_users_are_not_told_of():
    assert warnings({**dict.fromkeys(KNOWN_KEYS, "1"), "sage": "1", "epochs": "1"}, has_command=False) == ()


def test_no_recorded_request_has_a_key_that_nobody_reads():
    for path in ASSETS.glob("*.CreateTrainingJob.json"):
        assert warnings(json.loads(path.read_text()).get("HyperParameters") or {}, has_command=False) == (), path.name
