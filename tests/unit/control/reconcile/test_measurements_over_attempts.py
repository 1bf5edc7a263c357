"""Series read for profiler rules of a job of several attempts, also when the job ends while it waits for an attempt."""

from dataclasses import replace
from datetime import timedelta

from clary.control.jobs.attempts import put_on_record
from clary.control.jobs.training_job import AttemptEnd, AttemptEnding
from clary.control.reconcile.job_measurements import read_measurements, report_facts
from clary.control.series.queries import SeriesAnswer
from clary.testing.control_plane import ControlPlane


class FakeEmptySeries:
    """Holds no series."""

    async def query(self, query):
        return SeriesAnswer(series=())


async def test_a_job_without_hosts_is_read_with_the_hosts_of_its_last_attempt(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create(num_hosts=2)
        await plane.passes()
        running = replace(await plane.job(), training_started_at=plane.clock.now())
    now = running.created_at + timedelta(minutes=5)
    before = await read_measurements(FakeEmptySeries(), running, now=now)
    ending = AttemptEnding(kind=AttemptEnd.RECLAIMED, reason="gone", asked_at=now)
    waiting = put_on_record(replace(running, ending=ending), now, keeps_pool=False)
    assert waiting.plan is None
    after = await read_measurements(FakeEmptySeries(), waiting, now=now + timedelta(hours=1))
    assert after.measurements.hosts == before.measurements.hosts
    assert [shape.name for shape in after.measurements.hosts] == ["algo-1", "algo-2"]
    assert before.measurements.breaks_ms == ()
    assert after.measurements.breaks_ms == (int(now.timestamp() * 1000),)
    report, earlier = (report_facts(job, before, now=now) for job in (waiting, running))
    assert [replace(host, seconds={}) for host in report.hosts] == [replace(host, seconds={}) for host in earlier.hosts]
