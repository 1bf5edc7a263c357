"""Records of tuning jobs and trials: their ends, the objective of a trial, and the conversion to documents and back."""

import json

import pytest
from tuning_trials import trial, tuning_job

from clary.base.plain import from_plain, to_plain
from clary.control.tuning.tuning_job import ObjectiveStatus, Trial, TuningJob, TuningStatus


@pytest.mark.parametrize("status", TuningStatus)
def test_a_tuning_job_has_ended_unless_it_is_in_progress_or_stopping(status):
    is_over = status.value in ("Completed", "Stopped", "Failed")
    assert status.is_terminal == is_over
    assert tuning_job(status=status).is_terminal == is_over


def test_a_trial_has_an_objective_when_it_has_ended_and_reported_one():
    runs, fails, ends = trial(1, outcome=None), trial(2, None), trial(3, 0.0)
    assert [one.is_over for one in (runs, fails, ends)] == [False, True, True]
    assert [one.value for one in (runs, fails, ends)] == [None, None, 0.0]
    assert [one.objective_status for one in (runs, fails, ends)] == [
        ObjectiveStatus.PENDING,
        ObjectiveStatus.FAILED,
        ObjectiveStatus.SUCCEEDED,
    ]


def test_records_survive_the_conversion_to_documents():
    job = tuning_job(ends_as=TuningStatus.FAILED, stops_running=True, unknown_members=("A.B",))
    assert from_plain(TuningJob, json.loads(json.dumps(to_plain(job)))) == job
    for one in (trial(1), trial(2, None, stop_reason="why"), trial(3, outcome=None)):
        assert from_plain(Trial, json.loads(json.dumps(to_plain(one)))) == one
