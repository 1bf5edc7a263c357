"""Pages of checkpoints: the choice of sets, the page of a job without sets, and verifications in the background."""

import asyncio
from dataclasses import dataclass, replace
from datetime import datetime
from types import SimpleNamespace

import pytest
from own_pages import FewParts
from server_parts import START, FakeServices, document, request, running_job

from clary.base.errors import ObjectStoreError, WireError
from clary.contract.agent_protocol import HostFacts, HostPhase
from clary.control.jobs.training_job import AttemptEnd, HostRecord, PastAttempt
from clary.control.objects.checkpoint_manifests import ManifestObject
from clary.control.objects.checkpoint_verification import SetReport, SetTarget
from clary.control.server import verification_runs
from clary.control.server.pages.checkpoints_page import CheckpointPages, checkpoint_facts, choose
from clary.control.server.verification_runs import VerificationRuns

PAGE = "/clary/v1/jobs/job-1/checkpoints"
CONFIG = {"CheckpointConfig": {"S3Uri": "s3://b-1/ckpt/demo"}}


def manifests(**numbers):
    return {
        host.replace("_", "-"): tuple(ManifestObject(host=host, number=number, size_bytes=1) for number in of_host)
        for host, of_host in numbers.items()
    }


FOUND = manifests(algo_10=(4,), algo_2=(9, 8), algo_1=(8, 7))


def chosen(**wanted):
    return choose(FOUND, job="job-1", **({"host": None, "number": None} | wanted))


def test_the_newest_set_of_each_host_is_chosen_in_the_order_of_hosts():
    assert chosen() == tuple(
        SetTarget(host=host, number=number, follows=True)
        for host, number in (("algo-1", 8), ("algo-2", 9), ("algo-10", 4))
    )


def test_one_host_and_one_set_number_can_be_requested():
    assert chosen(host="algo-2") == (SetTarget(host="algo-2", number=9, follows=True),)
    assert [(target.host, target.follows) for target in chosen(number="8")] == [("algo-1", False), ("algo-2", False)]
    assert chosen(number="00000008", host="algo-2") == (SetTarget(host="algo-2", number=8, follows=False),)


@pytest.mark.parametrize(
    ("wanted", "code", "words"),
    [
        ({"host": "algo-3"}, "NotFound", "no set of checkpoints of host 'algo-3'; there are sets of algo-1, algo-2"),
        ({"host": "\x1b[2J"}, "NotFound", r"of host '\x1b[2J'"),
        ({"number": "3"}, "NotFound", "there is no set 3 of job-1: algo-1 has 8, 7; algo-2 has 9, 8; algo-10 has 4"),
        ({"number": "x"}, "ValidationException", "set must be the number of a set"),
        ({"number": "\u0661"}, "ValidationException", "set must be the number of a set"),
        ({"number": "9" * 9}, "ValidationException", "set must be the number of a set"),
    ],
)
def test_a_missing_host_or_set_is_refused_with_the_existing_ones(wanted, code, words):
    with pytest.raises(WireError) as refused:
        chosen(**wanted)
    assert refused.value.code == code
    assert words in refused.value.message


def test_a_verification_without_any_set_is_refused():
    with pytest.raises(WireError, match="no set of checkpoints of job-1 has been committed yet"):
        choose({}, job="job-1", host=None, number=None)


async def refusal(job, client=None, query=""):
    people = FewParts(FakeServices([job]), checkpoints=CheckpointPages(client))
    with pytest.raises(WireError) as refused:
        await people.handle(request(PAGE, query=query))
    return refused.value


@pytest.mark.parametrize("query", ["", "verify=1"])
async def test_a_job_without_checkpoint_config_gets_a_not_found_error(query):
    refused = await refusal(running_job(), query=query)
    assert (refused.code, refused.http_status) == ("NotFound", 404)
    assert refused.message.startswith("job-1 has no CheckpointConfig: its checkpoints are not mirrored to S3")


async def test_a_uri_without_a_bucket_is_an_error_of_the_user():
    refused = await refusal(running_job(request={"CheckpointConfig": {"S3Uri": "s3:///x"}}))
    assert (refused.code, refused.http_status) == ("ValidationException", 400)


class FakeStoreAway:
    """A store that does not answer."""

    async def request(self, *_, **__):
        raise ObjectStoreError("the store is away", retryable=True)


@pytest.mark.parametrize("query", ["", "verify=1"])
async def test_an_unreachable_store_gives_503(query):
    refused = await refusal(running_job(request=CONFIG), FakeStoreAway(), query)
    assert (refused.code, refused.http_status, refused.message) == ("ServiceUnavailable", 503, "the store is away")


@dataclass(frozen=True, kw_only=True)
class Mirrored:
    """Stands for CheckpointFacts, of which the page knows no field."""

    set_number: int
    committed_at: datetime


@dataclass(frozen=True, kw_only=True)
class FactsWithCheckpoints(HostFacts):
    checkpoints: Mirrored | None = None


def facts(number=None):
    mirrored = None if number is None else Mirrored(set_number=number, committed_at=START)
    return FactsWithCheckpoints(phase=HostPhase.RUNNING, phase_started_at=START, checkpoints=mirrored)


