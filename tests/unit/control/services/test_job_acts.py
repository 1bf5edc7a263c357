"""Actions behind both the AWS API and the service's own pages."""

from types import SimpleNamespace

import pytest

from clary.contract.statuses import TrainingJobStatus
from clary.control.services.job_acts import forget_files, stop_job
from clary.testing.control_plane import ControlPlane


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create("job")
        yield plane


async def test_a_job_is_stopped_once_and_not_after_its_end(plane):
    stopped = await stop_job(plane.services, await plane.job())
    assert stopped.status is TrainingJobStatus.STOPPED, "it had no hosts yet"
    assert await stop_job(plane.services, stopped) is None


async def test_all_files_of_a_deleted_job_are_deleted():
    forgotten = []

    async def forget(name):
        forgotten.append(name)

    kept = SimpleNamespace(forget=forget)
    services = SimpleNamespace(
        logs=SimpleNamespace(delete_streams=forget), work_folders=kept, profiles=kept, rehearsals=kept
    )
    await forget_files(services, "job")
    assert forgotten == ["job/", "job", "job", "job"]
