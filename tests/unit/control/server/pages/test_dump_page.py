"""The page `dump` of a job: requested by POST, shown by GET, refused while no program runs."""

from dataclasses import replace

import pytest
from own_pages import FewParts
from server_parts import START, FakeServices, document, request, running_job

from clary.base.errors import WireError
from clary.contract.agent_protocol import HostPhase
from clary.contract.stack_dumps import HostDump
from clary.control.reconcile.desks.dump_desk import DumpDesk
from clary.control.server.pages.dump_page import ANSWER_S
from clary.control.store.store import Store
from clary.testing.fake_clock import FakeClock

PATH = "/clary/v1/jobs/job-1/dump"


@pytest.fixture
async def services(tmp_path):
    made = FakeServices([running_job()], (), None)
    made.clock = FakeClock()
    store = await Store.open(f"sqlite:///{tmp_path / 'clary.db'}")
    await store.create_job(running_job(), {})
    made.dumps = DumpDesk(store.documents("dumps"), clock=made.clock)
    yield made
    await store.close()


async def answer_to(services, method="GET", query=""):
    return await FewParts(services).handle(request(PATH, method=method, query=query))


def dump_of(host, number):
    return HostDump(
        number=number, reason="", host=host, taken_at=START, addresses=(), processes=(), error="nothing runs"
    )


async def test_received_dumps_are_shown_with_the_missing_hosts(services):
    job = running_job()
    number = document(await answer_to(services, "POST"))["number"]
    await services.dumps.take(job, "algo-1", dump_of("algo-1", number))
    page = document(await answer_to(services, query=f"number={number}"))
    assert (page["number"], page["reason"], page["missing"]) == (number, "asked for", ["algo-2"])
    assert page["dumps"]["algo-1"]["error"] == "nothing runs"
    assert [item["who"] for item in page["autopsy"]["suspicions"]] == ["algo-1"], "algo-2 may still answer"
    assert document(await answer_to(services))["number"] == number, "the newest, where none is named"
    brief = document(await answer_to(services, query=f"number={number}&brief=1"))
    assert brief == {"number": number, "missing": ["algo-2"]}
    services.clock.advance(ANSWER_S + 1)
    late = document(await answer_to(services))["autopsy"]["suspicions"]
    assert [(item["who"], item["weight"]) for item in late] == [("algo-1", "note"), ("algo-2", "suspect")]


@pytest.mark.parametrize("query", ["number=1", "number=x", "number=../../etc", "number=" + "9" * 30])
async def test_a_missing_dump_gives_404(services, query):
    await services.dumps.ask(running_job(), "")
    with pytest.raises(WireError, match=r"job-1 has no dump .*; there are ") as refused:
        await answer_to(services, query=query)
    assert refused.value.http_status == 404


async def test_a_job_without_any_dump_gives_404(services):
    with pytest.raises(WireError, match="job-1 has no dump; none was taken"):
        await answer_to(services)


async def test_a_job_whose_program_does_not_run_gets_no_dump_request(services):
    job = running_job()
    hosts = {
        name: replace(record, facts=replace(record.facts, phase=HostPhase.PREPARING))
        for name, record in job.hosts.items()
    }
    other = FakeServices([replace(job, hosts=hosts)], (), None)
    other.dumps = services.dumps
    with pytest.raises(
        WireError, match=r"no program of job-1 is running \(InProgress, Training\);.* dump job-1 --last"
    ):
        await answer_to(other, "POST")
    assert await services.dumps.numbers("job-1") == []
