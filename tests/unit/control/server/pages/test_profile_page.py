"""The page `profile` of a job: requested by POST, shown by GET, its files served, refused while no program runs."""

import json
from dataclasses import replace

import pytest
from own_pages import FewParts
from server_parts import FakeServices, document, request, running_job

from clary.base.errors import WireError
from clary.base.plain import from_plain, to_plain
from clary.contract.agent_protocol import HostPhase
from clary.contract.deep_profiles import HostProfile, ProfileRequest, RankProfile, RankState
from clary.control.reconcile.desks.profile_desk import ProfileDesk
from clary.control.store.store import Store
from clary.testing.fake_clock import FakeClock

PATH = "/clary/v1/jobs/job-1/profile"


@pytest.fixture
async def services(tmp_path):
    made = FakeServices([running_job()], (), None)
    made.clock = FakeClock()
    store = await Store.open(f"sqlite:///{tmp_path / 'clary.db'}")
    await store.create_job(running_job(), {})
    made.profiles = ProfileDesk(store.documents("profiles"), tmp_path, clock=made.clock)
    yield made
    await store.close()


async def answer_to(services, method="GET", query="", body=None):
    sent = request(PATH, method=method, query=query)
    if body is not None:
        sent = replace(sent, body=json.dumps(body).encode())
    return await FewParts(services).handle(sent)


async def test_a_profile_is_requested_followed_and_shown(services):
    job = running_job()
    number = document(await answer_to(services, "POST", body={"steps": 3, "ranks": [1, 0]}))["number"]
    rank = RankProfile(rank=0, state=RankState.RECORDING, step=41)
    await services.profiles.take(
        job, "algo-1", HostProfile(number=number, host="algo-1", is_final=False, ranks=(rank,))
    )
    page = document(await answer_to(services))
    assert (page["number"], page["is_over"], page["missing"]) == (number, False, ["algo-1", "algo-2"])
    assert page["asked"]["ranks"] == [0, 1]
    assert page["states"] == [{"rank": 0, "host": "algo-1", "state": "recording", "words": "", "step": 41}]
    folder = services.profiles.place("job-1", number)
    await services.profiles.keep_summary("job-1", number, {"ranks": []})
    page = document(await answer_to(services, query=f"number={number}"))
    assert (page["is_over"], page["summary"], page["folder"]) == (True, {"ranks": []}, str(folder))
    folder.mkdir(parents=True)
    (folder / "rank-0.trace.json.gz").write_bytes(b"trace")
    handed = await answer_to(services, query=f"number={number}&file=rank-0.trace.json.gz")
    assert handed.body == b"trace"


@pytest.mark.parametrize(
    "name", ["../request.json", "request.json", "algo-1.json", "", "rank-1.trace.json.gz", "/etc/passwd"]
)
async def test_no_other_file_is_served(services, name):
    number = document(await answer_to(services, "POST", body={"steps": 3}))["number"]
    with pytest.raises(WireError, match="the profile has no file"):
        await answer_to(services, query=f"number={number}&file={name}")


@pytest.mark.parametrize("query", ["number=1", "number=x", "number=../../etc", "number=" + "9" * 30])
async def test_a_missing_profile_gives_404(services, query):
    with pytest.raises(WireError, match=r"job-1 has no profile .*; none was taken") as refused:
        await answer_to(services, query=query)
    assert refused.value.http_status == 404


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "1 to 100 steps"),
        ([], "1 to 100 steps"),
        ({"steps": 101}, "1 to 100 steps, got 101"),
        ({"steps": 2.5}, "1 to 100 steps"),
        ({"steps": True}, "1 to 100 steps"),
        ({"steps": float("nan")}, "1 to 100 steps"),
        ({"steps": float("inf")}, "1 to 100 steps"),
        ({"seconds": 0}, "more than 0 and at most 60 seconds"),
        ({"seconds": "x"}, "at most 60 seconds"),
        ({"steps": 1, "start_step": -1}, "start_step is the number of a step"),
        ({"steps": 1, "ranks": "01"}, "ranks are numbers"),
        ({"steps": 1, "ranks": [-1]}, "ranks are numbers"),
        ({"steps": 1, "ranks": [True]}, "ranks are numbers"),
        ({"steps": 1, "ranks": list(range(2000))}, "at most 1024"),
        ({"cancel": True}, "no profile of job-1 is being taken"),
    ],
)
async def test_an_impossible_request_is_refused_with_a_message(services, body, why):
    with pytest.raises(WireError, match=why):
        await answer_to(services, "POST", body=body)


async def test_a_whole_number_with_a_decimal_point_reaches_agents_as_an_integer(services):
    await answer_to(services, "POST", body={"steps": 3.0, "start_step": 5.0})
    asked = services.profiles.wanted(running_job(), "algo-1")
    assert from_plain(ProfileRequest, json.loads(json.dumps(to_plain(asked)))).start_step == 5


async def test_a_job_whose_program_does_not_run_is_not_profiled(services):
    job = running_job()
    idle = {
        name: replace(record, facts=replace(record.facts, phase=HostPhase.PREPARING))
        for name, record in job.hosts.items()
    }
    services.hub.live_job = {"job-1": replace(job, hosts=idle)}.get
    with pytest.raises(WireError, match=r"no program of job-1 is running .* profile job-1 --last"):
        await answer_to(services, "POST", body={"steps": 1})


async def test_all_kept_profiles_are_listed_newest_first(services):
    first = document(await answer_to(services, "POST", body={"steps": 3}))["number"]
    await services.profiles.keep_summary("job-1", first, {"ranks": []})
    services.profiles.close_request("job-1", first)
    services.clock.advance(1)
    second = document(await answer_to(services, "POST", body={"seconds": 2}))["number"]
    listed = document(await answer_to(services, query=f"number={first}"))["profiles"]
    assert [(item["number"], item["num_steps"], item["is_over"]) for item in listed] == [
        (second, 0, False),
        (first, 3, True),
    ]
    assert {item["reason"] for item in listed} == {"asked for"}
