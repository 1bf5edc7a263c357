"""Dumps are asked of every host, taken once, kept for a while, and gone with their job."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from clary.base.errors import WireError
from clary.contract.agent_protocol import HostPhase, Report
from clary.contract.stack_dumps import HostDump
from clary.control.reconcile.desks import dump_desk
from clary.control.reconcile.desks.dump_desk import NUM_KEPT, WANTED_S
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


async def test_every_host_is_asked_until_it_has_answered(plane):
    assert await wanted_of(plane, "algo-1") == (0, "")
    job = await plane.job()
    number = plane.dumps.ask(job, "why").number
    assert await wanted_of(plane, "algo-1") == (number, "why")
    plane.gateway.take_dump(job, "algo-1", dump(number))
    assert await wanted_of(plane, "algo-1") == (0, "")
    assert await wanted_of(plane, "algo-2") == (number, "why")
    request, found = plane.dumps.read("job", number)
    assert (request.hosts, list(found)) == (("algo-1", "algo-2"), ["algo-1"])


async def test_a_host_that_does_not_answer_is_asked_for_a_while_only(plane):
    job = await plane.job()
    number = plane.dumps.ask(job, "why").number
    plane.clock.advance(WANTED_S + 1)
    assert await wanted_of(plane, "algo-1") == (0, "")
    plane.gateway.take_dump(job, "algo-1", dump(number))
    assert plane.dumps.missing("job", number) == ["algo-2"], "late is better than never"


async def test_answers_to_what_nobody_asked_are_refused(plane):
    job = await plane.job()
    number = plane.dumps.ask(job, "why").number
    for other, answer in ((job, dump(number + 1)), (replace(job, attempt=2), dump(number))):
        with pytest.raises(WireError, match="is not wanted"):
            plane.gateway.take_dump(other, "algo-1", answer)


async def test_who_asks_while_hosts_still_owe_an_answer_gets_that_one(plane):
    job = await plane.job()
    first = plane.dumps.ask(job, "one person")
    assert plane.dumps.ask(job, "another") == first
    for host in ("algo-1", "algo-2"):
        plane.gateway.take_dump(job, host, dump(first.number, host))
    assert plane.dumps.ask(job, "another").number > first.number


async def test_a_disk_that_is_full_leaves_the_host_asked(plane, monkeypatch):
    job = await plane.job()
    number = plane.dumps.ask(job, "why").number

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dump_desk, "_write", fail)
    with pytest.raises(OSError, match="No space"):
        plane.gateway.take_dump(job, "algo-1", dump(number))
    assert await wanted_of(plane, "algo-1") == (number, "why")


async def test_hosts_that_are_gone_owe_nothing(plane):
    job = await plane.job()
    plane.dumps.ask(job, "why")
    plane.gateway.forget(job)
    assert await wanted_of(plane, "algo-1") == (0, "")


async def test_a_dump_that_nobody_asked_for_makes_the_other_hosts_send_theirs(plane):
    job = await plane.job()
    plane.gateway.take_dump(job, "algo-2", dump(0, "algo-2", "no progress for 9 s"))
    number, reason = await wanted_of(plane, "algo-1")
    assert reason == "algo-2: no progress for 9 s"
    plane.gateway.take_dump(job, "algo-1", dump(0, "algo-1", "no progress for 10 s"))
    assert plane.dumps.numbers("job") == [number], "the second alarm belongs to the same standstill"
    assert sorted(plane.dumps.read("job", number)[1]) == ["algo-1", "algo-2"]


async def test_the_newest_are_kept_and_numbers_grow(plane):
    job = await plane.job()
    asked = []
    for _ in range(NUM_KEPT + 3):
        asked.append(plane.dumps.ask(job, "").number)
        plane.dumps.want_no_more("job")
    assert asked == sorted(set(asked))
    assert plane.dumps.numbers("job") == asked[: -NUM_KEPT - 1 : -1]


async def test_a_dump_that_is_not_there_or_broken_is_none(plane, tmp_path):
    assert plane.dumps.read("job", 1) is None
    assert plane.dumps.numbers("nobody") == []
    number = plane.dumps.ask(await plane.job(), "").number
    (tmp_path / "dumps" / "job" / str(number) / "algo-1.json").write_text("{")
    assert plane.dumps.read("job", number)[1] == {}


async def test_dumps_go_with_their_job(plane):
    plane.dumps.ask(await plane.job(), "")
    plane.dumps.forget("job")
    assert plane.dumps.numbers("job") == []
    assert await wanted_of(plane, "algo-1") == (0, "")
