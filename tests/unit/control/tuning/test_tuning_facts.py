"""Facts of tuning jobs for pages: rows, limits, ranges, and the best objective over time."""

import json

import pytest
from tuning_trials import BEGIN, METRIC, RANGES, trial, tuning_job, tuning_request

from clary.control.tuning.tuning_facts import best_so_far, end_words, facts_of, few, row_of
from clary.control.tuning.tuning_request import Objective, TuningRequest

GREATEST, LEAST = (Objective(metric=METRIC, is_maximized=is_maximized) for is_maximized in (True, False))
BEGIN_MS = int(BEGIN.timestamp() * 1000)


def test_a_row_has_the_objective_the_progress_and_the_best_trial():
    row = row_of(tuning_job(), [trial(1, 0.2), trial(2, 0.9), trial(3, None), trial(4, outcome=None)])
    assert row == {
        "name": "tuned",
        "status": "Completed",
        "strategy": "Bayesian",
        "objective": {"metric": METRIC, "is_maximized": True},
        "counters": {
            "Completed": 3,
            "InProgress": 1,
            "RetryableError": 0,
            "NonRetryableError": 0,
            "Stopped": 0,
        },
        "num_trials": 4,
        "max_trials": 40,
        "best": {
            "number": 2,
            "job": "tuned-002-0000abcd",
            "value": 0.9,
            "parameters": {"lr": "0.01", "momentum": "0.9", "layers": "3", "optimizer": "adam"},
        },
        "created_at": "2026-01-01T00:00:00+00:00",
        "ended_at": "2026-01-01T00:30:00+00:00",
        "end_reason": "all training jobs have ended",
    }


def test_a_tuning_job_without_trials_has_no_best_trial():
    facts = facts_of(tuning_job(), [])
    assert (facts["best"], facts["best_so_far"], facts["num_trials"]) == (None, [], 0)


def test_facts_have_ranges_with_their_scaling_and_fixed_hyperparameters():
    facts = facts_of(tuning_job(), [])
    (definition,) = facts["definitions"]
    assert definition["hyperparameters"] == {"epochs": "5", "api_token": "s3cr3t"}
    assert definition["ranges"] == [
        {"name": "lr", "kind": "continuous", "least": 1e-5, "greatest": 0.1, "scaling": "Logarithmic"},
        {"name": "momentum", "kind": "continuous", "least": 0.5, "greatest": 0.999, "scaling": "ReverseLogarithmic"},
        {"name": "layers", "kind": "integer", "least": 1, "greatest": 8, "scaling": "Linear"},
        {"name": "optimizer", "kind": "categorical", "values": ["sgd", "adam", "lamb"]},
    ]
    assert facts["limits"]["max_parallel"] == 4
    assert json.loads(json.dumps(facts)) == facts, "it is plain"


def test_several_definitions_have_separate_ranges():
    request = tuning_request()
    one = request.pop("TrainingJobDefinition")
    objective = request["HyperParameterTuningJobConfig"].pop("HyperParameterTuningJobObjective")
    request["TrainingJobDefinitions"] = [
        {**one, "DefinitionName": name, "TuningObjective": objective, "HyperParameterRanges": RANGES} for name in "ab"
    ]
    facts = facts_of(tuning_job(request=request), [])
    assert [definition["name"] for definition in facts["definitions"]] == ["a", "b"]
    assert facts["objective"]["metric"] == METRIC
    request["TrainingJobDefinitions"][1]["TuningObjective"] = {**objective, "MetricName": "f1"}
    criteria = {"TargetObjectiveMetricValue": 0.5}
    request["HyperParameterTuningJobConfig"]["TuningJobCompletionCriteria"] = criteria
    facts = facts_of(tuning_job(request=request), [])
    assert facts["objective"] == {"metric": f"{METRIC} / f1", "is_maximized": True}
    assert f"when {METRIC} / f1 reaches 0.5" in facts["ends"]


def test_every_completion_condition_is_listed():
    limits = {"MaxNumberOfTrainingJobs": 9, "MaxParallelTrainingJobs": 1, "MaxRuntimeInSeconds": 3600}
    criteria = {
        "TargetObjectiveMetricValue": 0.95,
        "BestObjectiveNotImproving": {"MaxNumberOfTrainingJobsNotImproving": 5},
        "ConvergenceDetected": {"CompleteOnConvergence": "Enabled"},
    }
    request = tuning_request(config={"ResourceLimits": limits, "TuningJobCompletionCriteria": criteria})
    assert end_words(TuningRequest(request)) == [
        "after 9 training jobs",
        "after 3600 s",
        "when accuracy reaches 0.95",
        "after 5 training jobs in a row without a better accuracy",
        "when accuracy has converged",
    ]


def test_a_grid_ends_after_all_combinations():
    ranges = {"CategoricalParameterRanges": [{"Name": "a", "Values": ["1", "2"]}, {"Name": "b", "Values": ["x", "y"]}]}
    config = {"Strategy": "Grid", "ResourceLimits": {"MaxParallelTrainingJobs": 2}}
    assert end_words(TuningRequest(tuning_request(ranges=ranges, config=config))) == ["after all 4 combinations"]


def test_hyperband_facts_have_its_resources():
    config = {"Strategy": "Hyperband", "StrategyConfig": {"HyperbandStrategyConfig": {"MinResource": 2}}}
    facts = facts_of(tuning_job(request=tuning_request(config=config)), [])
    assert facts["resources"] == {"least": 2, "most": 5}, "the epochs of its hyperparameters"


@pytest.mark.parametrize(("objective", "best"), [(GREATEST, [0.4, 0.4, 0.7]), (LEAST, [0.4, 0.3, 0.3])])
def test_the_best_so_far_follows_the_order_of_ends_and_never_gets_worse(objective, best):
    trials = [trial(1, 0.7, minutes=9), trial(2, 0.4, minutes=1), trial(3, 0.3, minutes=5), trial(4, None)]
    course = best_so_far([*trials, trial(5, outcome=None)], objective)
    assert [row[0] for row in course] == [2, 3, 1]
    assert [row[1] - BEGIN_MS for row in course] == [60_000, 300_000, 540_000]
    assert [row[2] for row in course] == best


def test_a_long_curve_keeps_its_ends_and_its_order():
    thinned = few(range(1000), 200)
    assert (len(thinned), thinned[0], thinned[-1]) == (200, 0, 999)
    assert thinned == sorted(set(thinned))
    assert few([3.0, 1.0], 200) == [3.0, 1.0]
