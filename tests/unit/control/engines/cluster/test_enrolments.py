"""Boots that enrol: in any order, twice, late, with a wrong proof, two for one index, after a restart."""

import asyncio
import errno
import json
import stat
from pathlib import Path

import pytest

from clary.base.clock import SystemClock
from clary.base.errors import EngineError, WireError
from clary.contract.enrolment import Address, Admission, Enrolment, NodeReport, Standby
from clary.control.engines.cluster.enrolments import Enrolments

TAG, DIGEST = "pool_0123456789ab", "d" * 64


def report(node="n1", **changes):
    own = Address(interface="eth0", address="10.0.0.1", prefix_length=24)
    facts = {"addresses": (own,), "used_address": "10.0.0.1", "num_cpus": 8, "memory_bytes": 1 << 30}
    return NodeReport(node=node, **facts | changes)


def asked(claim="a" * 32, *, proof="right", wait_s=0.0, node="n1", **changes):
    return Enrolment(claim=claim, proof=proof, report=report(node, **changes), wait_s=wait_s)


def admission(index):
    return Admission(
        bundle=DIGEST,
        pool=TAG,
        pool_token="pool-token",
        job="job",
        attempt=1,
        agent_token="agent-token",
        host=f"algo-{index + 1}",
    )


@pytest.fixture
def opened(tmp_path):
    def open_enrolments():
        return Enrolments(
            tmp_path / "allocations",
            lambda tag, index, proof: "" if proof == "right" else "wrong proof",
            SystemClock(),
            bundle_digest=DIGEST,
        )

    return open_enrolments


@pytest.fixture
def enrolments(opened):
    made = opened()
    made.expect(TAG, 2)
    return made


async def refusal(enrolments, index, question, tag=TAG):
    with pytest.raises(WireError) as refused:
        await enrolments.enrol(tag, index, question)
    assert refused.value.http_status == 410
    return refused.value.message


async def test_a_gang_starts_together_once_it_is_complete_and_admitted(enrolments):
    second = asyncio.ensure_future(enrolments.enrol(TAG, 1, asked("b" * 32, wait_s=20, node="n2")))
    assert isinstance(await enrolments.enrol(TAG, 0, asked()), Standby)
    assert await enrolments.wait(TAG, 5)
    assert not second.done()
    enrolments.admit(TAG, {0: admission(0), 1: admission(1)})
    assert (await second).host == "algo-2"
    assert (await enrolments.enrol(TAG, 0, asked())).host == "algo-1"
    assert {index: one.node for index, one in enrolments.reports(TAG).items()} == {0: "n1", 1: "n2"}


async def test_a_lost_response_is_repeated_only_to_the_same_boot(enrolments):
    enrolments.admit(TAG, {0: admission(0)})
    assert isinstance(await enrolments.enrol(TAG, 0, asked()), Admission)
    assert isinstance(await enrolments.enrol(TAG, 0, asked()), Admission)
    assert "enrolled by another boot, on n1" in await refusal(enrolments, 0, asked("c" * 32))


@pytest.mark.parametrize(
    ("index", "question", "why"),
    [
        (0, asked(proof="wrong"), "wrong proof"),
        (0, asked(proof=""), "wrong proof"),
        (0, asked(claim="short"), "32 hex digits"),
        (2, asked(), "no job waits"),
        (-1, asked(), "no job waits"),
        (0, asked(addresses=(Address(interface="e", address="10.0.0.1", prefix_length=24),) * 300), "at most 256"),
    ],
)
async def test_an_unwanted_boot_is_refused_and_changes_nothing(enrolments, tmp_path, index, question, why):
    assert why in await refusal(enrolments, index, question)
    assert enrolments.reports(TAG) == {}
    assert not (tmp_path / "allocations").exists()


async def test_a_boot_of_an_ended_allocation_is_told_to_exit(enrolments):
    waiting = asyncio.ensure_future(enrolments.enrol(TAG, 0, asked(wait_s=20)))
    await asyncio.sleep(0.05)
    enrolments.forget(TAG)
    with pytest.raises(WireError, match="has ended"):
        await waiting
    assert "no job waits" in await refusal(enrolments, 0, asked())
    assert "no job waits" in await refusal(enrolments, 0, asked(), tag="pool_ffffffffffff")


async def test_indices_stay_taken_after_a_restart_of_the_service(enrolments, opened, tmp_path):
    await enrolments.enrol(TAG, 0, asked())
    later = opened()
    assert later.known() == [TAG]
    later.expect(TAG, 2)
    assert later.reports(TAG)[0].node == "n1"
    assert "enrolled by another boot" in await refusal(later, 0, asked("c" * 32))
    assert isinstance(await later.enrol(TAG, 0, asked()), Standby)
    (path,) = (tmp_path / "allocations").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "a" * 32 not in path.read_text()  # with the claim itself another boot could enrol


