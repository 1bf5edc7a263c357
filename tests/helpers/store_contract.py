"""Contract of the store for every database that it can use; run against SQLite and PostgreSQL.

A test class inherits `StoreContract` and provides a `database_url` fixture: a fresh, empty database.
"""

import asyncio
import itertools
import json
import math
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from crash_nursery import CrashNursery
from sqlalchemy import create_engine, insert, inspect, text

from clary.base.errors import StoreError
from clary.base.plain import to_plain
from clary.contract.agent_protocol import HostFacts, HostPhase, Order, OrderKind
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs.job_state import JobState
from clary.control.jobs.training_job import FinalMetric, HostRecord, JobFailure, StatusTransition, TrainingJob
from clary.control.store import tables
from clary.control.store.database import open_engines, parse_url
from clary.control.store.errors import BadToken, JobExists, JobNotFound
from clary.control.store.job_cards import MAX_CARD_METRICS, CardOrder, CardQuery, JobCard
from clary.control.store.job_queries import JobQuery, JobSummary, SortBy
from clary.control.store.leases import Lease
from clary.control.store.migrations import MIGRATIONS, Migration, migrate, read_version
from clary.control.store.store import Store
from clary.testing.launch_plans import make_plan

REQUESTS = Path(__file__).parents[1] / "assets" / "requests"
START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def make_job(name: str, *, minutes: int = 0, **changes: Any) -> TrainingJob:
    moment = START + timedelta(minutes=minutes)
    job = TrainingJob(
        name=name,
        arn=f"arn:aws:sagemaker:us-west-2:000000000000:training-job/{name}",
        request={
            "TrainingJobName": name,
            "RoleArn": "arn:aws:iam::000000000000:role/R",
            "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
            "HyperParameters": {"quote": "'\"\n\u00e9\u2028"},
        },
        status=TrainingJobStatus.IN_PROGRESS,
        secondary_status=SecondaryStatus.STARTING,
        transitions=(StatusTransition(status=SecondaryStatus.STARTING, started_at=moment, message="Starting"),),
        created_at=moment,
        modified_at=moment,
    )
    return replace(job, **changes)


def completed(job: TrainingJob) -> TrainingJob:
    return replace(
        job,
        status=TrainingJobStatus.COMPLETED,
        secondary_status=SecondaryStatus.COMPLETED,
        training_ended_at=job.created_at + timedelta(hours=1),
    )


def count_up(job: TrainingJob) -> TrainingJob:
    return replace(job, attempt=job.attempt + 1)


async def all_pages(store: Store, query: JobQuery) -> list[JobSummary]:
    found: list[JobSummary] = []
    for _ in range(100):
        page = await store.list_jobs(query)
        found += page.summaries
        if page.next_token is None:
            return found
        query = replace(query, next_token=page.next_token)
    raise AssertionError("paging does not end")


