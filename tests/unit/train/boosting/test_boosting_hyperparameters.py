"""Hyperparameters of the built-in XGBoost: types, lists, metrics, and refusals with the name."""

import pytest

from clary.train.boosting.errors import UserMistake
from clary.train.boosting.hyperparameters import parse_hyperparameters


def parse(**texts):
    return parse_hyperparameters({"num_round": "10", **texts})


def test_texts_become_the_types_that_xgboost_takes():
    found = parse(
        eta="0.2",
        max_depth="5",
        objective="binary:logistic",
        monotone_constraints="(1, -1)",
        interaction_constraints="[[0, 1], [2]]",
        updater="grow_histmaker, prune",
        nthread="2",
        deterministic_histogram="true",
        **{"lambda": "1e-3"},
    )
    assert dict(found.parameters) == {
        "eta": 0.2,
        "max_depth": 5,
        "objective": "binary:logistic",
        "monotone_constraints": "(1, -1)",
        "interaction_constraints": "[[0, 1], [2]]",
        "updater": "grow_histmaker,prune",
        "nthread": 2,
        "deterministic_histogram": "true",
        "lambda": 0.001,
    }
    assert (found.num_round, found.early_stopping_rounds, found.has_weights) == (10, None, False)


def test_values_in_json_as_framework_estimators_send_them_are_the_same():
    found = parse_hyperparameters({"num_round": '"10"', "objective": '"reg:squarederror"', "sagemaker_job_name": '"j"'})
    assert (found.num_round, dict(found.parameters)) == (10, {"objective": "reg:squarederror"})


@pytest.mark.parametrize("text", ["auc,error@0.7", " auc , error@0.7", "['auc', 'error@0.7']", '["auc", "error@0.7"]'])
def test_metrics_are_words_or_lists(text):
    assert parse(eval_metric=text).metrics == ("auc", "error@0.7")


def test_metrics_of_sagemaker_and_the_objective_of_a_tuning_job_are_added():
    found = parse(eval_metric="f1,logloss", _tuning_objective_metric="validation:auc")
    assert (found.metrics, found.own_metrics, found.stopping_metric) == (("logloss", "auc"), ("f1",), "auc")
    assert parse(_tuning_objective_metric="validation:f1").own_metrics == ("f1",)
    assert parse(eval_metric="auc,rmse").stopping_metric == "rmse"
    assert parse().stopping_metric is None


def test_settings_of_the_program_itself_are_not_passed_to_xgboost():
    found = parse(csv_weights="1", early_stopping_rounds="3", save_model_on_termination="true", silent="1")
    assert (found.has_weights, found.early_stopping_rounds, found.saves_on_termination) == (True, 3, True)
    assert dict(found.parameters) == {}
    assert found.notes == ("hyperparameter silent has no effect: use verbosity",)
    assert parse(use_dask_gpu_training="false").parameters == {}


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"depth": "3"}, "hyperparameter depth: the algorithm XGBoost has no hyperparameter of this name"),
        ({"max_depth": "3.5"}, "hyperparameter max_depth: expected a whole number from 0, got '3.5'"),
        ({"eta": "2"}, "hyperparameter eta: expected a number from 0 up to 1, got '2'"),
        ({"eta": "nan"}, "hyperparameter eta: expected a number"),
        ({"tweedie_variance_power": "1"}, "expected a number above 1 up to 2"),
        ({"booster": "tree"}, "hyperparameter booster: expected one of gbtree, gblinear, dart"),
        ({"interaction_constraints": "[["}, "hyperparameter interaction_constraints: expected a list"),
        ({"num_round": "0"}, "hyperparameter num_round: expected a whole number from 1"),
        ({"objective": "multi:softmax"}, "hyperparameter num_class is missing: objective multi:softmax needs it"),
        ({"use_dask_gpu_training": "true"}, "use_dask_gpu_training: training on several GPUs by Dask is not offered"),
        ({"_kfold": "5"}, "hyperparameter _kfold: cross-validation is not offered here"),
        ({"num_class": "3", "eval_metric": "f1_binary"}, "metric f1_binary is of two classes, but num_class is 3"),
    ],
)
def test_a_mistake_is_refused_with_the_name(texts, words):
    with pytest.raises(UserMistake) as caught:
        parse(**texts)
    assert words in str(caught.value)


def test_the_number_of_rounds_is_required():
    with pytest.raises(UserMistake, match="num_round is missing"):
        parse_hyperparameters({"eta": "0.1"})
