"""The typed view of a request: its members, and the service's default for an absent one."""

import pytest
from tuning_trials import tuning_request

from clary.control.tuning.parameter_space import Categorical, Continuous, Integer, Scaling
from clary.control.tuning.tuning_request import Objective, TuningRequest, space_of

LOSS = {"Type": "Minimize", "MetricName": "loss"}
CHOICES = {"CategoricalParameterRanges": [{"Name": "opt", "Values": ["sgd", "adam"]}]}


def view(config=None, **members):
    return TuningRequest({**tuning_request(config=config), **members})


def test_a_minimal_request_has_the_defaults():
    request = TuningRequest(
        {
            "HyperParameterTuningJobName": "bare",
            "HyperParameterTuningJobConfig": {"Strategy": "Random", "ResourceLimits": {"MaxParallelTrainingJobs": 2}},
        }
    )
    assert (request.name, request.strategy, request.max_parallel) == ("bare", "Random", 2)
    assert request.max_jobs is request.max_runtime_s is request.random_seed is None
    assert request.target_value is request.max_not_improving is None
    assert not request.stops_early
    assert not request.ends_on_convergence
    assert not request.is_autotuned
    assert not request.is_identical_to_parents
    assert request.hyperband_resources == (1, None)
    assert request.parents == request.definitions == ()


def test_a_request_with_all_members_is_read_completely():
    request = view(
        {
            "Strategy": "Hyperband",
            "StrategyConfig": {"HyperbandStrategyConfig": {"MinResource": 2, "MaxResource": 20}},
            "ResourceLimits": {
                "MaxNumberOfTrainingJobs": 9,
                "MaxParallelTrainingJobs": 3,
                "MaxRuntimeInSeconds": 7200,
            },
            "TrainingJobEarlyStoppingType": "Auto",
            "TuningJobCompletionCriteria": {
                "TargetObjectiveMetricValue": 1,
                "BestObjectiveNotImproving": {"MaxNumberOfTrainingJobsNotImproving": 4},
                "ConvergenceDetected": {"CompleteOnConvergence": "Enabled"},
            },
            "RandomSeed": 0,
        },
        WarmStartConfig={
            "ParentHyperParameterTuningJobs": [{"HyperParameterTuningJobName": "a"}],
            "WarmStartType": "IdenticalDataAndAlgorithm",
        },
    )
    assert request.hyperband_resources == (2, 20)
    assert (request.max_jobs, request.max_parallel, request.max_runtime_s) == (9, 3, 7200)
    assert request.stops_early
    assert (request.target_value, request.max_not_improving, request.ends_on_convergence) == (1.0, 4, True)
    assert request.random_seed == 0
    assert (request.parents, request.is_identical_to_parents) == (("a",), True)


def test_autotune_chooses_only_what_the_request_leaves_open():
    request = view(Autotune={"Mode": "Enabled"})
    assert (request.is_autotuned, request.stops_early, request.ends_on_convergence) == (True, True, True)
    said = view(
        {
            "TrainingJobEarlyStoppingType": "Off",
            "TuningJobCompletionCriteria": {"ConvergenceDetected": {"CompleteOnConvergence": "Disabled"}},
        },
        Autotune={"Mode": "Enabled"},
    )
    assert not said.stops_early
    assert not said.ends_on_convergence
    assert not view({"Strategy": "Hyperband"}, Autotune={"Mode": "Enabled"}).stops_early


def test_a_single_definition_has_the_objective_and_the_ranges_of_the_tuning_job():
    (definition,) = view({"HyperParameterTuningJobObjective": LOSS, "ParameterRanges": CHOICES}).definitions
    assert definition.name == ""
    assert definition.objective == Objective(metric="loss", is_maximized=False)
    assert definition.space == (Categorical(name="opt", values=("sgd", "adam")),)


