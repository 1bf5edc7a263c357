"""The page `rehearsals` of a job: possible faults, an order with the job's name, running rehearsals, and ended ones."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from own_pages import FewParts
from server_parts import START, FakeServices, document, request, running_job

from clary.base.errors import WireError
from clary.control.reconcile.desks.rehearsal_shelf import (
    CERTIFICATE_FILE,
    KeptRehearsal,
    RehearsalShelf,
    RehearsalState,
)
from clary.control.server.pages.rehearsals_page import RehearsalPages
from clary.control.store.store import Store

JOB = "/clary/v1/jobs/job-1"
REQUEST = {
    "TrainingJobName": "job-1",
    "AlgorithmSpecification": {"TrainingImage": "image:1"},
    "ResourceConfig": {"InstanceCount": 2, "InstanceType": "ml.m5.large"},
}
KILL = {"faults": [{"kind": "kill", "text": "algo-2@step:7"}], "confirm": "job-1"}


class FakeDesk:
    """Keeps rehearsals without running them."""

    def __init__(self, shelf, *kept):
        self.shelf, self._kept, self.orders, self.cancelled = shelf, list(kept), [], []

    def of(self, job_name):
        return [kept for kept in self._kept if kept.job == job_name][::-1]

    def role_of(self, job_name):
        made = {"job-1-twin-ab": SimpleNamespace(_asdict=lambda: {"job": "job-1", "number": 1, "role": "twin"})}
        return made.get(job_name)

    async def start(self, job_name, order):
        self.orders.append(order)
        return kept_rehearsal(number=9)

    def cancel(self, job_name, number):
        self.cancelled.append((job_name, number))


def kept_rehearsal(**changes):
    kept = KeptRehearsal(
        job="job-1",
        number=1,
        state=RehearsalState.RUNNING,
        faults=("kill algo-2 at step 7",),
        arguments=("--kill=algo-2@step:7", "--step-regex=at ([0-9]+)"),
        twin="job-1-twin-ab",
        rehearsal="job-1-rehearsal-ab",
        started_at=START,
    )
    return replace(kept, **changes)


@pytest.fixture
async def shelf(tmp_path):
    store = await Store.open(f"sqlite:///{tmp_path / 'clary.db'}")
    await store.create_job(running_job(), {})
    yield RehearsalShelf(store.documents("rehearsals"), tmp_path)
    await store.close()


def people(desk, *others, refusals=None):
    faults = SimpleNamespace(refusals=lambda: refusals or {}, largest_disk_bytes=lambda: 1 << 34)
    services = FakeServices([running_job(request=REQUEST), *others])
    pages = RehearsalPages(services, desk, faults)
    return FewParts(services, rehearsals=pages)


async def page(desk, query="", *others, **options):
    return document(await people(desk, *others, **options).handle(request(f"{JOB}/rehearsals", query=query)))


async def post(desk, body, **options):
    sent = request(f"{JOB}/rehearsals", method="POST", body=json.dumps(body).encode())
    return document(await people(desk, **options).handle(sent))


async def test_a_job_without_rehearsals_gets_an_empty_list_and_the_possible_options(shelf):
    desk = FakeDesk(shelf)
    assert await page(desk) == {"job": "job-1", "rehearsals": [], "rehearsal": None}
    options = await page(desk, "options=1", refusals={"slow": "no network"})
    assert (options["hosts"], options["refusals"], options["under_way"]) == (
        ["algo-1", "algo-2"],
        {"slow": "no network"},
        None,
    )
    assert (options["has_checkpoints"], options["largest_disk_bytes"]) == (False, 1 << 34)


async def test_an_order_with_the_name_of_the_job_starts_a_rehearsal(shelf):
    desk = FakeDesk(shelf)
    assert await post(desk, KILL) == {"number": 9}
    (order,) = desk.orders
    assert order.arguments == ("--kill=algo-2@step:7",)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ([], "to confirm this, set confirm"),
        ({}, r"set confirm to the job's name \(job-1\), got None"),
        ({**KILL, "confirm": "job-2"}, "got job-2"),
        ({"confirm": "job-1"}, "the rehearsal has no fault"),
        ({**KILL, "faults": [{"kind": "kill", "text": "algo-9@5s"}]}, "the job has no host algo-9"),
        ({**KILL, "faults": [{"kind": "slow", "text": "algo-1@5s:1mbit"}]}, "no network"),
        ({"cancel": "1"}, "cancel must be the number of a rehearsal"),
        ({"cancel": True}, "cancel must be the number of a rehearsal"),
    ],
)
async def test_an_impossible_order_is_refused_with_a_message_and_starts_no_rehearsal(shelf, body, why):
    desk = FakeDesk(shelf)
    with pytest.raises(WireError, match=why) as refused:
        await post(desk, body, refusals={"slow": "no network"})
    assert refused.value.http_status == 400
    assert (desk.orders, desk.cancelled) == ([], [])


async def test_a_rehearsal_is_cancelled_by_its_number(shelf):
    desk = FakeDesk(shelf, kept_rehearsal())
    assert await post(desk, {"cancel": 1}) == {"number": 1}
    assert desk.cancelled == [("job-1", 1)]


async def test_the_running_rehearsal_is_shown_with_the_current_state_of_its_jobs(shelf):
    desk = FakeDesk(shelf, kept_rehearsal())
    place = shelf.place("job-1", 1)
    place.mkdir(parents=True)
    (place / "output.txt").write_text("plan (1 fault)\n  kill algo-2 at step 7\n")
    found = (await page(desk, "", running_job(name="job-1-twin-ab")))["rehearsal"]
    assert (found["state"], found["certificate"]) == ("running", None)
    assert found["lines"] == ["plan (1 fault)", "  kill algo-2 at step 7"]
    assert (found["jobs"]["twin"]["status"], found["jobs"]["twin"]["state"]) == ("InProgress", "Running")
    assert found["jobs"]["rehearsal"] == {
        "name": "job-1-rehearsal-ab",
        "status": None,
        "secondary_status": None,
        "state": None,
        "attempt": 0,
        "failure_reason": "",
    }
    assert found["command"] == "clary rehearse --kill=algo-2@step:7 '--step-regex=at ([0-9]+)' job-1"
    assert (await page(desk, "options=1"))["under_way"] == 1


async def test_ended_rehearsals_are_found_by_number_with_their_certificates(shelf):
    over = kept_rehearsal(state=RehearsalState.CERTIFIED, verdict="FAIL", reason="the loss parts", ended_at=START)
    desk = FakeDesk(shelf, over, kept_rehearsal(number=2, state=RehearsalState.CANCELLED, why="it was cancelled"))
    shelf.place("job-1", 1).mkdir(parents=True)
    (shelf.place("job-1", 1) / CERTIFICATE_FILE).write_text('{"verdict": "FAIL", "losses": {"largest": NaN}}')
    await shelf.write(over)
    newest = await page(desk)
    assert [item["number"] for item in newest["rehearsals"]] == [2, 1]
    assert (newest["rehearsal"]["number"], newest["rehearsal"]["why"]) == (2, "it was cancelled")
    first = (await page(desk, "number=1"))["rehearsal"]
    assert (first["verdict"], first["certificate"]["verdict"]) == ("FAIL", "FAIL")


@pytest.mark.parametrize("number", ["3", "x", "../1", "9" * 40])
async def test_a_missing_rehearsal_gives_404(shelf, number):
    with pytest.raises(WireError, match=r"job-1 has no rehearsal .*; there are 1") as refused:
        await page(FakeDesk(shelf, kept_rehearsal()), f"number={number}")
    assert refused.value.http_status == 404


async def test_the_page_of_a_job_names_its_rehearsals_or_the_job_that_it_rehearses(shelf):
    desk = FakeDesk(shelf, kept_rehearsal())
    twin = running_job(name="job-1-twin-ab")
    facts = document(await people(desk, twin).handle(request(JOB)))
    assert [item["state"] for item in facts["rehearsals"]] == ["running"]
    assert facts["rehearsal_of"] is None
    of_twin = document(await people(desk, twin).handle(request("/clary/v1/jobs/job-1-twin-ab")))
    assert of_twin["rehearsal_of"] == {"job": "job-1", "number": 1, "role": "twin"}
    assert of_twin["rehearsals"] == []


async def test_a_wrong_token_starts_no_rehearsal(shelf):
    desk = FakeDesk(shelf)
    sent = request(f"{JOB}/rehearsals", method="POST", body=json.dumps(KILL).encode(), token="another")
    with pytest.raises(WireError) as refused:
        await people(desk).handle(sent)
    assert (refused.value.http_status, desk.orders) == (403, [])
