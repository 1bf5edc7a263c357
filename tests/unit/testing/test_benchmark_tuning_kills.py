"""The trials that benchmark `tuning-kills` counts as lost or doubled."""

from dataclasses import replace

import pytest
from benchmarks.tuning.bench_kills import Seen, _wait_for_trials, count

SIZES = (1, 2, 2)
POINTS = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)]


def trial(number, point, *, value=None, status="Completed"):
    x, y, z = point
    return {
        "TrainingJobName": f"kills-{number:03}-0badcafe",
        "TrainingJobStatus": status,
        "TunedHyperParameters": {"row": str(x), "column": str(y), "layer": str(z)},
        "FinalHyperParameterTuningJobObjectiveMetric": {"Value": (x * 100 + y) * 100 + z if value is None else value},
    }


def seen_of(trials):
    names = [one["TrainingJobName"] for one in trials]
    points = [one["TunedHyperParameters"] for one in trials]
    logs = [["begin", f"ran {point['row']} {point['column']} {point['layer']}", "loss=1"] for point in points]
    return Seen(trials=trials, training_jobs=names, logs=dict(zip(names, logs, strict=True)))


ALL = [trial(number, point) for number, point in enumerate(POINTS, start=1)]


def test_a_run_with_every_point_once_has_no_lost_and_no_doubled_trial():
    found = count(seen_of(ALL), SIZES)
    assert (found.lost, found.doubled) == ([], [])


@pytest.mark.parametrize(("value", "status"), [(7, "Completed"), (101, "Stopped")])
def test_a_trial_without_the_value_of_its_point_is_lost(value, status):
    found = count(seen_of([*ALL[:3], trial(4, POINTS[3], value=value, status=status)]), SIZES)
    assert found.lost == [f"kills-004-0badcafe: expected ('Completed', 101), got {(status, value, '')}"]
    assert found.doubled == []


def test_a_missing_trial_and_a_training_job_without_a_trial_are_lost():
    seen = seen_of(ALL)
    found = count(replace(seen, trials=ALL[:3]), SIZES)
    assert found.lost == [
        "point (0, 1, 1): no trial",
        "kills-004-0badcafe: a training job that is no trial",
    ]


def test_a_program_that_never_ran_or_ran_another_point_is_lost_and_a_second_run_doubled():
    seen = seen_of(ALL)
    logs = {**seen.logs, ALL[0]["TrainingJobName"]: [], ALL[1]["TrainingJobName"]: ["ran 0 1 1"]}
    logs[ALL[2]["TrainingJobName"]] = ["ran 0 1 0", "ran 0 1 0"]
    found = count(replace(seen, logs=logs), SIZES)
    assert found.lost == [
        "kills-001-0badcafe: expected a line of its program, got []",
        "kills-002-0badcafe: expected a line of its program, got ['ran 0 1 1']",
    ]
    assert found.doubled == ["kills-003-0badcafe: ran 2 times"]


def test_a_point_or_a_number_of_two_trials_is_doubled():
    twice = {**trial(1, POINTS[1]), "TrainingJobName": "kills-001-feedf00d"}
    found = count(seen_of([*ALL, twice]), SIZES)
    assert found.lost == []
    assert found.doubled == ["number 1: 2 trials", "point (0, 0, 1): 2 trials"]


def test_the_wait_for_trials_ends_with_the_tuning_job():
    class Jobs:
        def __init__(self):
            self.sagemaker = self
            self.answers = [("InProgress", 3), ("Failed", 4)]

        def describe_hyper_parameter_tuning_job(self, **_):
            status, succeeded = self.answers.pop(0)
            counters = {"Succeeded": succeeded}
            return {"HyperParameterTuningJobStatus": status, "ObjectiveStatusCounters": counters}

    _wait_for_trials(Jobs(), 3)
    with pytest.raises(SystemExit, match=r"expected 5 trials to have ended within 7200 s, got 4: .*Failed"):
        _wait_for_trials(Jobs(), 5)