def test_several_definitions_have_their_own_objectives_and_are_found_by_name():
    raw = tuning_request()
    one = raw.pop("TrainingJobDefinition")
    raw["TrainingJobDefinitions"] = [
        {**one, "DefinitionName": name, "TuningObjective": LOSS, "HyperParameterRanges": CHOICES} for name in "ab"
    ]
    request = TuningRequest(raw)
    assert [found.name for found in request.definitions] == ["a", "b"]
    assert {found.objective.metric for found in request.definitions} == {"loss"}
    assert request.definition("b").name == "b"


def test_ranges_are_read_in_the_order_of_their_kinds():
    space = space_of(
        {
            "CategoricalParameterRanges": [{"Name": "t", "Values": ["a"]}],
            "IntegerParameterRanges": [{"Name": "i", "MinValue": "1", "MaxValue": "64", "ScalingType": "Logarithmic"}],
            "ContinuousParameterRanges": [{"Name": "c", "MinValue": "1e-4", "MaxValue": "0.1"}],
        }
    )
    assert space == (
        Continuous(name="c", least=1e-4, greatest=0.1, scaling=Scaling.LOGARITHMIC),
        Integer(name="i", least=1, greatest=64, scaling=Scaling.LOGARITHMIC),
        Categorical(name="t", values=("a",)),
    )


@pytest.mark.parametrize(
    ("kind", "least", "greatest"),
    [("Integer", "1.5", "2"), ("Integer", "1", "many"), ("Continuous", "", "1"), ("Continuous", "one", "2")],
)
def test_a_bound_that_is_not_a_number_is_an_error(kind, least, greatest):
    with pytest.raises(ValueError):
        space_of({f"{kind}ParameterRanges": [{"Name": "x", "MinValue": least, "MaxValue": greatest}]})


@pytest.mark.parametrize(
    ("hint", "made"),
    [
        ("32", Integer(name="x", least=8, greatest=128, scaling=Scaling.LOGARITHMIC)),
        ("2", Integer(name="x", least=1, greatest=8, scaling=Scaling.LOGARITHMIC)),
        ("0.02", Continuous(name="x", least=0.002, greatest=0.2, scaling=Scaling.LOGARITHMIC)),
        ("0.5", Continuous(name="x", least=0.05, greatest=1.0, scaling=Scaling.LOGARITHMIC)),
        ("2.5", Continuous(name="x", least=0.25, greatest=25.0, scaling=Scaling.LOGARITHMIC)),
        ("adam", Categorical(name="x", values=("adam",))),
        ("0", Categorical(name="x", values=("0",))),
        ("-3", Categorical(name="x", values=("-3",))),
        ("", Categorical(name="x", values=("",))),
        ("Infinity", Categorical(name="x", values=("Infinity",))),
        ("NaN", Categorical(name="x", values=("NaN",))),
        ("1e400", Categorical(name="x", values=("1e400",))),
        ("1e308", Categorical(name="x", values=("1e308",))),
        ("5e-324", Categorical(name="x", values=("5e-324",))),
    ],
)
def test_autotune_turns_a_hint_into_a_range(hint, made):
    assert space_of({"AutoParameters": [{"Name": "x", "ValueHint": hint}]}) == (made,)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sagemaker_container_log_level", "20"),
        ("sagemaker_mpi_num_of_processes_per_host", "8"),
        ("sagemaker_submit_directory", '"s3://bucket/sourcedir.tar.gz"'),
    ],
)
def test_autotune_keeps_hyperparameters_of_the_platform_which_sdk_v2_sends_as_hints(name, hint):
    assert space_of({"AutoParameters": [{"Name": name, "ValueHint": hint}]}) == (
        Categorical(name=name, values=(hint,)),
    )


def test_the_objective_decides_whether_greater_or_lesser_is_better():
    more, less = Objective(metric="m", is_maximized=True), Objective(metric="m", is_maximized=False)
    assert more.is_better(2, 1)
    assert not more.is_better(1, 1)
    assert less.is_better(1, 2)
    assert not less.is_better(1, 1)
