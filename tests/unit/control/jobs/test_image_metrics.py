"""Metrics that an image reports without metric definitions in the request."""

import pytest

from clary.agent.log.metric_matching import compile_patterns, find_values
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.members.image_metrics import MAX_DEFINITIONS, MAX_REGEX, definitions_of
from clary.control.wire.patterns import can_run_away
from clary.testing.control_plane import request_of

XGBOOST = "683313688378.dkr.ecr.us-east-1.amazonaws.com/sagemaker-xgboost:1.7-1"
OWN = [{"Name": "loss", "Regex": "loss=(.*)"}]
# Tunable metrics of "Tune an XGBoost model" (developer guide).
TUNABLE = (
    *("accuracy", "auc", "error", "f1", "f1_binary", "f1_macro", "logloss", "mae", "map", "merror", "mlogloss"),
    *("mse", "ndcg", "rmse", "aucpr", "balanced_accuracy", "mape", "precision", "r2", "recall", "rmsle"),
)


def specification(image=XGBOOST, **members):
    return {"TrainingImage": image, "TrainingInputMode": "File", **members}


LEGACY = "433757028032.dkr.ecr.us-west-2.amazonaws.com/xgboost:1"  # release 0.72


@pytest.mark.parametrize(
    "image", [XGBOOST, LEGACY, "sagemaker-xgboost", XGBOOST + "@sha256:0", "r:5000/sagemaker-xgboost@x"]
)
def test_xgboost_reports_metrics_of_its_channels_without_definitions(image):
    names = [item["Name"] for item in definitions_of(specification(image))]
    assert {f"validation:{name}" for name in TUNABLE} <= set(names)
    assert {"train:rmse", "train:logloss", "train:mlogloss"} <= set(names)


@pytest.mark.parametrize("image", ["pytorch-training:2.8.0", "my/xgboost:1", "", "sagemaker-xgboost-own:1"])
def test_any_other_image_reports_only_the_metrics_of_the_request(image):
    assert definitions_of(specification(image)) == []
    assert definitions_of(specification(image, MetricDefinitions=OWN)) == OWN


def test_metrics_of_the_request_replace_those_of_the_image():
    assert definitions_of(specification(MetricDefinitions=OWN)) == OWN
    request = request_of(AlgorithmSpecification=specification(MetricDefinitions=OWN))
    assert [item.name for item in JobRequest(request).metric_definitions] == ["loss"]
    assert JobRequest(request).has_own_metrics
    without = JobRequest(request_of(AlgorithmSpecification=specification()))
    assert not without.has_own_metrics
    assert "validation:rmse" in [item.name for item in without.metric_definitions]


def test_definitions_of_an_image_could_be_sent_in_a_request_as_the_sdk_sends_them_after_attach():
    definitions = definitions_of(specification())
    assert len({item["Name"] for item in definitions}) == len(definitions) <= MAX_DEFINITIONS
    assert max(len(item["Regex"]) for item in definitions) <= MAX_REGEX
    _, errors = compile_patterns([item["Regex"] for item in definitions])
    assert set(errors) == {None}
    assert not any(can_run_away(item["Regex"], 0) for item in definitions)


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("[0]\ttrain-rmse:19.4101\tvalidation-rmse:1.5e-05", {"train:rmse": 19.4101, "validation:rmse": 1.5e-05}),
        ("[7]#011train-error:0.25#011validation-error:0.3", {"train:error": 0.25, "validation:error": 0.3}),
        (
            "[10:18:35] [12] train-auc:.5 validation-auc:-1 validation-f1:0.5+0.1",
            {"train:auc": 0.5, "validation:auc": -1.0, "validation:f1": 0.5},
        ),
        ("[3]\tvalidation-aft-nloglik:2.5\tvalidation-mphe:1", {"validation:aft-nloglik": 2.5, "validation:mphe": 1.0}),
        ("[0]\tvalidation-error@0.7:0.3\tmy-validation-rmse:2", {}),
        ("[0]\tvalidation-rmse:nan", {}),
        ("validation-rmse:2", {}),
        ("Will train until validation-rmse hasn't improved in 10 rounds.", {}),
    ],
)
def test_values_are_found_in_the_lines_of_xgboost(line, values):
    definitions = definitions_of(specification())
    patterns, _ = compile_patterns([item["Regex"] for item in definitions])
    found, slow = find_values(patterns, [line])
    assert {definitions[index]["Name"]: value for _, index, value in found} == values
    assert slow == []


def test_a_long_line_without_metrics_is_read_fast():
    patterns, _ = compile_patterns([item["Regex"] for item in definitions_of(specification())])
    assert find_values(patterns, ["[1" * 20_000, " \t" * 20_000, "[1]" + "x" * 20_000]) == ([], [])
