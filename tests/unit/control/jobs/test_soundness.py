"""Checks of a job read from the store: members, times, and the plan of a job whose hosts may exist."""

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


def test_a_newly_created_job_is_sound() -> None:
    assert complaint(JOB) == ""
    assert complaint(replace(JOB, plan=to_plain(make_plan()), is_released=False)) == ""


@pytest.mark.parametrize("member", REQUIRED)
def test_a_missing_required_member_is_named(member: str) -> None:
    request = {name: value for name, value in JOB.request.items() if name != member}
    assert member in complaint(replace(JOB, request=request))


def test_a_plan_is_checked_only_while_hosts_may_exist() -> None:
    other_release = replace(JOB, plan={"job_name": "job"})
    assert complaint(other_release) == ""
    assert "launch plan" in complaint(replace(other_release, is_released=False))


@pytest.mark.parametrize("moment", [datetime(1969, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)])
def test_a_time_that_no_clock_can_show_is_rejected(moment: datetime) -> None:
    assert "expected a time" in complaint(replace(JOB, stop_ordered_at=moment))
