"""The page `health` of a job."""

from dataclasses import replace

from own_pages import FewParts
from server_parts import FakeServices, document, request, running_job

from clary.contract.health import Check, FindingState, HealthFinding

PATH = "/clary/v1/jobs/job-1/health"


async def page_of(job):
    return document(await FewParts(FakeServices([job], (), None)).handle(request(PATH)))


def with_finding(job, **changes):
    record = job.hosts["algo-1"]
    finding = HealthFinding(**{"check": Check.DISK, "state": FindingState.BAD, "host": "algo-1", **changes})
    facts = replace(record.facts, health=(finding,))
    return replace(job, hosts={**job.hosts, "algo-1": replace(record, facts=facts)})


async def test_findings_are_grouped_by_host_with_the_list_of_sick_hosts():
    page = await page_of(with_finding(running_job(), words="full", cause="the disk is full"))
    assert page["state"] == "Running"
    assert page["hosts"]["algo-1"][0]["words"] == "full"
    assert page["hosts"]["algo-2"] == []
    assert page["sick"] == [{"host": "algo-1", "peer": None, "reason": "disk: full (the disk is full)"}]


async def test_a_job_without_health_checks_is_marked_as_unchecked():
    job = running_job()
    page = await page_of(replace(job, plan={**job.plan, "health_checks": False}))
    assert page["is_checked"] is False
    assert page["sick"] == []
