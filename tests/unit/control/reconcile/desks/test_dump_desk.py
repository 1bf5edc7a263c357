"""Dumps are requested from every host, stored once, kept for a while, and deleted with their job."""

import asyncio
import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from clary.base.errors import StoreError, WireError
from clary.base.plain import to_plain
from clary.contract.agent_protocol import HostPhase, Report
from clary.contract.stack_dumps import HostDump
from clary.control.reconcile.desks import dump_desk
from clary.control.reconcile.desks.dump_desk import NUM_KEPT, WANTED_S
from clary.control.store.documents.document_folders import take_over
from clary.control.store.documents.numbered_documents import NumberedDocuments
from clary.control.store.errors import JobNotFound
from clary.testing.control_plane import ControlPlane


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create(num_hosts=2)
        await plane.passes()
        for host in ("algo-1", "algo-2"):
            await plane.agent(host=host).report(HostPhase.PREPARING)
        yield plane


def dump(number, host="algo-1", reason="asked for"):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return HostDump(number=number, reason=reason, host=host, taken_at=now, addresses=(), processes=(), error="none")


async def wanted_of(plane, host):
    job = await plane.job()
    facts = job.hosts[host].facts
    receipt = await plane.gateway.report(job, host, Report(number=0, facts=facts))
    return receipt.dump_number, receipt.dump_reason


async def test_a_dump_is_requested_from_every_host_until_the_host_has_answered(plane):
    assert await wanted_of(plane, "algo-1") == (0, "")
    job = await plane.job()
    number = (await plane.dumps.ask(job, "why")).number
    assert await wanted_of(plane, "algo-1") == (number, "why")
    await plane.gateway.take_dump(job, "algo-1", dump(number))
    assert await wanted_of(plane, "algo-1") == (0, "")
    assert await wanted_of(plane, "algo-2") == (number, "why")
    request, found = await plane.dumps.read("job", number)
    assert (request.hosts, list(found)) == (("algo-1", "algo-2"), ["algo-1"])


async def test_a_request_to_a_host_that_does_not_answer_expires(plane):
    job = await plane.job()
    number = (await plane.dumps.ask(job, "why")).number
    plane.clock.advance(WANTED_S + 1)
    assert await wanted_of(plane, "algo-1") == (0, "")
    await plane.gateway.take_dump(job, "algo-1", dump(number))
    assert await plane.dumps.missing("job", number) == ["algo-2"], "late is better than never"


async def test_answers_without_a_request_are_refused(plane):
    job = await plane.job()
    number = (await plane.dumps.ask(job, "why")).number
    for other, answer in ((job, dump(number + 1)), (replace(job, attempt=2), dump(number))):
        with pytest.raises(WireError, match="is not wanted"):
            await plane.gateway.take_dump(other, "algo-1", answer)


async def test_a_request_while_a_dump_is_open_returns_the_open_dump(plane):
    job = await plane.job()
    first = await plane.dumps.ask(job, "one person")
    assert await plane.dumps.ask(job, "another") == first
    for host in ("algo-1", "algo-2"):
        await plane.gateway.take_dump(job, host, dump(first.number, host))
    assert (await plane.dumps.ask(job, "another")).number > first.number


async def test_a_full_disk_leaves_the_request_to_the_host_open(plane, monkeypatch):
    job = await plane.job()
    number = (await plane.dumps.ask(job, "why")).number

    async def fail(*_, **__):
        raise StoreError("No space left on device")

    monkeypatch.setattr(NumberedDocuments, "put", fail)
    with pytest.raises(StoreError, match="No space"):
        await plane.gateway.take_dump(job, "algo-1", dump(number))
    assert await wanted_of(plane, "algo-1") == (number, "why")


async def test_released_hosts_get_no_requests(plane):
    job = await plane.job()
    await plane.dumps.ask(job, "why")
    plane.gateway.forget(job)
    assert await wanted_of(plane, "algo-1") == (0, "")


