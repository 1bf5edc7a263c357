"""The users' view of a queue: waiting jobs, their positions, and their times."""

import pytest

from clary.control.store.job_cards import CardQuery
from clary.testing.control_plane import ControlPlane


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:  # of 4 hosts
        yield plane


async def test_every_waiting_job_is_shown_as_pending_and_not_only_the_first(plane):
    await plane.create("holder", num_hosts=4)
    await plane.passes()
    for number in range(3):
        await plane.create(f"waiter-{number}")
        plane.clock.advance(1)
    await plane.passes(2)
    listed = await plane.call("sagemaker", "ListTrainingJobs")
    found = {job["TrainingJobName"]: job["SecondaryStatus"] for job in listed["TrainingJobSummaries"]}
    assert found == {"holder": "Starting"} | {f"waiter-{number}": "Pending" for number in range(3)}
    page = await plane.store.cards.page(CardQuery(), now=plane.clock.now())
    assert page.states == {"Queued": 3, "Starting": 1}


async def test_the_status_of_a_waiting_job_is_recorded_once(plane):
    await plane.create("holder", num_hosts=4)
    await plane.passes()
    for name in ("head", "behind"):
        await plane.create(name)
    await plane.passes(2)
    before = await plane.job("behind")
    await plane.run_to_end("holder", num_hosts=4)
    await plane.create("newcomer", num_hosts=4)
    assert await plane.job("behind") is not None
    assert len(before.transitions) == 2


async def test_positions_and_estimates_come_from_limits_and_from_past_jobs(plane):
    await plane.create("train-001", num_hosts=4)
    await plane.passes()
    await plane.create("train-002", num_hosts=4)
    await plane.create("train-003", num_hosts=4)
    await plane.passes()
    first, second = (plane.services.queue.places()[name] for name in ("train-002", "train-003"))
    assert (first.place, second.place, second.num_waiting) == (1, 2, 2)
    assert (first.start_in_s, first.basis) == (3600, "MaxRuntimeInSeconds")
    assert second.start_in_s == 7200
    plane.clock.advance(40)
    await plane.run_to_end("train-001", num_hosts=4)
    await plane.passes(2)
    (last,) = plane.services.queue.places().values()
    assert last.basis == "past jobs"
    assert last.start_in_s < 60


async def test_members_of_a_sweep_are_past_jobs_of_each_other_wherever_their_numbers_are(plane):
    await plane.create("sweep-001-lr-0-1", num_hosts=4)
    await plane.passes()
    await plane.create("sweep-002-lr-0-05", num_hosts=4)
    await plane.create("sweep-003-lr-0-025", num_hosts=4)
    plane.clock.advance(40)
    await plane.run_to_end("sweep-001-lr-0-1", num_hosts=4)
    await plane.passes(2)
    (last,) = plane.services.queue.places().values()
    assert last.basis == "past jobs"