async def test_checkpoint_facts_of_hosts_are_plain_data_and_shown_on_the_job_s_page_too():
    job = running_job(
        hosts={name: HostRecord(facts=facts(number)) for name, number in (("algo-1", 3), ("algo-2", None))}
    )
    expected = {"algo-1": {"set_number": 3, "committed_at": "2026-01-01T00:00:00+00:00"}}
    assert checkpoint_facts(job) == expected
    people = FewParts(FakeServices([job]))
    assert document(await people.handle(request("/clary/v1/jobs/job-1")))["checkpoints"] == expected


def test_a_job_that_waits_for_its_restart_shows_the_facts_of_its_last_attempt():
    past = [
        PastAttempt(
            number=number,
            kind=AttemptEnd.RECLAIMED,
            reason="r",
            asked_at=START,
            ended_at=START,
            hosts={"algo-1": facts(number)},
        )
        for number in (1, 2)
    ]
    job = running_job(hosts={}, past_attempts=tuple(past))
    assert checkpoint_facts(job)["algo-1"]["set_number"] == 2
    again = replace(job, hosts={"algo-1": HostRecord(facts=facts())})
    assert checkpoint_facts(again) == {}
    early = replace(past[1], number=3, hosts={"algo-1": facts()})
    assert checkpoint_facts(replace(job, past_attempts=(*past, early)))["algo-1"]["set_number"] == 2


@pytest.fixture
async def runs():
    runs = VerificationRuns(forget_after_s=600)
    yield runs
    await runs.close()


async def stand_still(report):
    report.bytes_read = 7
    await asyncio.Event().wait()


async def test_a_verification_returns_intermediate_results_until_it_has_ended(runs):
    go_on = asyncio.Event()

    async def work(report):
        report.sets.append(SetReport(host="algo-1", number=1, num_read=1))
        await go_on.wait()
        report.sets[0].is_done = True

    run = runs.start("job-1", work)
    assert await runs.wait(run, timeout_s=0.05) is False
    assert (run.report.sets[0].num_read, run.report.is_whole) == (1, False)
    go_on.set()
    assert await runs.wait(runs.find("job-1", run.number), timeout_s=60) is True
    assert run.report.is_whole


async def test_a_verification_belongs_to_one_job(runs):
    run = runs.start("job-1", stand_still)
    for owner, number in (("job-2", run.number), ("job-1", "nope")):
        with pytest.raises(WireError, match="there is no verification"):
            runs.find(owner, number)


async def test_verifications_beyond_the_limit_are_refused_until_one_has_ended(runs, monkeypatch):
    monkeypatch.setattr(verification_runs, "MAX_RUNS", 2)
    first, _ = runs.start("a", stand_still), runs.start("b", stand_still)
    with pytest.raises(WireError, match="2 verifications of checkpoints are at work") as refused:
        runs.start("c", stand_still)
    assert refused.value.http_status == 429
    first.task.cancel()
    await asyncio.wait({first.task})
    assert runs.start("c", stand_still)


async def test_a_verification_that_no_client_polls_ends_and_is_deleted():
    runs = VerificationRuns(forget_after_s=0.05)
    run = runs.start("job-1", stand_still)
    async with asyncio.timeout(30):
        await asyncio.wait({run.task})
    assert run.task.cancelled()
    with pytest.raises(WireError, match="no client asked about it for 0 s"):
        runs.find("job-1", run.number)


async def test_closing_ends_every_run():
    runs = VerificationRuns()
    run = runs.start("job-1", stand_still)
    await asyncio.sleep(0)
    await runs.close()
    assert run.task.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_exception_in_a_verification_is_raised_to_the_client_that_polls(runs):
    async def fail(report):
        raise KeyError("defect")

    with pytest.raises(KeyError, match="defect"):
        await runs.wait(runs.start("job-1", fail), timeout_s=60)


async def test_a_running_verification_is_polled_by_its_number(monkeypatch):
    async def find(client, place):
        assert (place.bucket, place.prefix) == ("b-1", "ckpt/demo/")
        return FOUND

    go_on = asyncio.Event()

    async def verify(client, place, targets, report):
        report.sets += [SetReport(host=target.host, number=target.number, is_done=True) for target in targets]
        await go_on.wait()

    monkeypatch.setattr("clary.control.server.pages.checkpoints_page.find_in_time", find)
    monkeypatch.setattr("clary.control.server.pages.checkpoints_page.verify_sets", verify)
    monkeypatch.setattr(verification_runs.VerificationRuns.wait, "__kwdefaults__", {"timeout_s": 0.05})
    routes = CheckpointPages(SimpleNamespace())
    people = FewParts(FakeServices([running_job(request=CONFIG)]), checkpoints=routes)
    first = document(await people.handle(request(PAGE, query="verify=1&host=algo-2")))
    assert (first["is_done"], first["is_whole"], first["sets"][0]["number"]) == (False, False, 9)
    go_on.set()
    last = document(await people.handle(request(PAGE, query=f"verify=1&run={first['run']}")))
    assert (last["run"], last["is_done"], last["is_whole"]) == (first["run"], True, True)
    await routes.close()
