"""The next step of a tuning job: each limit, each end, and whole tuning jobs whose trials end at random."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tuning_trials import BEGIN, METRIC, trial, tuning_job, tuning_request

from clary.contract.statuses import TrainingJobStatus
from clary.control.tuning.completion import decide, final_end, has_converged, max_trials, next_definition
from clary.control.tuning.tuning_job import TuningStatus
from clary.control.tuning.tuning_request import TuningRequest

CHOICES = {"CategoricalParameterRanges": [{"Name": "opt", "Values": ["sgd", "adam", "lamb"]}]}


def job_with(*, most=10, parallel=3, ranges=None, runtime_s=None, criteria=None, is_minimized=False, **config):
    limits = {"MaxParallelTrainingJobs": parallel}
    limits |= {} if most is None else {"MaxNumberOfTrainingJobs": most}
    limits |= {} if runtime_s is None else {"MaxRuntimeInSeconds": runtime_s}
    config = {"ResourceLimits": limits, "TuningJobCompletionCriteria": criteria or {}, **config}
    if is_minimized:
        config["HyperParameterTuningJobObjective"] = {"Type": "Minimize", "MetricName": METRIC}
    request = tuning_request(config=config, **({} if ranges is None else {"ranges": ranges}))
    return tuning_job(request=request, status=TuningStatus.IN_PROGRESS, ended_at=None, end_reason="")


def running(number):
    return trial(number, outcome=None)


def failed(number, reason="AlgorithmError", *, is_retryable=False):
    one = trial(number, None)
    outcome = replace(one.outcome, status=TrainingJobStatus.FAILED, failure_reason=reason, is_retryable=is_retryable)
    return replace(one, outcome=outcome)


def after(seconds=0.0):
    return BEGIN + timedelta(seconds=seconds)


def decided(job, trials, *, seconds=0.0):
    return decide(job, trials, now=after(seconds))


# Numbers


def test_as_many_trials_start_as_may_run_at_a_time():
    assert decided(job_with(), []).num_starts == 3
    assert decided(job_with(), [running(1), trial(2)]).num_starts == 2
    assert decided(job_with(), [running(1), running(2), running(3)]).num_starts == 0


def test_no_more_trials_start_than_are_left():
    trials = [trial(number) for number in range(1, 10)]
    assert decided(job_with(), trials).num_starts == 1
    assert decided(job_with(), [*trials, running(10)]).num_starts == 0
    assert decided(job_with(), [*trials, running(10)]).ends_as is None


def test_a_tuning_job_is_completed_when_all_trials_have_ended():
    decision = decided(job_with(), [trial(number) for number in range(1, 11)])
    assert (decision.ends_as, decision.num_starts, decision.stops_running) == (TuningStatus.COMPLETED, 0, False)


def test_without_a_maximum_number_trials_follow_each_other():
    job = job_with(most=None, runtime_s=3600)
    assert max_trials(TuningRequest(job.request)) is None
    decision = decided(job, [trial(number) for number in range(1, 200)])
    assert (decision.num_starts, decision.ends_as) == (3, None)


def test_a_grid_has_as_many_trials_as_points():
    for most in (None, 3):
        job = job_with(most=most, ranges=CHOICES, Strategy="Grid")
        assert max_trials(TuningRequest(job.request)) == 3
        assert decided(job, [trial(1), trial(2)]).num_starts == 1
        assert decided(job, [trial(1), trial(2), trial(3)]).ends_as is TuningStatus.COMPLETED


# Ends


def test_the_run_time_limit_ends_the_tuning_job_and_running_trials():
    job = job_with(runtime_s=600)
    assert decided(job, [running(1)], seconds=599.9).ends_as is None
    decision = decided(job, [running(1)], seconds=600)
    assert (decision.ends_as, decision.stops_running) == (TuningStatus.COMPLETED, True)
    assert decision.reason == "MaxRuntimeInSeconds 600 is over"


@pytest.mark.parametrize(
    ("is_minimized", "value", "is_reached"),
    [(False, 0.9, True), (False, 0.91, True), (False, 0.89, False), (True, 0.9, True), (True, 0.91, False)],
)
def test_a_reached_target_ends_the_tuning_job_and_running_trials(is_minimized, value, is_reached):
    job = job_with(criteria={"TargetObjectiveMetricValue": 0.9}, is_minimized=is_minimized)
    decision = decided(job, [trial(1, value), running(2)])
    assert (decision.ends_as is TuningStatus.COMPLETED) == decision.stops_running == is_reached
    assert ("has reached the target 0.9" in decision.reason) == is_reached


def test_a_number_of_trials_without_improvement_ends_the_tuning_job():
    job = job_with(criteria={"BestObjectiveNotImproving": {"MaxNumberOfTrainingJobsNotImproving": 3}})
    trials = [trial(1, 0.1), trial(2, 0.5), trial(3, 0.4), failed(4), trial(5, 0.5), running(6)]
    assert decided(job, trials).ends_as is None
    decision = decided(job, [*trials, trial(7, 0.3)])
    assert (decision.ends_as, decision.stops_running) == (TuningStatus.COMPLETED, True)
    assert decision.reason == "3 training jobs in a row have not improved the best objective"
    assert decided(job, [*trials, trial(7, 0.6)]).ends_as is None


def test_convergence_ends_the_tuning_job_if_enabled():
    flat = [trial(number, 1.0 if number >= 10 else number / 10) for number in range(1, 21)]
    asked = job_with(most=99, criteria={"ConvergenceDetected": {"CompleteOnConvergence": "Enabled"}})
    decision = decided(asked, flat)
    assert (decision.ends_as, decision.has_converged) == (TuningStatus.COMPLETED, True)
    assert decided(asked, flat[:19]).ends_as is None
    assert decided(job_with(most=99), flat).ends_as is None


@pytest.mark.parametrize("is_maximized", [True, False])
def test_values_have_converged_when_the_last_ones_improve_hardly_at_all(is_maximized):
    sign = 1 if is_maximized else -1

    def converged(last):
        values = [sign * number / 9 for number in range(10)] + [0.0] * 9 + [sign * last]
        trials = [trial(number, value) for number, value in enumerate(values, start=1)]
        return has_converged(trials, is_maximized=is_maximized)

    assert converged(0.5)
    assert converged(1.009)
    assert not converged(1.05)


def test_of_many_trials_the_last_third_must_be_without_improvement():
    values = [0.0, 1.0] * 20 + [2.0] + [0.0] * 15  # 56 values: a window of 17
    trials = [trial(number, value) for number, value in enumerate(values, start=1)]
    assert not has_converged(trials, is_maximized=True)
    assert has_converged([*trials, *(trial(number, 0.0) for number in range(57, 63))], is_maximized=True)


# Failures


def test_failed_trials_count_and_do_not_stall_the_others():
    trials = [failed(1), failed(2), trial(3, 0.4)]
    assert decided(job_with(), trials).num_starts == 3
    trials += [failed(number) for number in range(4, 11)]
    decision = decided(job_with(), trials)
    assert (decision.ends_as, decision.reason) == (TuningStatus.COMPLETED, "all training jobs have ended")


@pytest.mark.parametrize(("parallel", "least"), [(1, 5), (5, 5), (8, 8)])
def test_a_tuning_job_fails_early_when_all_ended_trials_failed_on_their_own(parallel, least):
    job = job_with(most=20, parallel=parallel)
    trials = [failed(number, f"reason {number}") for number in range(1, least + 1)]
    assert decided(job, [*trials[:-1], running(least)]).ends_as is None
    decision = decided(job, [*trials, running(least + 1)])
    assert (decision.ends_as, decision.stops_running) == (TuningStatus.FAILED, True)
    assert "tuned-001-0000abcd: reason 1" in decision.reason


def test_one_good_trial_prevents_an_early_failure():
    trials = [*(failed(number) for number in range(1, 9)), trial(9, 0.1)]
    assert decided(job_with(most=20), trials).ends_as is None


def test_infrastructure_failures_do_not_count_against_the_definition():
    trials = [*(failed(number) for number in range(1, 9)), failed(9, is_retryable=True)]
    assert decided(job_with(most=20), trials).ends_as is None


def test_trials_that_complete_without_an_objective_value_do_not_continue_forever():
    job = job_with(most=None, criteria={"BestObjectiveNotImproving": {"MaxNumberOfTrainingJobsNotImproving": 3}})
    silent = [trial(number, None) for number in range(1, 6)]
    assert decided(job, silent[:4]).ends_as is None
    decision = decided(job, silent)
    assert decision.ends_as is TuningStatus.FAILED
    assert "tuned-001-0000abcd reported no value of the objective" in decision.reason


def test_a_tuning_job_fails_at_its_end_when_no_trial_has_an_objective():
    stopped = replace(trial(1, None), outcome=replace(trial(1, None).outcome, status=TrainingJobStatus.STOPPED))
    decision = decided(job_with(most=3), [stopped, failed(2, "out of memory"), failed(3)])
    assert decision.ends_as is TuningStatus.FAILED
    assert "tuned-002-0000abcd: out of memory" in decision.reason


def test_the_final_status_is_failed_when_a_limit_ended_trials_without_any_value():
    job = replace(job_with(runtime_s=600), ends_as=TuningStatus.COMPLETED, end_reason="MaxRuntimeInSeconds 600 is over")
    assert final_end(job, [failed(1), trial(2, 0.5)]) == (TuningStatus.COMPLETED, "MaxRuntimeInSeconds 600 is over")
    assert final_end(job, []) == (TuningStatus.COMPLETED, "MaxRuntimeInSeconds 600 is over")
    status, reason = final_end(job, [failed(1, "out of memory"), trial(2, None)])
    assert status is TuningStatus.FAILED
    assert reason.startswith("MaxRuntimeInSeconds 600 is over. No training job has reported a value")
    assert reason.endswith("tuned-001-0000abcd: out of memory")
    stopped = replace(job, ends_as=TuningStatus.STOPPED, end_reason="it was stopped")
    assert final_end(stopped, [failed(1)]) == (TuningStatus.STOPPED, "it was stopped")


def test_reasons_fit_into_the_limit_of_the_api():
    trials = [failed(number, "x" * 5000) for number in range(1, 6)]
    assert len(decided(job_with(), trials).reason) == 1024
    assert len(decided(job_with(most=5, parallel=5), trials).reason) == 1024


# Definitions


def several(strategy="Random", sizes=(2, 3)):
    raw = tuning_request(config={"Strategy": strategy, "ResourceLimits": {"MaxParallelTrainingJobs": 1}})
    one = raw.pop("TrainingJobDefinition")
    objective = {"Type": "Maximize", "MetricName": METRIC}
    raw["TrainingJobDefinitions"] = [
        {
            **one,
            "DefinitionName": name,
            "TuningObjective": objective,
            "HyperParameterRanges": {"CategoricalParameterRanges": [{"Name": "x", "Values": list("abc"[:size])}]},
        }
        for name, size in zip("pq", sizes, strict=True)
    ]
    return TuningRequest(raw)


def order_of(request, count):
    trials = []
    for number in range(1, count + 1):
        trials.append(trial(number, definition=next_definition(request, trials).name))
    return "".join(one.definition for one in trials)


def test_definitions_take_turns():
    assert order_of(several(), 6) == "pqpqpq"


def test_grids_follow_each_other():
    assert max_trials(several("Grid")) == 5
    assert order_of(several("Grid"), 5) == "ppqqq"


# Whole tuning jobs

ends = st.sampled_from(["good", "bad", "machine", "silent", "stopped"])


def ended(one, how, number):
    values = {"good": float(number % 7), "stopped": float(number % 5)}
    statuses = {"good": TrainingJobStatus.COMPLETED, "silent": TrainingJobStatus.COMPLETED}
    statuses |= {"stopped": TrainingJobStatus.STOPPED}
    outcome = replace(
        trial(1).outcome,
        status=statuses.get(how, TrainingJobStatus.FAILED),
        value=values.get(how),
        is_retryable=how == "machine",
        failure_reason="it failed" if how in ("bad", "machine") else "",
        training_ended_at=BEGIN + timedelta(seconds=number),
    )
    return replace(one, outcome=outcome)


@settings(max_examples=100)
@given(
    most=st.none() | st.integers(1, 30),
    parallel=st.integers(1, 8),
    not_improving=st.none() | st.integers(1, 6),
    target=st.none() | st.just(6.0),
    data=st.data(),
)
def test_limits_hold_for_every_order_of_ends_and_the_tuning_job_ends(most, parallel, not_improving, target, data):
    parallel = parallel if most is None else min(parallel, most)
    criteria = {} if target is None else {"TargetObjectiveMetricValue": target}
    criteria |= (
        {}
        if not_improving is None
        else {"BestObjectiveNotImproving": {"MaxNumberOfTrainingJobsNotImproving": not_improving}}
    )
    job = job_with(most=most, parallel=parallel, runtime_s=60, criteria=criteria)
    trials = []
    for seconds in range(70):
        decision = decided(job, trials, seconds=seconds)
        if decision.ends_as is not None:
            break
        trials += [running(len(trials) + 1 + place) for place in range(decision.num_starts)]
        open_places = [place for place, one in enumerate(trials) if not one.is_over]
        assert 0 < len(open_places) <= parallel  # the tuning job neither stalls nor exceeds its limit
        assert most is None or len(trials) <= most
        assert len(open_places) == parallel or len(trials) == most  # it does not wait without a reason either
        for place in data.draw(st.lists(st.sampled_from(open_places), unique=True, min_size=1), label="end"):
            trials[place] = ended(trials[place], data.draw(ends), seconds + 1)
    assert decision.ends_as in (TuningStatus.COMPLETED, TuningStatus.FAILED)
    assert decision.num_starts == 0
    if decision.ends_as is TuningStatus.FAILED:
        assert all(one.value is None for one in trials)
    if any(not one.is_over for one in trials):
        assert decision.stops_running
