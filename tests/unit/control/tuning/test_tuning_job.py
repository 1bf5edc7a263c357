"""Records of tuning jobs and trials: their ends, the objective of a trial, and the way to a document and back."""

import json

import pytest
from tuning_trials import trial, tuning_job

from clary.base.plain import from_plain, to_plain
from clary.control.tuning.tuning_job import ObjectiveStatus, Trial, TuningJob, TuningStatus


@pytest.mark.parametrize("status", TuningStatus)
def test_a_tuning_job_is_over_unless_it_goes_on_or_stops(status):
    is_over = status.value in ("Completed", "Stopped", "Failed")
    assert status.is_terminal == is_over
    assert tuning_job(status=status).is_terminal == is_over


def test_a_trial_has_an_objective_when_it_is_over_and_has_told_one():
    runs, fails, ends = trial(1, outcome=None), trial(2, None), trial(3, 0.0)
    assert [one.is_over for one in (runs, fails, ends)] == [False, True, True]
    assert [one.value for one in (runs, fails, ends)] == [None, None, 0.0]
    assert [one.objective_status for one in (runs, fails, ends)] == [
        ObjectiveStatus.PENDING,
        ObjectiveStatus.FAILED,
        ObjectiveStatus.SUCCEEDED,
    ]


def test_records_come_back_from_their_documents_as_they_were():
    job = tuning_job(ends_as=TuningStatus.FAILED, stops_running=True, unknown_members=("A.B",))
    assert from_plain(TuningJob, json.loads(json.dumps(to_plain(job)))) == job
    for one in (trial(1), trial(2, None, stop_reason="why"), trial(3, outcome=None)):
        assert from_plain(Trial, json.loads(json.dumps(to_plain(one)))) == one
