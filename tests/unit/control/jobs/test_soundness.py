"""Checks of a job that was read: members, times, and the plan of one whose hosts may exist."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from clary.base.plain import to_plain
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs.soundness import REQUIRED, complaint
from clary.control.jobs.training_job import TrainingJob
from clary.testing.control_plane import request_of
from clary.testing.launch_plans import make_plan

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = TrainingJob(
    name="job",
    arn="arn:job",
    request=request_of("job"),
    status=TrainingJobStatus.IN_PROGRESS,
    secondary_status=SecondaryStatus.STARTING,
    transitions=(),
    created_at=NOW,
    modified_at=NOW,
)


def test_a_job_as_it_is_created_is_sound() -> None:
    assert complaint(JOB) == ""
    assert complaint(replace(JOB, plan=to_plain(make_plan()), is_released=False)) == ""


@pytest.mark.parametrize("member", REQUIRED)
def test_a_member_that_every_request_has_is_missed(member: str) -> None:
    request = {name: value for name, value in JOB.request.items() if name != member}
    assert member in complaint(replace(JOB, request=request))


def test_a_plan_is_looked_at_while_it_may_be_carried_out() -> None:
    other_release = replace(JOB, plan={"job_name": "job"})
    assert complaint(other_release) == ""
    assert "launch plan" in complaint(replace(other_release, is_released=False))


@pytest.mark.parametrize("moment", [datetime(1969, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)])
def test_times_that_no_clock_has_shown_are_told(moment: datetime) -> None:
    assert "expected a time" in complaint(replace(JOB, stop_ordered_at=moment))
