"""The page of a job: how its time was spent, and its price on AWS."""

from dataclasses import replace
from datetime import timedelta

import pytest
from own_pages import FewParts
from server_parts import START, FakeServices, document, request, running_job

from clary.cli.describe import describe
from clary.contract.statuses import SecondaryStatus
from clary.control.jobs.training_job import StatusTransition


def row(status, begin, end=None):
    ended_at = None if end is None else START + timedelta(seconds=end)
    return StatusTransition(status=status, started_at=START + timedelta(seconds=begin), ended_at=ended_at, message="m")


def spot_job(instance_type):
    rows = (
        row(SecondaryStatus.STARTING, 0, 2),
        row(SecondaryStatus.DOWNLOADING, 2, 3),
        row(SecondaryStatus.TRAINING, 3),
    )
    return running_job(
        transitions=rows,
        request={
            "AlgorithmSpecification": {"TrainingImage": "image:1"},
            "EnableManagedSpotTraining": True,
            "ResourceConfig": {"InstanceType": instance_type, "InstanceCount": 2},
        },
    )


async def facts_of(job):
    return document(await FewParts(FakeServices([job])).handle(request("/clary/v1/jobs/job-1")))


async def test_the_time_of_each_host_adds_up_to_the_job_s_and_the_bill_is_up_to_date():
    facts = await facts_of(spot_job("ml.p3.2xlarge"))
    book = facts["ledger"]
    assert book["wall_s"] == 12, "what the clock says"
    for host in book["hosts"]:
        assert sum(host["seconds"].values()) == pytest.approx(12)
    assert book["bill"]["training_s"] == 10
    assert book["bill"]["billable_s"] == 3
    assert book["bill"]["on_demand_usd"] == pytest.approx(2 * 3.825 * 10 / 3600, rel=0.01)


async def test_the_lanes_of_each_host_have_no_gap_and_add_up_to_the_ledger():
    facts = await facts_of(spot_job("ml.p3.2xlarge"))
    assert list(facts["lanes"]) == [host["name"] for host in facts["ledger"]["hosts"]]
    for host in facts["ledger"]["hosts"]:
        lane = facts["lanes"][host["name"]]
        assert [one["start"] for one in lane[1:]] == [one["end"] for one in lane[:-1]]
        assert {one["part"] for one in lane} == set(host["seconds"])


async def test_describe_prints_the_section_time_and_money():
    text = describe(await facts_of(spot_job("ml.p3.2xlarge")))
    section = text.split("time and money\n")[1]
    assert "  goodput " in section
    assert "  training 10 s a host, billable 3 s: 70.0 % saved" in section
    assert "prices.json, us-east-1" in section


async def test_the_time_until_hosts_have_connected_is_shown_and_is_not_goodput():
    job = spot_job("ml.p3.2xlarge")
    hosts = {
        name: replace(record, facts=replace(record.facts, exits=(), rendezvous_at=START + timedelta(seconds=second)))
        for (name, record), second in zip(job.hosts.items(), (4, 7), strict=True)
    }
    facts = await facts_of(replace(job, hosts=hosts))
    assert [host["rendezvous_at"] for host in facts["hosts"]] == [
        "2026-01-01T00:00:04+00:00",
        "2026-01-01T00:00:07+00:00",
    ]
    assert facts["ledger"]["seconds"]["rendezvous"] == 2 * 4
    assert facts["ledger"]["goodput"] == pytest.approx(5 / 12)
    lines = [line.split() for line in describe(facts).splitlines()]
    assert ["rendezvous", "8.0", "s", "33.3", "%", "4.0", "s", "4.0", "s"] in lines


async def test_a_type_without_a_price_has_a_ledger_and_a_note_on_the_price():
    facts = await facts_of(spot_job("ml.nobody.knows"))
    assert facts["ledger"]["bill"]["on_demand_usd"] is None
    assert facts["ledger"]["bill"]["notes"] == [
        "no price is known for ml.nobody.knows: name one in a file of setting prices_file"
    ]


async def test_a_waiting_job_has_a_ledger_without_a_bill():
    job = running_job(plan=None, hosts={}, log_streams=(), attempt=0, transitions=(row(SecondaryStatus.STARTING, 0),))
    facts = await facts_of(job)
    assert facts["ledger"]["seconds"] == {"queued": 12}
    assert facts["ledger"]["bill"] is None
