"""Hyperparameters: both dialects, the toolkit's command line, and values that cannot be passed to a program."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.contract.settings import hyperparameters as hps

GOLDENS = Path(__file__).parents[3] / "assets" / "sm_variables"
TOOLKIT_GOLDENS = sorted(path for path in GOLDENS.glob("*.json") if not path.stem.startswith("v3-"))


@pytest.mark.parametrize("path", TOOLKIT_GOLDENS, ids=lambda path: path.stem)
def test_cli_arguments_equal_those_of_the_toolkit(path: Path) -> None:
    document = json.loads(path.read_text())
    expected = json.loads(document["variables"]["SM_USER_ARGS"])
    assert list(hps.cli_arguments(document["job"]["hyperparameters"])) == expected


def test_cli_arguments_are_sorted_and_rendered_by_type() -> None:
    values = {
        "zeta": '"abc"',
        "b": "2",
        "flag": "true",
        "lst": "[1, 2]",
        "nested": '{"y": 1, "x": "a"}',
        "nothing": "null",
        "raw": "it's",
        "sagemaker_program": '"train.py"',
        "_tuning_objective_metric": '"loss"',
    }
    assert hps.cli_arguments(values) == (
        *("-b", "2"),
        *("--flag", "True"),
        *("--lst", "[1, 2]"),
        *("--nested", "x=a,y=1"),
        *("--nothing", ""),
        *("--raw", "it's"),
        *("--zeta", "abc"),
    )


@given(st.text())
def test_text_that_is_json_means_its_value_and_other_text_itself(text: str) -> None:
    assert hps.parse_value(json.dumps(text)) == text
    value = hps.parse_value(text)
    assert value == text or json.dumps(value) == json.dumps(json.loads(text))


@pytest.mark.parametrize("text", ["9" * 5000, "[" * 5000])
def test_values_that_json_gives_up_on_stay_strings(text: str) -> None:
    assert hps.parse_value(text) == text


@pytest.mark.parametrize(("text", "expected"), [("true", True), ('"True"', True), ("True", True), ("1", True)])
def test_switches_are_read_in_both_dialects(text: str, expected: bool) -> None:
    assert hps.is_enabled({"x": text}, "x") is expected


@pytest.mark.parametrize("text", ["false", "False", "null", "0", '""', "no"])
def test_switches_that_are_off(text: str) -> None:
    assert not hps.is_enabled({"x": text}, "x")


def test_names_of_the_platform_are_not_passed_to_the_program() -> None:
    values = {"sagemaker_x": "1", "sagemaker_program": "train.py", "_tuning_objective_metric": "l", "epochs": "3"}
    assert hps.user_values(values) == {"epochs": 3}
    assert hps.framework_parameters(values) == {"sagemaker_x": 1}
    assert hps.platform_text(values, "sagemaker_program") == "train.py"


@pytest.mark.parametrize("image", ["1.dkr.ecr.eu.amazonaws.com/tensorflow-training:2.16-cpu", "sagemaker-tensorflow"])
@pytest.mark.parametrize("text", ['"s3://b/job/model"', "s3://b/job/model"])
def test_a_trial_of_tensorflow_has_a_model_dir_of_its_own(image: str, text: str) -> None:
    values = {"_tuning_objective_metric": "loss", "model_dir": text, "epochs": "3"}
    told = hps.told_to_program(values, job_name="trial-1", image=image)
    assert hps.user_values(told) == {"model_dir": "s3://b/job/model/trial-1/model", "epochs": 3}
    assert hps.cli_arguments(told)[2:] == ("--model_dir", "s3://b/job/model/trial-1/model")
    assert values["model_dir"] == text


@pytest.mark.parametrize(
    ("image", "changes"),
    [
        ("1.dkr.ecr.eu.amazonaws.com/pytorch-training:2.8", {}),
        ("1.dkr.ecr.eu.amazonaws.com/tensorflow/pytorch-training:2.8-tensorflow", {}),
        ("tensorflow-training:2.16", {"_tuning_objective_metric": None}),
        ("tensorflow-training:2.16", {"model_dir": None}),
        ("tensorflow-training:2.16", {"model_dir": "false"}),
        ("tensorflow-training:2.16", {"model_dir": '"/opt/ml/model"'}),
    ],
)
def test_any_other_model_dir_is_passed_on(image: str, changes: dict[str, str | None]) -> None:
    values = {"_tuning_objective_metric": "loss", "model_dir": "s3://b/m", **changes}
    given = {name: text for name, text in values.items() if text is not None}
    assert hps.told_to_program(given, job_name="trial-1", image=image) == given


def test_quotes_newlines_and_unicode_can_be_passed_and_nul_and_surrogates_cannot() -> None:
    assert hps.unusable({"a": 'it\'s "x"\n', "b": '"\\u4e2d"', "\u00e9": "1", "path": "a b;$(c)"}) == ()
    problems = hps.unusable({"a": '"\\u0000"', "b": '"\\ud800"', "c": '{"k": "\\u0000"}', "ok": "1"})
    assert [problem.split("'")[1] for problem in problems] == ["a", "b", "c"]


def test_mp_parameters_are_an_object_or_nothing() -> None:
    assert hps.model_parallel_parameters({"mp_parameters": '{"ddp": true}'}) == {"ddp": True}
    assert hps.model_parallel_parameters({"mp_parameters": "{}"}) is None
    assert hps.model_parallel_parameters({"mp_parameters": "ddp"}) is None
    assert hps.model_parallel_parameters({}) is None


@pytest.mark.parametrize(
    ("text", "share"), [("0.25", 0.25), ('"0.25"', 0.25), ("1", 1.0), ("0.01", 0.01), ("null", 1.0), ('""', 1.0)]
)
def test_the_share_of_a_host_is_read_in_both_dialects(text: str, share: float) -> None:
    assert hps.host_share({hps.HOST_SHARE: text}) == share
    assert hps.host_share({}) == 1.0


@pytest.mark.parametrize("text", ["0", "-0.5", "1.5", "nan", "half", "0.001", "[0.5]", "true"])
def test_any_other_share_of_a_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"sagemaker_clary_host_share: expected a fraction of a host from 0.01 to 1"):
        hps.host_share({hps.HOST_SHARE: text})
