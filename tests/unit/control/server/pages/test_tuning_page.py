"""Pages of tuning jobs: the list, one tuning job with its trials, and facts that are cached between two requests."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from own_pages import FewParts
from server_parts import FakeServices, document, request, running_job
from tuning_trials import BEGIN, METRIC, many_trials, trial, tuning_job

from clary.base.errors import WireError
from clary.contract.statuses import SecondaryStatus
from clary.control.jobs.training_job import FinalMetric
from clary.control.server.pages import tuning_page
from clary.control.server.pages.tuning_page import MAX_LISTED, MAX_VALUES, TuningPages
from clary.control.store.store import Store
from clary.control.tuning.tuning_job import TuningStatus

V1 = "/clary/v1"
RUNS = {"status": TuningStatus.IN_PROGRESS, "ended_at": None, "end_reason": ""}


@pytest.fixture
async def store(tmp_path):
    store = await Store.open(f"sqlite:///{tmp_path}/clary.db")
    yield store
    await store.close()


async def add(store, job, trials=()):
    """Store a tuning job with trials; each trial gets a training job with the trial's name."""
    await store.tuning.create(replace(job, status=TuningStatus.IN_PROGRESS), {})
    for one in trials:
        own = running_job(name=one.job_name, arn=one.job_arn, tuning_job_arn=job.arn)
        await store.create_job(own, {}, trial=one)
    await store.tuning.change(job.name, lambda _: job)


def pages(store, *live):
    services = FakeServices(live)
    services.store = store
    return FewParts(services)


async def page(people, path="tuning/tuned"):
    return document(await people.handle(request(f"{V1}/{path}")))


async def test_the_list_has_the_newest_tuning_jobs_first_with_their_best_trials(store):
    await add(store, tuning_job("older"), [trial(1, 0.4, tuning_job="older"), trial(2, 0.6, tuning_job="older")])
    await add(store, tuning_job("newer", created_at=BEGIN + timedelta(hours=1), **RUNS))
    rows = (await page(pages(store), "tuning"))["tuning_jobs"]
    assert [(row["name"], row["status"]) for row in rows] == [("newer", "InProgress"), ("older", "Completed")]
    assert (rows[0]["best"], rows[0]["ended_at"]) == (None, None)
    assert (rows[1]["best"]["value"], rows[1]["best"]["job"]) == (0.6, "older-002-0000abcd")


async def test_the_list_ends_after_a_hundred_tuning_jobs(store):
    for number in range(MAX_LISTED + 2):
        await add(store, tuning_job(f"tuned-{number:03}", created_at=BEGIN + timedelta(seconds=number)))
    rows = (await page(pages(store), "tuning"))["tuning_jobs"]
    assert [row["name"] for row in rows[:2]] == ["tuned-101", "tuned-100"]
    assert len(rows) == MAX_LISTED


async def test_the_page_of_a_tuning_job_has_trials_best_so_far_and_importance(store):
    await add(store, tuning_job(), many_trials(24))
    found = await page(pages(store))
    assert [one["number"] for one in found["trials"]] == list(range(1, 25))
    assert found["trials"][10]["status"] == found["trials"][10]["state"] == "Failed"
    assert found["trials"][10]["failure_reason"].startswith("AlgorithmError: ")
    assert found["trials"][6]["stop_reason"].startswith("early stopping: ")
    assert (len(found["trials"][0]["curve"]), len(found["trials"][6]["curve"])) == (10, 4)
    assert found["best_so_far"][-1][2] == found["best"]["value"] == max(one["value"] or 0 for one in found["trials"])
    assert next(iter(found["importance"])) == "lr"
    assert found["importance_why"] == ""
    assert (found["seed"], found["end_reason"]) == (7, "all training jobs have ended")


async def test_a_trial_that_completed_before_its_stop_was_not_ended_early(store):
    await add(store, tuning_job(), [trial(1, stop_reason="early stopping: too slow")])
    (found,) = (await page(pages(store)))["trials"]
    assert (found["status"], found["stop_reason"]) == ("Completed", "")


async def test_a_running_trial_has_the_state_and_the_metrics_of_its_job(store):
    trials = [trial(1), trial(2, outcome=None), trial(3, outcome=None)]
    await add(store, tuning_job(**RUNS), trials)
    runs = running_job(
        name=trials[1].job_name,
        training_started_at=BEGIN + timedelta(seconds=5),
        final_metrics=(FinalMetric(name=METRIC, value=0.3, at=BEGIN),),
    )
    waits = running_job(name=trials[2].job_name, attempt=0, secondary_status=SecondaryStatus.STARTING)
    values = [
        FinalMetric(name=METRIC, value=value, at=BEGIN + timedelta(seconds=number))
        for number, value in enumerate((0.1, float("nan"), 0.3))
    ]
    await store.add_metrics(runs.name, values)
    _, second, third = (await page(pages(store, runs, waits)))["trials"]
    assert (second["status"], second["state"], second["value"], second["ended_at"]) == (
        "InProgress",
        "Running",
        None,
        None,
    )
    assert second["curve"] == [0.1, 0.3]
    assert second["started_at"] == "2026-01-01T00:00:05+00:00"
    assert (third["state"], third["curve"], third["started_at"]) == ("Queued", [], None)