class StoreContract:
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

    # Jobs

    @pytest.mark.parametrize("path", sorted(REQUESTS.glob("*.CreateTrainingJob.json"))[::9], ids=lambda path: path.stem)
    async def test_a_recorded_request_is_read_back_unchanged(self, store: Store, path: Path) -> None:
        request = json.loads(path.read_text(encoding="utf-8"))
        job = make_job(request["TrainingJobName"], request=request)
        await store.create_job(job, {})
        assert await store.get_job(job.name) == job

    async def test_a_running_job_is_read_back_unchanged(self, store: Store) -> None:
        host = HostRecord(
            facts=HostFacts(phase=HostPhase.RUNNING, phase_started_at=START, timings_s={"code": 1.5}),
            report_number=7,
            order=Order(number=2, kind=OrderKind.RUN, arguments={"grace": [1, None]}),
        )
        metrics = (FinalMetric(name="loss", value=0.25, at=START),)
        plan = to_plain(make_plan(hyperparameters={"a": "\u00e9"}))
        job = make_job("whole", hosts={"algo-1": host}, plan=plan, final_metrics=metrics)
        await store.create_job(job, {})
        assert await store.get_job("whole") == job

    async def test_get_job_returns_none_for_an_unknown_name(self, store: Store) -> None:
        assert await store.get_job("nobody") is None

    async def test_a_taken_name_is_refused_with_the_arn_and_changes_nothing(self, store: Store) -> None:
        first = make_job("twice")
        await store.create_job(first, {"team": "a"})
        with pytest.raises(JobExists) as refusal:
            await store.create_job(replace(first, arn="arn:other", attempt=9), {"team": "b", "more": "c"})
        assert refusal.value.existing_arn == first.arn
        assert await store.get_job("twice") == first
        assert await store.get_tags(first.arn) == {"team": "a"}
        assert await store.get_tags("arn:other") == {}

    async def test_of_concurrent_creations_of_one_name_by_two_services_one_succeeds(
        self, store: Store, other_store: Store
    ) -> None:
        makers = [make_job("race", attempt=number) for number in range(20)]
        results = await asyncio.gather(
            *((store if job.attempt % 2 else other_store).create_job(job, {}) for job in makers), return_exceptions=True
        )
        assert sum(result is None for result in results) == 1
        assert sum(isinstance(result, JobExists) for result in results) == 19
        stored = await store.get_job("race")
        assert stored is not None
        assert results[stored.attempt] is None

    async def test_one_failing_write_among_many_fails_alone(self, store: Store) -> None:
        await store.create_job(make_job("job-050"), {})
        jobs = [make_job(f"job-{number:03d}") for number in range(100)]
        results = await asyncio.gather(*(store.create_job(job, {"n": "1"}) for job in jobs), return_exceptions=True)
        assert [number for number, result in enumerate(results) if result is not None] == [50]
        assert isinstance(results[50], JobExists)
        assert len(await all_pages(store, JobQuery())) == 100
        assert await store.get_tags(jobs[50].arn) == {}
        assert await store.get_tags(jobs[51].arn) == {"n": "1"}

    async def test_a_database_error_of_one_write_fails_it_alone(self, store: Store) -> None:
        too_big = 2**70  # too large for a BIGINT
        bad = FinalMetric(name="x", value=1.0, at=START)
        await store.create_job(make_job("a"), {})
        ruined = Lease(name="l", owner="o", token=too_big, expires_at=START)
        results = await asyncio.gather(
            store.add_metrics("a", [bad]),
            store.release_lease(ruined),
            store.create_job(make_job("b"), {}),
            return_exceptions=True,
        )
        assert [result is None for result in results] == [True, False, True]
        assert len(await store.query_metrics("a", "x", START, START + timedelta(1))) == 1
        assert await store.get_job("b") is not None

    async def test_a_write_is_seen_by_the_next_read(self, store: Store) -> None:
        await store.create_job(make_job("seen"), {})
        for number in range(1, 30):
            await store.update_job("seen", count_up)
            job = await store.get_job("seen")
            assert job is not None
            assert job.attempt == number

    # Changes

    async def test_a_change_is_stored_with_its_columns(self, store: Store) -> None:
        await store.create_job(make_job("done"), {})
        changed = await store.update_job("done", completed)
        assert changed == await store.get_job("done") == completed(make_job("done"))
        (summary,) = (await store.list_jobs(JobQuery(status_equals=TrainingJobStatus.COMPLETED))).summaries
        assert summary == JobSummary(
            name="done",
            arn=changed.arn,
            status=TrainingJobStatus.COMPLETED,
            secondary_status=SecondaryStatus.COMPLETED,
            created_at=START,
            modified_at=START,
            training_ended_at=START + timedelta(hours=1),
            warm_pool=None,
        )

    async def test_returning_the_same_job_writes_nothing(self, store: Store, database_url: str) -> None:
        await store.create_job(make_job("same"), {})
        await store.update_job("same", count_up)
        before = _versions(database_url)
        assert (await store.update_job("same", lambda job: job)).attempt == 1
        assert _versions(database_url) == before == {"same": 2}

    async def test_an_exception_in_a_change_reaches_the_caller_and_nothing_is_written(self, store: Store) -> None:
        await store.create_job(make_job("kept"), {})

        def refuse(job: TrainingJob) -> TrainingJob:
            raise ArithmeticError(f"not {job.name}")

        results = await asyncio.gather(
            store.update_job("kept", count_up),
            store.update_job("kept", refuse),
            store.update_job("kept", count_up),
            return_exceptions=True,
        )
        assert isinstance(results[1], ArithmeticError)
        job = await store.get_job("kept")
        assert job is not None
        assert job.attempt == 2

    async def test_a_job_cannot_be_renamed(self, store: Store) -> None:
        await store.create_job(make_job("old"), {})
        with pytest.raises(StoreError, match="name and ARN of a job are for ever"):
            await store.update_job("old", lambda job: replace(job, name="new"))

    async def test_changing_an_unknown_job_is_refused_by_name(self, store: Store) -> None:
        with pytest.raises(JobNotFound, match="nobody"):
            await store.update_job("nobody", count_up)

    async def test_no_change_is_lost_between_two_services(self, store: Store, other_store: Store) -> None:
        await store.create_job(make_job("busy"), {})
        await asyncio.gather(*(each.update_job("busy", count_up) for each in [store, other_store] * 40))
        job = await store.get_job("busy")
        assert job is not None
        assert job.attempt == 80

    async def test_services_that_change_the_same_jobs_in_opposite_order_all_succeed(
        self, store: Store, other_store: Store
    ) -> None:
        names = [f"job-{number}" for number in range(10)]
        await asyncio.gather(*(store.create_job(make_job(name), {}) for name in names))
        for _ in range(3):
            await asyncio.gather(
                *(store.update_job(name, count_up) for name in names),
                *(other_store.update_job(name, count_up) for name in reversed(names)),
            )
        assert [job.attempt for job in await store.unfinished_jobs()] == [6] * 10

    # Lists

    @pytest.mark.parametrize("sort_by", list(SortBy))
    @pytest.mark.parametrize("descending", [False, True])
    async def test_pages_together_are_the_whole_list_in_order(
        self, store: Store, sort_by: SortBy, descending: bool
    ) -> None:
        shuffled = random.Random(5)
        names = ["Z", "a", "b-1", "b.1", "b_1", "ba", "A", "0", "zz", "z-z", "aA", "aa"]
        jobs = [make_job(name, minutes=shuffled.randrange(3)) for name in names]
        jobs = [completed(job) if shuffled.random() < 0.5 else job for job in jobs]
        await asyncio.gather(*(store.create_job(job, {}) for job in jobs))
        keys = {
            SortBy.NAME: lambda job: (job.name,),
            SortBy.CREATION_TIME: lambda job: (job.created_at, job.name),
            SortBy.STATUS: lambda job: (job.status.value, job.name),
        }
        expected = [job.name for job in sorted(jobs, key=keys[sort_by], reverse=descending)]
        for page_size in (1, 5, 12, 100):
            query = JobQuery(sort_by=sort_by, descending=descending, max_results=page_size)
            assert [summary.name for summary in await all_pages(store, query)] == expected

    async def test_each_filter_returns_only_matching_jobs(self, store: Store) -> None:
        for number, name in enumerate(["alpha", "Alpha-2", "al_pha", "beta%1"]):
            job = make_job(name, minutes=number)
            await store.create_job(replace(job, modified_at=START + timedelta(hours=number)), {})
        await store.update_job("beta%1", completed)

        async def names(**filters: Any) -> list[str]:
            return [summary.name for summary in await all_pages(store, JobQuery(**filters))]

        assert await names(name_contains="lpha") == ["alpha", "Alpha-2"]
        assert await names(name_contains="A") == ["Alpha-2"]
        assert await names(name_contains="_") == ["al_pha"]
        assert await names(name_contains="%") == ["beta%1"]
        assert await names(status_equals=TrainingJobStatus.COMPLETED) == ["beta%1"]
        assert await names(created_after=START) == ["Alpha-2", "al_pha", "beta%1"]
        assert await names(created_before=START + timedelta(minutes=1)) == ["alpha"]
        assert await names(modified_after=START + timedelta(hours=2)) == ["beta%1"]
        assert await names(modified_before=START + timedelta(hours=1)) == ["alpha"]
        assert await names(created_after=START, name_contains="al") == ["al_pha"]
        assert await names(status_equals=TrainingJobStatus.FAILED) == []

    async def test_a_job_created_or_deleted_between_two_pages_does_not_shift_the_second(self, store: Store) -> None:
        for name in "bdf":
            await store.create_job(make_job(name), {})
        query = JobQuery(sort_by=SortBy.NAME, max_results=2)
        first = await store.list_jobs(query)
        await store.create_job(make_job("a"), {})
        await store.delete_job("d")
        second = await store.list_jobs(replace(query, next_token=first.next_token, max_results=50))
        assert [summary.name for page in (first, second) for summary in page.summaries] == ["b", "d", "f"]
        assert second.next_token is None

    async def test_a_page_token_of_another_query_or_a_forged_one_is_refused(self, store: Store) -> None:
        for name in "abc":
            await store.create_job(make_job(name), {})
        token = (await store.list_jobs(JobQuery(max_results=1))).next_token
        assert token is not None
        for query in (
            JobQuery(next_token=token, descending=True),
            JobQuery(next_token=token, sort_by=SortBy.NAME),
            JobQuery(next_token=token, name_contains="a"),
            JobQuery(next_token=token[:-4] + "AAAA"),
            JobQuery(next_token="A" + token[1:] if token[0] != "A" else "B" + token[1:]),
            JobQuery(next_token="nonsense"),
            JobQuery(next_token=""),
            JobQuery(next_token="\u00e9" * 40),
        ):
            with pytest.raises(BadToken, match="was not given out for this query"):
                await store.list_jobs(query)

    async def test_a_page_token_is_valid_after_a_restart(self, store: Store, database_url: str) -> None:
        for name in "abc":
            await store.create_job(make_job(name), {})
        token = (await store.list_jobs(JobQuery(max_results=1))).next_token
        await store.close()
        again = await Store.open(database_url)
        try:
            page = await again.list_jobs(JobQuery(next_token=token))
            assert [summary.name for summary in page.summaries] == ["b", "c"]
        finally:
            await again.close()

    @pytest.mark.parametrize("max_results", [0, 101, -1])
    async def test_a_page_size_out_of_range_is_refused(self, store: Store, max_results: int) -> None:
        with pytest.raises(StoreError, match=f"1 to 100, got {max_results}"):
            await store.list_jobs(JobQuery(max_results=max_results))

    async def test_unfinished_jobs_are_those_that_still_need_work(self, store: Store) -> None:
        running = make_job("running", minutes=2)
        ending = replace(completed(make_job("ending", minutes=1)), is_released=False)
        over = completed(make_job("over"))
        for job in (running, ending, over):
            await store.create_job(job, {})
        assert await store.unfinished_jobs() == [ending, running]

    # Deletion, tags, metrics

    async def test_deleting_a_job_deletes_its_tags_and_metrics(self, store: Store) -> None:
        for name in ("gone", "kept"):
            await store.create_job(make_job(name), {"team": name})
            await store.add_metrics(name, [FinalMetric(name="loss", value=1.0, at=START)])
        await store.delete_job("gone")
        assert await store.get_job("gone") is None
        assert await store.get_tags(make_job("gone").arn) == {}
        assert await store.get_tags(make_job("kept").arn) == {"team": "kept"}
        await store.create_job(make_job("gone"), {})  # the name is free again, without tags or metrics of the old job
        end = START + timedelta(days=1)
        assert await store.query_metrics("gone", "loss", START, end) == []
        assert len(await store.query_metrics("kept", "loss", START, end)) == 1
        with pytest.raises(JobNotFound):
            await store.delete_job("nobody")

    async def test_tags_are_added_replaced_and_removed(self, store: Store) -> None:
        await store.set_tags("arn:1", {"a": "1", "b": "2"})
        await store.set_tags("arn:1", {"b": "3", "c": "\u00e9"})
        await store.set_tags("arn:2", {"a": "other"})
        await store.set_tags("arn:1", {})
        assert list((await store.get_tags("arn:1")).items()) == [("a", "1"), ("b", "3"), ("c", "\u00e9")]
        await store.remove_tags("arn:1", ["a", "c", "unknown"])
        await store.remove_tags("arn:1", [])
        assert await store.get_tags("arn:1") == {"b": "3"}
        assert await store.get_tags("arn:2") == {"a": "other"}

    async def test_metrics_are_returned_by_time_including_start_and_excluding_end(self, store: Store) -> None:
        await store.create_job(make_job("m"), {})
        moments = [START + timedelta(seconds=second) for second in (3, 1, 2, 2)]
        values = [
            FinalMetric(name="loss", value=value, at=at)
            for value, at in zip((3.0, math.inf, 2.5, 2.25), moments, strict=True)
        ]
        await store.add_metrics("m", values)
        await store.add_metrics("m", [FinalMetric(name="accuracy", value=0.5, at=START)])
        await store.add_metrics("m", [])
        found = await store.query_metrics("m", "loss", START, START + timedelta(seconds=3))
        assert found == [values[1], values[2], values[3]]
        assert await store.query_metrics("m", "loss", moments[2], moments[0]) == [values[2], values[3]]
        assert await store.query_metrics("other", "loss", START, START + timedelta(days=1)) == []

    async def test_a_metric_that_is_not_a_number_is_kept_as_such(self, store: Store) -> None:
        nan = FinalMetric(name="loss", value=math.nan, at=START)
        await store.create_job(make_job("nan", final_metrics=(nan,)), {})
        await store.add_metrics("nan", [nan])
        (found,) = await store.query_metrics("nan", "loss", START, START + timedelta(seconds=1))
        job = await store.get_job("nan")
        assert job is not None
        assert math.isnan(found.value)
        assert math.isnan(job.final_metrics[0].value)

    async def test_metrics_of_an_unknown_job_are_refused(self, store: Store) -> None:
        with pytest.raises(JobNotFound, match="nobody"):
            await store.add_metrics("nobody", [FinalMetric(name="loss", value=1.0, at=START)])

    # Opening and closing

    async def test_jobs_tags_and_metrics_survive_a_restart(self, store: Store, database_url: str) -> None:
        await store.create_job(make_job("j"), {"a": "1"})
        await store.close()
        again = await Store.open(database_url)
        try:
            assert await again.get_job("j") == make_job("j")
            assert await again.get_tags(make_job("j").arn) == {"a": "1"}
        finally:
            await again.close()

    async def test_close_finishes_started_writes_and_refuses_new_ones(self, store: Store, database_url: str) -> None:
        pending = [asyncio.create_task(store.create_job(make_job(f"j{number}"), {})) for number in range(50)]
        await asyncio.sleep(0)
        await store.close()
        await store.close()
        await asyncio.gather(*pending)
        for act in (store.create_job(make_job("late"), {}), store.get_job("j0")):
            with pytest.raises(StoreError, match="is closed"):
                await act
        assert len(_versions(database_url)) == 50

    async def test_services_that_start_at_once_agree_on_one_schema(self, database_url: str) -> None:
        stores = await asyncio.gather(*(Store.open(database_url) for _ in range(4)))
        try:
            await stores[0].create_job(make_job("j"), {})
            assert await stores[3].get_job("j") is not None
        finally:
            for store in stores:
                await store.close()

    async def test_migrations_from_version_0_create_the_tables_that_queries_use(
        self, store: Store, database_url: str
    ) -> None:
        engine = create_engine(parse_url(database_url))
        inspector = inspect(engine)
        found = {name: {c["name"] for c in inspector.get_columns(name)} for name in inspector.get_table_names()}
        engine.dispose()
        assert found.keys() - {"sqlite_sequence"} == tables.metadata.tables.keys()
        for name, table in tables.metadata.tables.items():
            assert found[name] == {column.name for column in table.columns}

    async def test_each_migration_runs_once_and_in_order(self, database_url: str) -> None:
        ran = []
        steps = [
            *MIGRATIONS,
            *(
                Migration(number=number, name=f"step {number}", apply=lambda _connection, n=number: ran.append(n))
                for number in (len(MIGRATIONS) + 1, len(MIGRATIONS) + 2)
            ),
        ]
        engines = open_engines(parse_url(database_url), num_readers=1)
        try:
            for length in (len(MIGRATIONS), len(MIGRATIONS) + 1, len(steps), len(steps)):
                with engines[0].begin() as connection:
                    assert migrate(connection, steps[:length]) == length
            assert ran == [step.number for step in steps[len(MIGRATIONS) :]]
        finally:
            for engine in engines:
                engine.dispose()

    async def test_a_failed_migration_leaves_the_database_at_its_old_version(
        self, store: Store, database_url: str
    ) -> None:
        def half(connection: Any) -> None:
            connection.execute(text("CREATE TABLE half (a INTEGER)"))
            raise ArithmeticError("no disk left")

        await store.close()
        engines = open_engines(parse_url(database_url), num_readers=1)
        try:
            with pytest.raises(ArithmeticError), engines[0].begin() as connection:
                migrate(connection, [*MIGRATIONS, Migration(number=len(MIGRATIONS) + 1, name="half", apply=half)])
            with engines[1].connect() as connection:
                assert read_version(connection) == len(MIGRATIONS)
                assert not inspect(connection).has_table("half")
        finally:
            for engine in engines:
                engine.dispose()

    async def test_a_database_from_a_newer_release_is_refused(self, store: Store, database_url: str) -> None:
        await store.close()
        newer = len(MIGRATIONS) + 1
        engine = create_engine(parse_url(database_url))
        with engine.begin() as connection:
            connection.execute(insert(tables.schema_version).values(version=newer, name="future", applied_at=0))
        engine.dispose()
        with pytest.raises(StoreError, match=f"at schema version {newer}, this release of Clary knows versions up to"):
            await Store.open(database_url)

    # Cards and curves, which the console shows

    async def all_cards(self, store: Store, query: CardQuery, *, now: datetime = START) -> list[JobCard]:
        found: list[JobCard] = []
        for _ in range(100):
            page = await store.cards.page(query, now=now)
            found += page.cards
            if page.next_token is None:
                return found
            query = replace(query, token=page.next_token)
        raise AssertionError("paging does not end")

    async def test_a_card_is_updated_and_deleted_with_its_job(self, store: Store) -> None:
        request = {"ResourceConfig": {"InstanceType": "ml.c5.xlarge", "InstanceCount": 3}}
        await store.create_job(make_job("j", request=request), {"team": "a", "zone": "b"})
        [card] = (await store.cards.page(CardQuery(), now=START + timedelta(seconds=5))).cards
        assert (card.num_hosts, card.instance_type, card.duration_s) == (3, "ml.c5.xlarge", None)
        assert (card.started_at, card.ended_at, card.failure_reason) == (None, None, "")
        assert card.tags == {"team": "a", "zone": "b"}
        failure = JobFailure(fault="algorithm", message="Disk 50 % FULL", exit_code=3)
        metrics = tuple(FinalMetric(name=f"m{number}", value=math.inf, at=START) for number in range(40))
        failed = {"status": TrainingJobStatus.FAILED, "secondary_status": SecondaryStatus.FAILED}
        await store.update_job(
            "j", lambda job: replace(job, failure=failure, final_metrics=metrics, training_started_at=START, **failed)
        )
        [card] = (await store.cards.page(CardQuery(), now=START + timedelta(seconds=9))).cards
        assert card.status == "Failed"
        assert "Disk 50 % FULL" in card.failure_reason
        assert card.ended_at == START  # a terminal job changes no more
        assert [metric["name"] for metric in card.metrics] == [f"m{number}" for number in range(MAX_CARD_METRICS)]
        await store.delete_job("j")
        page = await store.cards.page(CardQuery(), now=START)
        assert (page.cards, page.counts, page.next_token) == ((), {}, None)

    @pytest.mark.parametrize("bad", ["half a pair \ud800", "a NUL \0 within"])
    async def test_a_failure_reason_with_text_that_databases_refuse_still_ends_the_job(
        self, store: Store, bad: str
    ) -> None:
        resources = {"InstanceType": bad, "InstanceCount": 1}
        await store.create_job(make_job("j", request={**make_job("j").request, "ResourceConfig": resources}), {})
        failure = JobFailure(fault="algorithm", message=bad, is_own_words=True)
        metrics = (FinalMetric(name=bad, value=1.0, at=START),)
        await store.update_job("j", lambda job: replace(job, failure=failure, final_metrics=metrics))
        [card] = (await store.cards.page(CardQuery(search="AlgorithmError"), now=START)).cards
        assert bad.split(" ")[0] in card.failure_reason
        assert "\0" not in card.failure_reason + card.instance_type  # PostgreSQL accepts no NUL in text
        stored = await store.get_job("j")
        assert stored is not None
        assert stored.failure == failure

    async def test_search_order_and_pages_of_cards_equal_those_of_a_full_scan(self, store: Store) -> None:
        randomly = random.Random(5)
        for number in range(40):
            job = make_job(f"{randomly.choice('abc')}-{number:02}", minutes=randomly.randrange(5))
            if randomly.random() < 0.5:
                ended_at = job.created_at + timedelta(minutes=randomly.randrange(3))
                job = replace(completed(job), training_ended_at=ended_at, modified_at=ended_at)
            if randomly.random() < 0.7:
                job = replace(job, training_started_at=job.created_at)
            job = replace(job, attempt=randomly.randrange(2))
            await store.create_job(job, {})
        now = START + timedelta(minutes=10)
        whole = (await store.cards.page(CardQuery(limit=500), now=now)).cards
        assert len(whole) == 40
        keys = {
            CardOrder.NAME: lambda card: card.name,
            CardOrder.CREATED: lambda card: (card.created_at, card.name),
            CardOrder.STATUS: lambda card: (list(JobState).index(card.state), card.name),
            CardOrder.DURATION: lambda card: (card.duration_s or 0.0, card.name),
        }
        for order, key in keys.items():
            for descending, status, search in itertools.product(
                (True, False), (None, TrainingJobStatus.COMPLETED), ("", "A-", "compl")
            ):
                query = CardQuery(order=order, descending=descending, status=status, search=search, limit=7)
                found = [card for card in whole if search.lower() in f"{card.name} {card.status}".lower()]
                page = await store.cards.page(query, now=now)
                assert page.counts == Counter(card.status for card in found)
                wanted = [card for card in found if status in (None, card.status)]
                assert await self.all_cards(store, query, now=now) == sorted(wanted, key=key, reverse=descending)

    async def test_cards_are_filtered_and_counted_by_state(self, store: Store) -> None:
        secondaries = {"new": "STARTING", "waits": "PENDING", "again": "INTERRUPTED", "runs": "TRAINING"}
        for name, secondary in secondaries.items():
            await store.create_job(replace(make_job(name), attempt=1, secondary_status=SecondaryStatus[secondary]), {})
        await store.create_job(replace(make_job("came"), attempt=0), {})  # no hosts have been requested yet
        await store.create_job(completed(make_job("done")), {})
        page = await store.cards.page(CardQuery(state=JobState.QUEUED, order=CardOrder.NAME), now=START)
        assert {card.name for card in page.cards} == {"waits", "again", "came"}
        assert page.states == {"Starting": 1, "Queued": 3, "Running": 1, "Completed": 1}
        assert page.counts == {"InProgress": 5, "Completed": 1}
        page = await store.cards.page(CardQuery(state=JobState.COMPLETED), now=START)
        assert [card.name for card in page.cards] == ["done"]
        for search, found in (("queued", {"waits", "again", "came"}), ("running", {"runs"}), ("starting", {"new"})):
            page = await store.cards.page(CardQuery(search=search), now=START)
            assert {card.name for card in page.cards} == found
        query = CardQuery(order=CardOrder.STATUS, descending=False)
        states = [card.state.value for card in (await store.cards.page(query, now=START)).cards]
        assert states == ["Queued", "Queued", "Queued", "Starting", "Running", "Completed"]

    async def test_a_search_includes_jobs_named_in_also_found(self, store: Store) -> None:
        for name in ("a", "b", "c"):
            await store.create_job(make_job(name), {})
        page = await store.cards.page(CardQuery(search="b", also_found=("c", "gone"), order=CardOrder.NAME), now=START)
        assert ({card.name for card in page.cards}, page.states) == ({"b", "c"}, {"Queued": 2})
        names = ("a", *(f"gone-{number}" for number in range(20_000)))
        page = await store.cards.page(CardQuery(search="nothing", also_found=names), now=START)
        assert [card.name for card in page.cards] == ["a"]

    async def test_skip_returns_later_cards_without_reading_those_between(self, store: Store) -> None:
        for number in range(30):
            await store.create_job(make_job(f"j{number:02}", minutes=number), {})
        whole = await self.all_cards(store, CardQuery(limit=500))
        first = await store.cards.page(CardQuery(limit=4), now=START)
        await store.create_job(make_job("newer", minutes=99), {})  # a newer card does not shift later pages
        query = CardQuery(limit=5, token=first.next_token, skip=20)
        page = await store.cards.page(query, now=START)
        assert list(page.cards) == whole[24:29]
        rest = await store.cards.page(replace(query, token=page.next_token, skip=0), now=START)
        assert (list(rest.cards), rest.next_token) == (whole[29:], None)
        beyond = await store.cards.page(replace(query, skip=99), now=START)
        assert (beyond.cards, beyond.next_token) == ((), None)

    @pytest.mark.parametrize("search", ["%", "_", "\\", "'", '"', "a%b", "nobody"])
    async def test_a_search_has_no_special_characters(self, store: Store, search: str) -> None:
        await store.create_job(make_job("j"), {})
        assert (await store.cards.page(CardQuery(search=search), now=START)).cards == ()

    async def test_a_page_token_of_cards_is_refused_by_another_query(self, store: Store) -> None:
        for number in range(3):
            await store.create_job(make_job(f"j{number}"), {})
        token = (await store.cards.page(CardQuery(limit=1), now=START)).next_token
        for query in (CardQuery(search="j"), CardQuery(descending=False), CardQuery(order=CardOrder.NAME)):
            with pytest.raises(BadToken):
                await store.cards.page(replace(query, token=token), now=START)
        with pytest.raises(BadToken):
            await store.cards.page(CardQuery(token="forged"), now=START)
        with pytest.raises(StoreError, match="limit must be 1 to"):
            await store.cards.page(CardQuery(limit=0), now=START)

    async def test_jobs_of_an_older_release_get_cards(self, database_url: str) -> None:
        numbers = {step.name: step.number for step in MIGRATIONS}
        number, states = numbers["cards of jobs"], numbers["states of cards"]
        store = await Store.open(database_url)
        for index in range(450):
            await store.create_job(replace(make_job(f"j{index:03}"), attempt=1), {})
        before = (await store.cards.page(CardQuery(limit=500), now=START)).cards
        await store.close()
        engine = create_engine(parse_url(database_url))
        with engine.begin() as connection:
            connection.execute(text("DROP TABLE job_cards"))
            MIGRATIONS[number - 1].apply(connection)
            connection.execute(text("UPDATE job_cards SET words = name"))  # the old card has no state
            MIGRATIONS[states - 1].apply(connection)
        engine.dispose()
        store = await Store.open(database_url)
        assert (await store.cards.page(CardQuery(limit=500), now=START)).cards == before
        assert (await store.cards.page(CardQuery(search="starting"), now=START)).states == {"Starting": 450}
        await store.close()

    # Crashes

    @pytest.mark.timeout(120)
    async def test_every_acknowledged_job_and_line_survives_kill_9(self, database_url: str, tmp_path: Path) -> None:
        delays = random.Random(3)
        acknowledged: set[str] = set()
        next_line = 0
        with CrashNursery(database_url, tmp_path / "logs") as nursery:
            for round_number in range(20):
                jobs, line = nursery.run_and_kill(round_number, after_s=delays.uniform(0.02, 0.12))
                acknowledged |= jobs
                next_line = max(next_line, line)
                stored_line = await nursery.check_logs(at_least=next_line)
                store = await Store.open(database_url)
                try:
                    names = (
                        {summary.name for summary in await all_pages(store, JobQuery())}
                        if round_number > 17
                        else ({name for name in jobs if await store.get_job(name) is not None})
                    )
                finally:
                    await store.close()
                assert jobs <= names
                next_line = stored_line
        assert acknowledged <= names
        assert len(acknowledged) > 20
        assert next_line > 20


def _versions(database_url: str) -> dict[str, int]:
    engine = create_engine(parse_url(database_url))
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT name, version FROM jobs")).all()
    engine.dispose()
    return {row.name: row.version for row in rows}
