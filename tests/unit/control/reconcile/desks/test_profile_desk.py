"""Profiles are requested from every host, stored once, kept for a while, summarised, and deleted with their job."""

import asyncio
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from clary.base.errors import ObjectStoreError, WireError
from clary.base.plain import to_plain
from clary.contract.agent_protocol import HostPhase
from clary.contract.deep_profiles import HostProfile, RankProfile, RankState, Window
from clary.control.reconcile.desks import profile_desk, profile_keeping
from clary.control.reconcile.desks.profile_desk import ANSWER_S, BY_CONFIG, NUM_KEPT, ProfileDesk
from clary.control.reconcile.desks.profile_keeping import keep_profiles
from clary.control.store.documents.document_folders import take_over
from clary.testing.control_plane import ControlPlane

FIVE = Window(start_step=None, num_steps=5)
CONFIG = {
    "S3OutputPath": "s3://bucket/some/where",
    "ProfilingParameters": {"DetailedProfilingConfig": '{"StartStep": 4, "NumSteps": 2, }'},
}


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create(num_hosts=2, ProfilerConfig=CONFIG)
        await plane.passes()
        for host in ("algo-1", "algo-2"):
            await plane.agent(host=host).report(HostPhase.PREPARING)
        yield plane


def answer(number, host, *, is_final=True, state=RankState.DONE):
    rank = int(host.removeprefix("algo-")) - 1
    return HostProfile(number=number, host=host, is_final=is_final, ranks=(RankProfile(rank=rank, state=state),))


async def test_every_host_gets_the_request_with_its_next_report_and_ranks_start_together(plane):
    receipt = await plane.agent(host="algo-2").report()
    assert receipt.profile is None
    job = await plane.job()
    request = await plane.profiles.ask(job, FIVE, reason="why", ranks=(1,))
    for host in ("algo-1", "algo-2"):
        assert (await plane.agent(host=host).report()).profile == request.asked
    now = plane.clock.now().timestamp()
    assert request.asked.start_at > now
    assert request.asked.give_up_at > request.asked.start_at
    assert (request.asked.num_steps, request.asked.ranks) == (5, (1,))


async def test_an_equal_request_returns_the_open_profile_and_another_is_refused(plane):
    job = await plane.job()
    first = await plane.profiles.ask(job, FIVE, reason="one person")
    assert (await plane.profiles.ask(job, FIVE, reason="another")).number == first.number
    with pytest.raises(WireError, match=r"another profile of job is being taken .* 5 steps.* profile job --cancel"):
        await plane.profiles.ask(job, replace(FIVE, num_steps=6), reason="another")
    for host in ("algo-1", "algo-2"):
        await plane.gateway.take_profile(job, host, answer(first.number, host))
    assert (await plane.profiles.ask(job, replace(FIVE, num_steps=6), reason="another")).number > first.number


async def test_a_trace_arrives_in_pieces_and_a_repeated_piece_is_harmless(plane):
    job = await plane.job()
    number = (await plane.profiles.ask(job, FIVE, reason="")).number
    take = plane.gateway.take_trace
    await take(job, "algo-1", b"abc", number=number, rank=0, offset=0, is_last=False)
    await take(job, "algo-1", b"def", number=number, rank=0, offset=3, is_last=False)
    await take(job, "algo-1", b"def", number=number, rank=0, offset=3, is_last=False)
    place = plane.profiles.place("job", number) / "rank-0.trace.json.gz"
    assert not place.exists(), "whole or not at all"
    with pytest.raises(WireError, match="has 6 bytes, so its next part cannot start at 9"):
        await take(job, "algo-1", b"x", number=number, rank=0, offset=9, is_last=True)
    await take(job, "algo-1", b"g", number=number, rank=0, offset=6, is_last=True)
    assert place.read_bytes() == b"abcdefg"
    with pytest.raises(WireError, match="at most"):
        await take(job, "algo-1", b"g", number=number, rank=0, offset=1 << 40, is_last=True)


async def test_the_traces_of_a_profile_have_a_total_size(plane, monkeypatch):
    monkeypatch.setattr(profile_desk, "MAX_PROFILE_BYTES", 10)
    job = await plane.job()
    number = (await plane.profiles.ask(job, FIVE, reason="")).number
    take = plane.gateway.take_trace
    await take(job, "algo-1", b"abcd", number=number, rank=0, offset=0, is_last=True)
    await take(job, "algo-2", b"abc", number=number, rank=1, offset=0, is_last=False)
    await take(job, "algo-2", b"abc", number=number, rank=1, offset=0, is_last=False)
    with pytest.raises(WireError, match="traces of a profile have at most 10 bytes"):
        await take(job, "algo-1", b"abcd", number=number, rank=2, offset=0, is_last=False)
    await take(job, "algo-2", b"def", number=number, rank=1, offset=3, is_last=True)
    with pytest.raises(WireError, match="at most 10 bytes"):
        await take(job, "algo-1", b"a", number=number, rank=2, offset=0, is_last=True)
    folder = plane.profiles.place("job", number)
    assert sum(path.stat().st_size for path in folder.iterdir()) == 10
    for host in ("algo-1", "algo-2"):
        await plane.gateway.take_profile(job, host, answer(number, host))
    later = (await plane.profiles.ask(job, FIVE, reason="")).number
    await take(job, "algo-1", b"abcd", number=later, rank=0, offset=0, is_last=True)


