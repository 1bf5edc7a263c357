"""Configurations: their trials, their observations for the search, and when Hyperband continues one of them."""

from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from clary.contract.statuses import TrainingJobStatus
from clary.control.tuning.configurations import (
    HYPERBAND,
    Configuration,
    configurations_of,
    place_of,
    promoted,
    rungs_of,
    why_ended,
)
from clary.control.tuning.search import Question, Rungs, is_pruned
from clary.control.tuning.tuning_job import Trial, TrialOutcome
from clary.control.tuning.tuning_request import TuningRequest

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUNGS = Rungs(least=1, most=27, can_go_on=True)
RANGES = {"ContinuousParameterRanges": [{"Name": "lr", "MinValue": "0", "MaxValue": "1"}]}


def request_with(config=None, **members):
    request = {
        "HyperParameterTuningJobConfig": {
            "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "loss"},
            "ParameterRanges": RANGES,
            **(config or {}),
        },
        "TrainingJobDefinition": {"RoleArn": "role", **members},
    }
    return TuningRequest(request)


CHECKPOINTS = {"CheckpointConfig": {"S3Uri": "s3://bucket/prefix"}}


def trial(number, *curve, stopped=True, continues=0, **fields):
    """Return a trial that has ended; Hyperband stopped it unless `stopped` is false."""
    outcome = TrialOutcome(
        status=TrainingJobStatus.STOPPED if stopped else TrainingJobStatus.COMPLETED,
        value=curve[-1] if curve else None,
        curve=curve,
    )
    return replace(
        Trial(
            tuning_job="tuned",
            number=number,
            job_name=f"tuned-{number}",
            job_arn="",
            definition="",
            parameters={"lr": f"0.{number}"},
            created_at=NOW,
            continues=continues,
            stop_reason=f"{HYPERBAND}after so many" if stopped else "",
            outcome=outcome,
        ),
        **fields,
    )


def question_of(configurations, parents=(), strategy="Hyperband"):
    return Question(
        strategy=strategy,
        space=request_with().definitions[0].space,
        is_maximized=False,
        observations=[*parents, *(one.observed({}) for one in configurations)],
        seed=1,
        number=len(configurations) + 1,
    )


def promoted_of(trials, *, rungs=RUNGS, strategy="Hyperband", parents=()):
    configurations = configurations_of(trials, "")
    return promoted(configurations, question_of(configurations, parents, strategy), rungs)


def test_continued_trials_belong_to_the_configuration_of_the_first():
    trials = [trial(1, 3.0), trial(2, 2.0), trial(3, 1.0, continues=1), trial(4, 0.5, continues=1)]
    found = configurations_of(trials, "")
    assert [[one.number for one in each.trials] for each in found] == [[1, 3, 4], [2]]
    assert [place_of(found, one) for one in trials] == [0, 1, 0, 0]
    assert found[0].observed({}).curve == (3.0, 1.0, 0.5)
    assert found[0].observed({}).value == 0.5
    assert found[0].observed({}).parameters == {"lr": "0.1"}
    assert configurations_of(trials, "another") == []


def test_a_running_configuration_has_the_values_reported_so_far():
    running = trial(2, continues=1, outcome=None, stop_reason="")
    found = Configuration((trial(1, 3.0), running)).observed({"tuned-2": (2.5,)})
    assert (found.curve, found.value, found.is_over) == ((3.0, 2.5), None, False)


def test_a_continued_trial_whose_first_trial_is_lost_starts_its_own_configuration():
    assert [each.first.number for each in configurations_of([trial(3, 1.0, continues=1)], "")] == [3]


def trials_with_a_late_good_one():
    """Return trials of which 1 and 2 are the best; trials 3 to 30 are worse."""
    return [trial(1, 1.0), trial(2, 2.0), *(trial(number, 10.0 + number) for number in range(3, 31))]


def test_the_best_paused_configuration_is_continued_when_others_have_ended():
    trials = trials_with_a_late_good_one()
    found = promoted_of(trials)
    assert found is not None
    assert found.first.number == 1
    rest = [*trials, trial(31, 0.9, 0.8, 0.7, continues=1)]
    second = promoted_of(rest)
    assert second is not None
    assert second.first.number in (1, 2)


def test_a_completed_failed_or_running_configuration_is_not_continued():
    others = [trial(number, 10.0 + number, stopped=False) for number in range(2, 31)]
    assert promoted_of([trial(1, 1.0, stopped=False), *others]) is None
    assert promoted_of([trial(1, stopped=True), *others]) is None, "no value"
    assert promoted_of([trial(1, 1.0, stop_reason="early stopping"), *others]) is None
    assert promoted_of([trial(1, 1.0), *others, trial(31, continues=1, outcome=None)]) is None, "it runs"


def test_without_checkpoints_or_with_another_strategy_no_trial_is_continued():
    trials = trials_with_a_late_good_one()
    assert promoted_of(trials, rungs=replace(RUNGS, can_go_on=False)) is None
    assert promoted_of(trials, strategy="Bayesian") is None
    assert promoted_of([]) is None


def test_trials_of_parents_do_not_move_configurations_to_other_brackets():
    trials = trials_with_a_late_good_one()
    parents = [one.observed({}) for one in configurations_of([trial(number, 0.1) for number in range(1, 8)], "")]
    assert promoted_of(trials, parents=parents) == promoted_of(trials)


@given(
    st.lists(st.lists(st.floats(0, 100), min_size=1, max_size=9), min_size=1, max_size=12),
    st.sets(st.integers(0, 11)),
)
def test_only_a_paused_configuration_that_would_not_be_stopped_again_is_continued(curves, completed):
    trials = [trial(number, *curve, stopped=number not in completed) for number, curve in enumerate(curves, start=1)]
    found = promoted_of(trials)
    if found is not None:
        configurations = configurations_of(trials, "")
        assert found.is_paused
        place = place_of(configurations, found.first)
        assert not is_pruned(question_of(configurations), place, RUNGS)


def test_rungs_end_at_max_resource_or_epochs_and_checkpoints_allow_continuation():
    def rungs(static=None, resources=None, **members):
        config = {"StrategyConfig": {"HyperbandStrategyConfig": resources or {}}}
        request = request_with(config, **members, **({} if static is None else {"StaticHyperParameters": static}))
        return rungs_of(request, request.definitions[0])

    assert rungs() == Rungs(least=1, most=None, can_go_on=False)
    assert rungs(resources={"MinResource": 2, "MaxResource": 9}, **CHECKPOINTS) == Rungs(
        least=2, most=9, can_go_on=True
    )
    assert rungs({"epochs": "5"}).most == 5
    assert rungs({"n_epochs": '"7"'}).most == 7
    assert rungs({"num_epochs": "3", "epochs": "many", "n-epochs": "4"}).most == 4
    assert rungs({"epochs": "0"}).most is None
    assert rungs({"epochs": "5"}, {"MaxResource": 9}).most == 9


def test_the_reason_of_a_stop_states_whether_the_trial_may_continue():
    assert (
        why_ended(1, RUNGS, "loss")
        == f"{HYPERBAND}after 1 value of loss it waits to be among the best third of its rung"
    )
    ended = why_ended(3, replace(RUNGS, can_go_on=False), "loss")
    assert ended == f"{HYPERBAND}after 3 values of loss others of its rung are better"
