"""Contract of tuning jobs and their trials for every database of the store; run against SQLite and PostgreSQL.

A test class inherits `TuningContract` and provides a `database_url` fixture: a fresh, empty database.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from store_contract import completed, make_job
from tuning_trials import BEGIN, trial, tuning_job

from clary.base.errors import StoreError
from clary.control.store.database import parse_url
from clary.control.store.errors import BadToken, JobExists
from clary.control.store.store import Store
from clary.control.store.tracking.tuning_records import (
    TrialRefused,
    TuningJobExists,
    TuningJobNotFound,
    TuningQuery,
    TuningSort,
)
from clary.control.tuning.tuning_job import Trial, TuningJob, TuningStatus


def in_progress(name: str = "tuned", *, minutes: float = 0, **changes: Any) -> TuningJob:
    moment = BEGIN + timedelta(minutes=minutes)
    given = {"status": TuningStatus.IN_PROGRESS, "ended_at": None, "end_reason": ""}
    return tuning_job(name, created_at=moment, modified_at=moment, **{**given, **changes})


def started(number: int, name: str = "tuned") -> Trial:
    return trial(number, tuning_job=name, outcome=None)


async def start(store: Store, one: Trial) -> None:
    """Store a trial as the hub does, with its training job."""
    await store.create_job(make_job(one.job_name), {}, trial=one)


async def names_of(store: Store, *, max_results: int = 100, **query: Any) -> list[str]:
    """Return the names that a query finds, collected from all pages."""
    asked, found, token = TuningQuery(**query), [], None
    for _ in range(100):
        page, token = await store.tuning.page(asked, max_results=max_results, next_token=token)
        assert len(page) <= max_results
        found += [job.name for job in page]
        if token is None:
            return found
    raise AssertionError("paging does not end")


def _damage(database_url: str, name: str) -> None:
    engine = create_engine(parse_url(database_url))
    with engine.begin() as connection:
        connection.execute(text("UPDATE tuning_jobs SET document = '{' WHERE name = :name"), {"name": name})
    engine.dispose()


class TuningContract:
    """Tests that need only the URL of an empty database."""

    @pytest.fixture
    async def store(self, database_url: str) -> AsyncIterator[Store]:
        store = await Store.open(database_url)
        yield store
        await store.close()

    @pytest.fixture
    async def other_store(self, store: Store, database_url: str) -> AsyncIterator[Store]:
        """The store of a second service on the same database."""
        other = await Store.open(database_url)
        yield other
        await other.close()

    # Tuning jobs

    async def test_a_tuning_job_is_read_back_unchanged_with_its_tags(self, store: Store) -> None:
        job = in_progress(unknown_members=("A", "B"), ends_as=TuningStatus.FAILED, end_reason="'\"\n\u00e9\ud800\0")
        await store.tuning.create(job, {"team": "a", "stage": "b"})
        assert await store.tuning.get("tuned") == job
        assert await store.get_tags(job.arn) == {"stage": "b", "team": "a"}
        assert await store.tuning.get("Tuned") is None

    async def test_a_taken_name_is_refused_and_the_first_job_stays(self, store: Store) -> None:
        job = in_progress(seed=1)
        await store.tuning.create(job, {})
        with pytest.raises(TuningJobExists, match="'tuned'"):
            await store.tuning.create(in_progress(seed=2), {"a": "b"})
        assert await store.tuning.get("tuned") == job
        assert await store.get_tags(job.arn) == {}

    async def test_of_many_concurrent_creations_of_a_name_one_succeeds(self, store: Store, other_store: Store) -> None:
        asked = [one.tuning.create(in_progress(seed=place), {}) for place, one in enumerate([store, other_store] * 5)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(result is None for result in results) == 1
        assert sum(isinstance(result, TuningJobExists) for result in results) == 9

    async def test_a_change_is_written_and_one_that_raises_is_not(self, store: Store) -> None:
        await store.tuning.create(in_progress(), {})
        changed = await store.tuning.change("tuned", lambda job: replace(job, status=TuningStatus.STOPPING))
        assert changed == await store.tuning.get("tuned")
        assert changed.status is TuningStatus.STOPPING

        def fail(job: TuningJob) -> TuningJob:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await store.tuning.change("tuned", fail)
        assert await store.tuning.change("tuned", lambda job: job) == changed
        with pytest.raises(TuningJobNotFound):
            await store.tuning.change("nobody", lambda job: job)

    async def test_no_change_is_lost_between_two_services(self, store: Store, other_store: Store) -> None:
        await store.tuning.create(in_progress(seed=0), {})
        changes = [
            one.tuning.change("tuned", lambda job: replace(job, seed=job.seed + 1)) for one in [store, other_store] * 10
        ]
        await asyncio.gather(*changes)
        job = await store.tuning.get("tuned")
        assert job is not None
        assert job.seed == 20

    async def test_unfinished_tuning_jobs_are_listed_oldest_first(self, store: Store) -> None:
        for minutes, (name, status) in enumerate(
            [
                ("stops", TuningStatus.STOPPING),
                ("done", TuningStatus.COMPLETED),
                ("goes", TuningStatus.IN_PROGRESS),
                ("stopped", TuningStatus.STOPPED),
                ("failed", TuningStatus.FAILED),
            ]
        ):
            await store.tuning.create(in_progress(name, minutes=-minutes, status=status), {})
        assert [job.name for job in await store.tuning.unfinished()] == ["goes", "stops"]
        assert [job.name for job in await store.tuning.all()] == ["failed", "stopped", "goes", "done", "stops"]
        await store.tuning.change("goes", lambda job: replace(job, status=TuningStatus.COMPLETED))
        assert [job.name for job in await store.tuning.unfinished()] == ["stops"]

    async def test_deleting_a_tuning_job_deletes_trials_and_tags_but_no_training_job(self, store: Store) -> None:
        for name in ("tuned", "other"):
            await store.tuning.create(in_progress(name), {"of": name})
            await start(store, started(1, name))
        await store.tuning.remove("tuned")
        assert await store.tuning.get("tuned") is None
        assert await store.tuning.trials("tuned") == []
        assert await store.get_tags(in_progress().arn) == {}
        assert await store.get_job("tuned-001-0000abcd") is not None
        assert await store.get_tags(in_progress("other").arn) == {"of": "other"}
        assert len(await store.tuning.trials("other")) == 1
        with pytest.raises(TuningJobNotFound):
            await store.tuning.remove("tuned")
        await store.tuning.create(in_progress(), {})
        assert await store.tuning.trials("tuned") == []

    # Pages

    async def test_each_tuning_job_is_on_one_page_in_every_order(self, store: Store) -> None:
        statuses = list(TuningStatus)
        for number in range(12):
            job = in_progress(f"t{number * 7 % 12:02d}", minutes=number // 3, status=statuses[number % 5])
            await store.tuning.create(job, {})
        jobs = await store.tuning.all()
        keys = {
            TuningSort.NAME: lambda job: job.name,
            TuningSort.STATUS: lambda job: (job.status.value, job.name),
            TuningSort.CREATION_TIME: lambda job: (job.created_at, job.name),
        }
        for sort, key in keys.items():
            for descending in (False, True):
                wanted = [job.name for job in sorted(jobs, key=key, reverse=descending)]
                for size in (1, 5, 11, 12, 13):
                    assert await names_of(store, max_results=size, sort=sort, descending=descending) == wanted

    async def test_a_page_continues_after_the_previous_one_despite_new_and_deleted_jobs(self, store: Store) -> None:
        for name in "bdfh":
            await store.tuning.create(in_progress(name), {})
        query = TuningQuery(sort=TuningSort.NAME, descending=False)
        page, token = await store.tuning.page(query, max_results=2, next_token=None)
        assert [job.name for job in page] == ["b", "d"]
        await store.tuning.remove("d")
        for name in "ace":
            await store.tuning.create(in_progress(name), {})
        page, token = await store.tuning.page(query, max_results=2, next_token=token)
        assert [job.name for job in page] == ["e", "f"]

    async def test_a_page_token_of_another_query_is_refused(self, store: Store) -> None:
        for name in "abc":
            await store.tuning.create(in_progress(name), {})
        query = TuningQuery()
        _, token = await store.tuning.page(query, max_results=1, next_token=None)
        assert token is not None
        for changes in ({"descending": False}, {"status": "InProgress"}, {"created_before": BEGIN}):
            with pytest.raises(BadToken):
                await store.tuning.page(replace(query, **changes), max_results=1, next_token=token)
        for wrong in (token[:-2], "", "x", token + "A", "\u00e9"):
            with pytest.raises(BadToken):
                await store.tuning.page(query, max_results=1, next_token=wrong)

    async def test_filters_by_name_status_and_time_are_combined(self, store: Store) -> None:
        for minutes, name in enumerate(["first", "First", "se_cond", "se%cond"]):
            await store.tuning.create(in_progress(name, minutes=minutes), {})
        later = BEGIN + timedelta(hours=1)
        await store.tuning.change("First", lambda job: replace(job, status=TuningStatus.STOPPED, modified_at=later))
        assert await names_of(store, name_contains="irst") == ["First", "first"]
        assert await names_of(store, name_contains="F") == ["First"]
        assert await names_of(store, name_contains="_") == ["se_cond"]
        assert await names_of(store, name_contains="%") == ["se%cond"]
        assert await names_of(store, status="Stopped") == ["First"]
        assert await names_of(store, status="Stopped", name_contains="f") == []
        second = BEGIN + timedelta(minutes=1)
        assert await names_of(store, created_after=second) == ["se%cond", "se_cond"]
        assert await names_of(store, created_before=second) == ["first"]
        assert await names_of(store, modified_after=second) == ["se%cond", "se_cond", "First"]
        assert await names_of(store, modified_before=later, created_after=BEGIN) == ["se%cond", "se_cond"]

    async def test_a_list_in_memory_is_paged_too(self, store: Store) -> None:
        items, found, token = list(range(7)), [], None
        for _ in range(3):
            page, token = store.tuning.cut(items, identity=["q"], max_results=3, next_token=token)
            found += page
        assert (found, token) == (items, None)
        assert store.tuning.cut([], identity=["q"], max_results=3, next_token=None) == ([], None)
        assert store.tuning.cut(items, identity=["q"], max_results=7, next_token=None) == (items, None)
        _, token = store.tuning.cut(items, identity=["q"], max_results=3, next_token=None)
        with pytest.raises(BadToken):
            store.tuning.cut(items, identity=["other"], max_results=3, next_token=token)

    # Trials

    async def test_trials_are_listed_by_number_in_whatever_order_they_were_stored(self, store: Store) -> None:
        await store.tuning.create(in_progress(), {})
        for number in (3, 1, 10, 2):
            await start(store, started(number))
        assert await store.tuning.trials("tuned") == [started(number) for number in (1, 2, 3, 10)]
        assert await store.tuning.trials("nobody") == []

    async def test_the_end_of_a_trial_is_stored_in_its_row(self, store: Store) -> None:
        await store.tuning.create(in_progress(), {})
        for number in (1, 2):
            await start(store, started(number))
        await store.tuning.put_trial(trial(1, 0.25, stop_reason="why"))
        assert await store.tuning.trials("tuned") == [trial(1, 0.25, stop_reason="why"), started(2)]
        await store.tuning.put_trial(trial(9))  # a missing trial is not created
        assert len(await store.tuning.trials("tuned")) == 2

    async def test_a_taken_trial_number_is_refused_together_with_its_training_job(self, store: Store) -> None:
        await store.tuning.create(in_progress(), {})
        await start(store, started(1))
        with pytest.raises(TrialRefused, match="has a trial 1"):
            await store.create_job(make_job("again"), {"a": "b"}, trial=replace(started(1), job_name="again"))
        assert await store.get_job("again") is None
        assert await store.get_tags(make_job("again").arn) == {}
        assert await store.tuning.trials("tuned") == [started(1)]

    async def test_a_training_job_with_a_taken_name_uses_no_trial_number(self, store: Store) -> None:
        await store.tuning.create(in_progress(), {})
        await store.create_job(make_job(started(1).job_name), {})
        with pytest.raises(JobExists):
            await start(store, started(1))
        assert await store.tuning.trials("tuned") == []

    @pytest.mark.parametrize("status", [status for status in TuningStatus if status is not TuningStatus.IN_PROGRESS])
    async def test_only_a_tuning_job_in_progress_starts_trials(self, store: Store, status: TuningStatus) -> None:
        await store.tuning.create(in_progress(status=status), {})
        with pytest.raises(TrialRefused, match=status.value):
            await start(store, started(1))
        assert await store.get_job(started(1).job_name) is None
        assert await store.tuning.trials("tuned") == []

    async def test_a_missing_tuning_job_starts_no_trials(self, store: Store) -> None:
        with pytest.raises(TrialRefused):
            await start(store, started(1))
        assert await store.get_job(started(1).job_name) is None

    async def test_no_trial_starts_after_a_concurrent_stop(self, store: Store, other_store: Store) -> None:
        def stop(job: TuningJob) -> TuningJob:
            return replace(job, status=TuningStatus.STOPPING)

        for number in range(8):
            name = f"t{number}"
            await store.tuning.create(in_progress(name), {})
            results = await asyncio.gather(
                start(store, started(1, name)), other_store.tuning.change(name, stop), return_exceptions=True
            )
            refused = isinstance(results[0], TrialRefused)
            assert results[0] is None or refused
            assert (await store.get_job(started(1, name).job_name) is None) == refused
            assert (await store.tuning.trials(name) == []) == refused
            with pytest.raises(TrialRefused):
                await start(store, started(2, name))

    async def test_of_two_services_only_one_gets_a_trial_number(self, store: Store, other_store: Store) -> None:
        await store.tuning.create(in_progress(), {})
        asked = [
            one.create_job(make_job(f"j{place}"), {}, trial=replace(started(1), job_name=f"j{place}"))
            for place, one in enumerate([store, other_store] * 4)
        ]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(result is None for result in results) == 1
        (kept,) = await store.tuning.trials("tuned")
        assert [f"j{place}" for place in range(8) if await store.get_job(f"j{place}") is not None] == [kept.job_name]

    async def test_the_row_of_a_trial_is_kept_when_its_training_job_is_deleted(self, store: Store) -> None:
        await store.tuning.create(in_progress(), {})
        await start(store, started(1))
        await store.update_job(started(1).job_name, completed)
        await store.delete_job(started(1).job_name)
        assert await store.tuning.trials("tuned") == [started(1)]
        with pytest.raises(TrialRefused):
            await start(store, started(1))

    async def test_tuning_jobs_and_trials_survive_a_restart(self, store: Store, database_url: str) -> None:
        await store.tuning.create(in_progress(), {"a": "b"})
        await start(store, started(1))
        await store.close()
        again = await Store.open(database_url)
        try:
            assert await again.tuning.unfinished() == [in_progress()]
            assert await again.tuning.trials("tuned") == [started(1)]
        finally:
            await again.close()

    # Damage

    async def test_unreadable_rows_are_quarantined_and_the_other_rows_are_read(
        self, store: Store, database_url: str
    ) -> None:
        for name in ("tuned", "other"):
            await store.tuning.create(in_progress(name), {})
        for number in (1, 2):
            await start(store, started(number))
        engine = create_engine(parse_url(database_url))
        with engine.begin() as connection:
            connection.execute(text("UPDATE tuning_jobs SET document = '{' WHERE name = 'other'"))
            connection.execute(text("UPDATE tuning_trials SET document = '[]' WHERE number = 1"))
        engine.dispose()
        assert await store.tuning.get("other") is None
        assert await store.tuning.unfinished() == [in_progress()]
        assert await names_of(store) == ["tuned"]
        assert await store.tuning.trials("tuned") == [started(2)]

    async def test_a_list_quarantines_an_unreadable_tuning_job(self, store: Store, database_url: str) -> None:
        for name in ("tuned", "other"):
            await store.tuning.create(in_progress(name), {})
        _damage(database_url, "other")
        assert await names_of(store) == ["tuned"]
        assert await names_of(store, max_results=1) == ["tuned"]
        assert [entry.name for entry in await store.quarantine.entries()] == ["other"]

    async def test_an_unreadable_tuning_job_is_quarantined_by_a_change_or_a_removal(
        self, store: Store, database_url: str
    ) -> None:
        for name in ("changed", "removed", "tuned"):
            await store.tuning.create(in_progress(name), {})
        for name in ("changed", "removed"):
            _damage(database_url, name)
        with pytest.raises(TuningJobNotFound, match="'changed'"):
            await store.tuning.change("changed", lambda job: replace(job, end_reason="why"))
        with pytest.raises(TuningJobNotFound, match="'removed'"):
            await store.tuning.remove("removed")
        assert [entry.name for entry in await store.quarantine.entries()] == ["changed", "removed"]
        assert await store.tuning.all() == [in_progress()]

    async def test_a_closed_store_raises_an_error(self, store: Store) -> None:
        await store.close()
        with pytest.raises(StoreError):
            await store.tuning.get("tuned")
        with pytest.raises(StoreError):
            await store.tuning.create(in_progress(), {})