async def test_the_index_of_a_lost_host_is_free_for_another_boot(enrolments):
    await enrolments.enrol(TAG, 0, asked())
    await enrolments.enrol(TAG, 1, asked("b" * 32, node="n2"))
    enrolments.admit(TAG, {0: admission(0), 1: admission(1)})
    await enrolments.release(TAG, 1)
    assert not await enrolments.wait(TAG, 0)
    assert isinstance(await enrolments.enrol(TAG, 1, asked("c" * 32, node="n3")), Standby)
    assert enrolments.reports(TAG)[1].node == "n3"
    assert isinstance(await enrolments.enrol(TAG, 0, asked()), Admission)


async def test_of_concurrent_boots_for_one_index_only_one_enrols(enrolments):
    answers = await asyncio.gather(
        *(enrolments.enrol(TAG, 0, asked(f"{number:032x}", node=f"n{number}")) for number in range(8)),
        return_exceptions=True,
    )
    assert sum(isinstance(answer, Standby) for answer in answers) == 1
    assert {answer.http_status for answer in answers if not isinstance(answer, Standby)} == {410}


async def test_a_damaged_record_is_named(opened, tmp_path):
    (tmp_path / "allocations").mkdir()
    (tmp_path / "allocations" / f"{TAG}.json").write_text("{")
    with pytest.raises(EngineError, match=rf"{TAG}\.json"):
        opened().expect(TAG, 1)


@pytest.mark.parametrize("tag", ["../../etc/passwd", "pool_../../../x", "", "pool_0123456789AB"])
async def test_a_tag_is_never_a_path(enrolments, tag):
    assert "no job waits" in await refusal(enrolments, 0, asked(), tag=tag)
    with pytest.raises(EngineError, match="not the tag"):
        enrolments.expect(tag, 1)


async def test_the_record_is_readable_json(enrolments, tmp_path):
    await enrolments.enrol(TAG, 0, asked())
    (path,) = (tmp_path / "allocations").iterdir()
    assert json.loads(path.read_text())["0"]["report"]["node"] == "n1"


async def test_a_boot_whose_host_was_released_cannot_enrol_again(enrolments, opened):
    await enrolments.enrol(TAG, 1, asked("b" * 32, node="n2"))
    await enrolments.release(TAG, 1)
    assert "given up" in await refusal(enrolments, 1, asked("b" * 32, node="n2"))
    after_restart = opened()
    after_restart.expect(TAG, 2)
    assert "given up" in await refusal(after_restart, 1, asked("b" * 32, node="n2"))
    assert isinstance(await after_restart.enrol(TAG, 1, asked("c" * 32, node="n3")), Standby)


async def test_a_waiting_boot_whose_index_goes_to_another_gets_no_tokens(enrolments):
    waiting = asyncio.ensure_future(enrolments.enrol(TAG, 1, asked("b" * 32, wait_s=20, node="n2")))
    await asyncio.sleep(0.05)
    gone = asyncio.ensure_future(enrolments.release(TAG, 1))
    other = asyncio.ensure_future(enrolments.enrol(TAG, 1, asked("c" * 32, wait_s=20, node="n3")))
    await gone
    enrolments.admit(TAG, {0: admission(0), 1: admission(1)})
    assert (await other).agent_token == "agent-token"
    with pytest.raises(WireError, match="given up"):
        await waiting


async def test_indices_taken_concurrently_are_all_on_disk(opened):
    enrolments = opened()
    enrolments.expect(TAG, 16)
    numbers = range(16)
    await asyncio.gather(*(enrolments.enrol(TAG, n, asked(f"{n:032x}", node=f"n{n}")) for n in numbers))
    after_restart = opened()
    after_restart.expect(TAG, 16)
    assert {index: one.node for index, one in after_restart.reports(TAG).items()} == {n: f"n{n}" for n in numbers}


async def test_a_record_that_is_forgotten_during_its_write_is_removed(enrolments, tmp_path):
    asking = asyncio.ensure_future(enrolments.enrol(TAG, 0, asked()))
    while not (tmp_path / "allocations").exists():
        await asyncio.sleep(0)
    enrolments.forget(TAG)
    with pytest.raises(WireError, match="has ended"):
        await asking
    assert list((tmp_path / "allocations").iterdir()) == []


async def test_a_record_that_cannot_be_removed_does_not_keep_the_end_of_an_allocation(enrolments, monkeypatch, caplog):
    await enrolments.enrol(TAG, 0, asked())

    def refused(*_arguments, **_options):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "unlink", refused)
    enrolments.forget(TAG)
    monkeypatch.undo()
    assert "Input/output error" in caplog.text
    assert "no job waits" in await refusal(enrolments, 0, asked())
    assert enrolments.known() == [TAG]  # the service finds it again
    enrolments.forget(TAG)
    assert enrolments.known() == []


def test_records_that_cannot_be_listed_are_an_error_of_the_engine(enrolments, tmp_path, monkeypatch):
    def refused(*_arguments):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(EngineError, match="cannot be listed") as told:
        enrolments.known()
    assert told.value.retryable