async def test_a_long_curve_is_thinned_out(store):
    long = trial(1)
    long = replace(long, outcome=replace(long.outcome, curve=tuple(map(float, range(900)))))
    await add(store, tuning_job(), [long])
    (found,) = (await page(pages(store)))["trials"]
    assert (len(found["curve"]), found["curve"][0], found["curve"][-1]) == (MAX_VALUES, 0.0, 899.0)


@pytest.mark.parametrize("name", ["nobody", "a%00b", "%2e%2e", "x" * 500, "tuned%2F..", "%ff"])
async def test_a_missing_tuning_job_gives_404_whatever_its_name(store, name):
    with pytest.raises(WireError, match="there is no tuning job") as refused:
        await pages(store).handle(request(f"{V1}/tuning/{name}"))
    assert (refused.value.code, refused.value.http_status) == ("NotFound", 404)


async def test_importance_is_computed_again_only_after_another_trial_has_ended(store, monkeypatch):
    asked = []
    real = tuning_page.importance_of
    monkeypatch.setattr(tuning_page, "importance_of", lambda *given: asked.append(len(given[1])) or real(*given))
    trials = many_trials(12)
    await add(store, tuning_job(**RUNS), [*trials[:8], replace(trials[8], outcome=None)])
    people = pages(store)
    first, second = await page(people), await page(people)
    assert first["importance"] == second["importance"]
    assert len(asked) == 1
    await store.tuning.put_trial(trials[8])
    await page(people)
    assert len(asked) == 2


async def test_rows_of_ended_tuning_jobs_are_cached_but_not_for_a_new_job_of_the_name(store):
    await add(store, tuning_job(), [trial(1, 0.4)])
    people, asked = pages(store), []
    trials = store.tuning.trials

    async def counted(name):
        asked.append(name)
        return await trials(name)

    store.tuning.trials = counted
    for _ in range(3):
        await page(people, "tuning")
    assert asked == ["tuned"]
    await store.tuning.remove("tuned")
    await store.tuning.create(tuning_job(created_at=BEGIN + timedelta(hours=2), **RUNS), {})
    (row,) = (await page(people, "tuning"))["tuning_jobs"]
    assert (row["status"], row["best"]) == ("InProgress", None)


async def test_the_cache_is_bounded(store, monkeypatch):
    monkeypatch.setattr(tuning_page, "MAX_KEPT", 2)
    answers = TuningPages(SimpleNamespace(store=store, hub=SimpleNamespace(live_job=lambda name: None)))
    for number in range(4):
        await add(store, tuning_job(f"tuned-{number}"))
        await answers.page(f"tuned-{number}")
    await answers.listed()
    assert (len(answers._rows), len(answers._importance)) == (2, 2)


async def test_importance_is_computed_outside_the_event_loop(store, monkeypatch):
    loops = []

    def slow(definitions, trials):
        with pytest.raises(RuntimeError):  # this thread has no event loop
            loops.append(asyncio.get_running_loop())
        return tuning_page.Importance(shares=None, why="so")

    monkeypatch.setattr(tuning_page, "importance_of", slow)
    await add(store, tuning_job())
    assert (await page(pages(store)))["importance_why"] == "so"
    assert loops == []


async def test_a_trial_names_its_tuning_job_on_its_own_page():
    job = running_job(tuning_job_arn=tuning_job().arn)
    assert document(await FewParts(FakeServices([job])).handle(request(f"{V1}/jobs/job-1")))["tuning_job"] == "tuned"
    plain = await FewParts(FakeServices([running_job()])).handle(request(f"{V1}/jobs/job-1"))
    assert document(plain)["tuning_job"] == ""


def pages_that_stop(store, woken):
    people = pages(store)
    people.parts.services.tuning = SimpleNamespace(wake=woken.append)
    return people


async def test_a_running_tuning_job_is_stopped_and_its_loop_is_woken(store):
    await add(store, tuning_job("tuned", **RUNS))
    woken = []
    asked = request(f"{V1}/tuning/tuned/stop", method="POST", body=b"{}")
    answer = document(await pages_that_stop(store, woken).handle(asked))
    assert answer == {"name": "tuned", "status": "Stopping"}
    assert woken == ["tuned"]
    stored = await store.tuning.get("tuned")
    assert (stored.status, stored.ends_as, stored.stops_running) == (TuningStatus.STOPPING, TuningStatus.STOPPED, True)


@pytest.mark.parametrize(("name", "words"), [("tuned", "is in status Completed"), ("other", "no tuning job 'other'")])
async def test_an_ended_or_missing_tuning_job_can_not_be_stopped(store, name, words):
    await add(store, tuning_job("tuned"))
    woken = []
    with pytest.raises(WireError, match=words):
        await pages_that_stop(store, woken).handle(request(f"{V1}/tuning/{name}/stop", method="POST", body=b"{}"))
    assert woken == []