async def test_a_profile_has_as_many_traces_as_its_hosts_may_have_ranks(plane, monkeypatch):
    monkeypatch.setattr(profile_desk, "MAX_RANKS", 2)
    job = await plane.job()
    number = (await plane.profiles.ask(job, FIVE, reason="")).number
    for rank in (0, 7, 10**9, 3):
        await plane.gateway.take_trace(job, "algo-1", b"a", number=number, rank=rank, offset=0, is_last=rank == 7)
    with pytest.raises(WireError, match="at most 4 traces"):
        await plane.gateway.take_trace(job, "algo-1", b"", number=number, rank=5, offset=0, is_last=False)
    await plane.gateway.take_trace(job, "algo-1", b"b", number=number, rank=3, offset=1, is_last=True)
    folder = plane.profiles.place("job", number)
    assert (folder / "rank-3.trace.json.gz").read_bytes() == b"ab"


async def test_answers_without_a_request_are_refused(plane):
    job = await plane.job()
    number = (await plane.profiles.ask(job, FIVE, reason="")).number
    for other, wrong in ((job, answer(number + 1, "algo-1")), (replace(job, attempt=2), answer(number, "algo-1"))):
        with pytest.raises(WireError, match="is not wanted"):
            await plane.gateway.take_profile(other, "algo-1", wrong)


async def test_a_profile_from_the_job_s_own_configuration_is_known_when_its_hosts_answer(plane):
    job = await plane.job()
    await plane.gateway.take_profile(job, "algo-1", answer(job.attempt, "algo-1"))
    request, found = await plane.profiles.read("job", job.attempt)
    assert (request.reason, request.asked.start_step, request.asked.num_steps) == (BY_CONFIG, 4, 2)
    assert list(found) == ["algo-1"]
    assert not await plane.profiles.is_ready(job, request)
    plane.clock.advance(10 * ANSWER_S)
    assert not await plane.profiles.is_ready(job, request), "its step may come late"
    await plane.gateway.take_profile(job, "algo-2", answer(job.attempt, "algo-2"))
    assert await plane.profiles.is_ready(job, request)


async def test_a_profile_ends_with_its_attempt_its_timeout_or_its_cancellation(plane):
    job = await plane.job()
    assert await plane.profiles.cancel(replace(job, plan=None)) is None
    request = await plane.profiles.ask(job, FIVE, reason="")
    assert not await plane.profiles.is_ready(job, request)
    assert await plane.profiles.is_ready(replace(job, attempt=2), request)
    assert await plane.profiles.is_ready(None, request)
    assert (await plane.profiles.cancel(job)).asked.is_cancelled
    assert (await plane.agent().report()).profile.is_cancelled
    plane.clock.advance(ANSWER_S + 1)
    assert await plane.profiles.is_ready(job, request)


async def test_a_cancellation_leaves_a_profile_that_was_given_up_closed(plane):
    job = replace(await plane.job(), plan=None)
    given_up = await plane.profiles.ask(job, FIVE, reason="")
    plane.clock.advance(ANSWER_S + 1)
    assert await plane.profiles.is_ready(job, given_up)
    plane.profiles.close_request("job", given_up.number)
    assert await plane.profiles.cancel(job) is None
    assert not plane.profiles.open
    assert (await plane.profiles.ask(job, replace(FIVE, num_steps=6), reason="")).number > given_up.number


async def test_the_newest_profiles_are_kept_and_a_deleted_job_has_none(plane):
    job = await plane.job()
    for _ in range(NUM_KEPT + 2):
        number = (await plane.profiles.ask(job, FIVE, reason="")).number
        for host in ("algo-1", "algo-2"):
            await plane.gateway.take_profile(job, host, answer(number, host))
    assert len(await plane.profiles.numbers("job")) == NUM_KEPT
    assert (await plane.profiles.numbers("job"))[0] == number
    await plane.profiles.forget("job")
    await plane.store.delete_job("job")
    assert await plane.profiles.numbers("job") == []
    assert not plane.profiles.open


async def test_updates_of_the_job_start_and_end_profiling_windows(plane):
    update = {"ProfilingParameters": {"DetailedProfilingConfig": '{"StartStep": 9, "NumSteps": 2}'}}
    await plane.call("sagemaker", "UpdateTrainingJob", TrainingJobName="job", ProfilerConfig=update)
    asked = (await plane.agent().report()).profile
    assert (asked.start_step, asked.num_steps, asked.give_up_at, asked.is_cancelled) == (9, 2, 0, False)
    await plane.call("sagemaker", "UpdateTrainingJob", TrainingJobName="job", ProfilerConfig={"DisableProfiler": True})
    assert (await plane.agent().report()).profile.is_cancelled


