"""The judgement on a tuning job under faults."""

from dataclasses import replace

import pytest

from clary.testing.faults.fault_ledger import Harm
from clary.testing.faults.fault_plan import FaultKind
from clary.testing.faults.fault_tuning import NUM_COLUMNS, NUM_ROWS, TuningEvidence, judge_tuning


def trial(row, column, *, name=None, value="right"):
    told = {} if value is None else {"Value": 3 * row + column if value == "right" else value}
    return {
        "TrainingJobName": name or f"tuned-{row}{column}",
        "TrainingJobStatus": "Completed",
        "TunedHyperParameters": {"row": str(row), "column": str(column)},
        **({"FinalHyperParameterTuningJobObjectiveMetric": told} if told else {}),
    }


WHOLE = tuple(trial(row, column) for row in range(NUM_ROWS) for column in range(NUM_COLUMNS))


def evidence(trials=WHOLE, *, status="Completed", listed=None):
    names = {one["TrainingJobName"] for one in trials} if listed is None else listed
    return TuningEvidence(name="tuned", status=status, reason="", trials=trials, listed=names)


def test_a_tuning_job_with_each_point_once_keeps_every_promise():
    assert judge_tuning(evidence(), ()) == []


@pytest.mark.parametrize(
    ("changed", "harms"),
    [
        (evidence(WHOLE[:-1]), [Harm.LOST]),
        (evidence((*WHOLE[:-1], trial(0, 0, name="again"))), [Harm.DOUBLED]),
        (evidence((*WHOLE, WHOLE[0])), [Harm.DOUBLED, Harm.DOUBLED, Harm.DOUBLED]),
        (evidence(listed={"tuned-00", "nobody's"}), [Harm.LOST]),
        (evidence((*WHOLE[:-1], trial(1, 2, value=None))), [Harm.LOST]),
        (evidence((*WHOLE[:-1], trial(1, 2, value=7))), [Harm.LOST]),
        (replace(evidence(), status="Failed"), [Harm.LOST]),
    ],
)
def test_lost_doubled_and_wrong_trials_are_reported(changed, harms):
    assert [violation.harm for violation in judge_tuning(changed, {FaultKind.KILL_SERVICE})] == harms


def test_full_disks_may_cost_trials_and_values_but_double_no_trial():
    disks = {FaultKind.FILL_HOSTS}
    assert judge_tuning(evidence((*WHOLE[:-1], trial(1, 2, value=None))), disks) == []
    assert judge_tuning(evidence(WHOLE[:2], status="Failed"), disks) == []
    doubled = evidence((*WHOLE[:-1], trial(0, 0, name="again")))
    assert [violation.harm for violation in judge_tuning(doubled, disks)] == [Harm.DOUBLED]