async def test_an_unrequested_dump_makes_the_other_hosts_send_theirs(plane):
    job = await plane.job()
    await plane.gateway.take_dump(job, "algo-2", dump(0, "algo-2", "no progress for 9 s"))
    number, reason = await wanted_of(plane, "algo-1")
    assert reason == "algo-2: no progress for 9 s"
    await plane.gateway.take_dump(job, "algo-1", dump(0, "algo-1", "no progress for 10 s"))
    assert await plane.dumps.numbers("job") == [number], "the second alarm belongs to the same standstill"
    assert sorted((await plane.dumps.read("job", number))[1]) == ["algo-1", "algo-2"]


async def test_the_newest_dumps_are_kept_and_numbers_grow(plane):
    job = await plane.job()
    asked = []
    for _ in range(NUM_KEPT + 3):
        asked.append((await plane.dumps.ask(job, "")).number)
        plane.dumps.want_no_more("job")
    assert asked == sorted(set(asked))
    assert await plane.dumps.numbers("job") == asked[: -NUM_KEPT - 1 : -1]


async def test_a_missing_or_broken_dump_gives_none(plane, tmp_path):
    assert await plane.dumps.read("job", 1) is None
    assert await plane.dumps.numbers("nobody") == []
    number = (await plane.dumps.ask(await plane.job(), "")).number
    await plane.store.documents("dumps").put("job", number, {"algo-1": {"of": "another release"}})
    assert (await plane.dumps.read("job", number))[1] == {}


async def test_dumps_are_deleted_with_their_job(plane):
    job = await plane.job()
    number = (await plane.dumps.ask(job, "")).number
    await plane.store.delete_job("job")
    assert await plane.dumps.numbers("job") == []
    with pytest.raises(WireError, match="is not wanted"):
        await plane.gateway.take_dump(job, "algo-1", dump(number))
    with pytest.raises(JobNotFound):
        await plane.gateway.take_dump(job, "algo-1", dump(0))


async def test_dumps_of_an_older_release_are_shown_and_deleted_with_their_job(plane, tmp_path):
    request = dump_desk.DumpRequest(
        number=7, reason="old", attempt=1, hosts=("algo-1", "algo-2"), asked_at=plane.clock.now()
    )
    for name in ("job", "gone"):
        place = tmp_path / "dumps" / name / "7"
        place.mkdir(parents=True)
        (place / "request.json").write_text(json.dumps(to_plain(request)))
        answer = json.dumps(to_plain(dump(7, reason="\ud800")), ensure_ascii=False)
        (place / "algo-1.json").write_text(answer, encoding="utf-8", errors="surrogatepass")
    documents = plane.store.documents("dumps")
    (tmp_path / "dumps/job/8").mkdir()
    (tmp_path / "dumps/job/8/algo-1.json").write_text("{}")  # its request was never written
    (tmp_path / "dumps/job" / ("9" * 30)).mkdir()
    assert await take_over(tmp_path / "dumps", documents, first="request") == 1
    assert (tmp_path / "set-aside/dumps/gone/7/algo-1.json").exists()
    shutil.rmtree(tmp_path / "dumps/job/8")
    shutil.rmtree(tmp_path / "dumps/job" / ("9" * 30))
    assert await plane.dumps.read("job", 7) == (request, {"algo-1": dump(7, reason="\ud800")})
    assert await plane.dumps.missing("job", 7) == ["algo-2"]
    assert sorted(path.name for path in (tmp_path / "dumps").rglob("*")) == ["job"]


async def test_a_service_killed_during_the_migration_stores_no_dump_twice(plane, tmp_path):
    number = (await plane.dumps.ask(await plane.job(), "new")).number
    place = tmp_path / "dumps" / "job" / str(number)
    place.mkdir(parents=True)
    (place / "request.json").write_text('{"of": "before"}')
    assert await take_over(tmp_path / "dumps", plane.store.documents("dumps"), first="request") == 0
    assert (await plane.dumps.read("job", number))[0].reason == "new"
    assert not (tmp_path / "dumps").exists()


async def test_two_concurrent_requests_get_one_dump(plane):
    job = await plane.job()
    first, second = await asyncio.gather(plane.dumps.ask(job, "one person"), plane.dumps.ask(job, "another"))
    assert first == second
    assert await plane.dumps.numbers("job") == [first.number]