async def test_profiles_of_an_older_release_are_shown_and_open_ones_are_resumed(plane, tmp_path):
    request = await plane.profiles.ask(await plane.job(), FIVE, reason="old")
    folder = plane.profiles.place("job", request.number)
    folder.mkdir(parents=True)
    (folder / "request.json").write_text(json.dumps(to_plain(request)))
    await plane.store.documents("profiles").remove("job")
    over = folder.with_name("5")
    over.mkdir()
    (over / "request.json").write_text(json.dumps(to_plain(replace(request, number=5))))
    (over / "algo-1.json").write_text(json.dumps(to_plain(answer(5, "algo-1"))))
    (over / "summary.json").write_text('{"ranks": []}')
    (over / "rank-0.trace.json.gz").write_bytes(b"trace")
    home = folder.parent.parent
    shutil.copytree(over, home / "gone" / "5")
    documents = plane.store.documents("profiles")
    for num_stored in (2, 0):
        assert await take_over(home, documents, first="request", keeps_files=True) == num_stored
    desk = ProfileDesk(documents, home, clock=plane.clock)
    await desk.load()
    assert list(desk.open) == [("job", request.number)]
    assert await desk.summary("job", 5) == {"ranks": []}
    assert list((await desk.read("job", 5))[1]) == ["algo-1"]
    assert (desk.place("job", 5) / "rank-0.trace.json.gz").read_bytes() == b"trace"
    assert not desk.place("gone", 5).exists()
    assert [is_over for _, is_over in await desk.list("job")] == [False, True]


async def test_a_profile_that_was_evicted_for_newer_ones_is_not_restored(plane):
    documents = plane.store.documents("profiles")
    request = await plane.profiles.ask(await plane.job(), FIVE, reason="newest")
    home = plane.profiles.place("job", request.number).parent.parent
    old = home / "job" / "5"  # the service was killed after it deleted the rows and before it deleted the folder
    old.mkdir(parents=True)
    (old / "request.json").write_text(json.dumps(to_plain(replace(request, number=5))))
    assert await take_over(home, documents, first="request", keeps_files=True) == 0
    assert await documents.numbers("job") == [request.number]


class FakeObjects:
    """Accepts objects, or raises `refusal` if it is set."""

    def __init__(self, refusal=None):
        self.stored, self.refusal = {}, refusal

    async def request(self, method, bucket, *, key="", body=b""):
        if self.refusal:
            raise self.refusal
        self.stored[f"{bucket}/{key}"] = body
        return SimpleNamespace(status=200)


async def kept(plane, desk, objects, number):
    """Keep profiles until this one has a summary and all its objects are stored; return the summary."""
    task = asyncio.create_task(keep_profiles(desk, plane.hub, plane.store.get_job, objects, interval_s=0.01))
    try:
        async with asyncio.timeout(60):
            while await desk.summary("job", number) is None or (not objects.refusal and not objects.stored):
                await asyncio.sleep(0.05)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return await desk.summary("job", number)


async def test_a_whole_profile_is_summarised_and_stored_also_by_the_next_service(plane):
    job = await plane.job()
    number = (await plane.profiles.ask(job, FIVE, reason="")).number
    for host in ("algo-1", "algo-2"):
        await plane.gateway.take_profile(job, host, answer(number, host, state=RankState.LOST))
    next_desk = ProfileDesk(
        plane.store.documents("profiles"), plane.profiles.place("job", 0).parent.parent, clock=plane.clock
    )
    objects = FakeObjects()
    summary = await kept(plane, next_desk, objects, number)
    assert [rank["state"] for rank in summary["ranks"]] == ["lost", "lost"]
    prefix = f"bucket/some/where/job/profiler-output/framework/{number}/"
    assert {key.removeprefix(prefix) for key in objects.stored} & {"algo-1.json", "summary.json"}


async def test_traces_that_cannot_be_read_in_time_are_reported_in_the_summary(plane, monkeypatch):
    monkeypatch.setattr(profile_keeping, "LIMIT_S", 0.0)
    job = await plane.job()
    number = (await plane.profiles.ask(job, FIVE, reason="")).number
    folder = await plane.profiles.lay_out("job", number)
    assert "could not be read within 0 s" in await profile_keeping.look_at(folder, limit_s=0.0)
    (folder / "request.json").unlink()
    (folder / "summary.json").mkdir()
    assert "the traces could not be read: " in await profile_keeping.look_at(folder)


async def test_a_refusing_object_store_leaves_the_profile_in_its_folder(plane):
    job = await plane.job()
    number = (await plane.profiles.ask(job, FIVE, reason="")).number
    for host in ("algo-1", "algo-2"):
        await plane.gateway.take_profile(job, host, answer(number, host))
    summary = await kept(plane, plane.profiles, FakeObjects(ObjectStoreError("away")), number)
    assert json.dumps(summary)
