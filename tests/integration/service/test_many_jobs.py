"""Fifty concurrent jobs, created, stopped and deleted by eight clients. Figures: `python -m benchmarks concurrency`."""

from statistics import median

import pytest
from running_service import start_service

from clary.testing.many_jobs.crowd import CrowdPlan, run_crowd
from clary.testing.many_jobs.records import Life

pytestmark = [pytest.mark.timeout(450), pytest.mark.xdist_group("many_jobs")]

SETTINGS = "max_hosts = 4\nmemory_overcommit = 32.0\nstop_grace_s = 10.0\n"
PLAN = CrowdPlan(num_clients=8, num_jobs=50, seconds=8.0, settle_s=2.0, look_interval_s=10.0)
MIB = 1024**2
MAX_GROWTH_BYTES = 32 * MIB  # growth since the start of the service; 2 to 5 were measured


@pytest.fixture
def own_service(tmp_path):
    service = start_service(tmp_path / "home", SETTINGS)
    yield service
    service.clary("down", check=False)
    assert "left behind" not in service.clary("doctor", check=False).stdout


@pytest.mark.long
def test_fifty_jobs_of_eight_clients_end_correctly_in_order_of_creation(own_service):
    report = run_crowd(PLAN, own_service.environment, own_service.home)
    print(f"\n{len(report.jobs)} jobs: {report.statuses}; refused: {report.refusals}")
    for operation, latencies in report.latencies_s.items():
        print(f"{operation}: {len(latencies)} calls, p50 {median(latencies):.3f} s, at most {latencies[-1]:.3f} s")
    for sample in report.samples:
        print(
            f"{sample.label}: {sample.rss_bytes / MIB:.1f} MiB, {sample.num_files} files, {sample.cpu_s:.1f} s of CPU"
        )
    assert report.wrongs == []
    # The load was concurrent: every client had its share of live jobs, and jobs of every kind ended.
    assert sum(client.num_alive_at_most for client in report.clients) == PLAN.num_jobs
    assert all(len(client.jobs) >= client.num_alive_at_most for client in report.clients)
    assert {job.life for job in report.jobs} == set(Life)
    assert any(job.admitted_from is not None and job.num_hosts > 1 for job in report.jobs)
    assert report.samples[-1].rss_bytes - report.samples[0].rss_bytes < MAX_GROWTH_BYTES
