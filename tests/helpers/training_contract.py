"""Contract of training findings for every database of the store; run against SQLite and PostgreSQL.

A test class inherits `TrainingContract` and provides a `database_url` fixture: a fresh, empty database.
"""

import asyncio
import itertools
import math
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, func, select, text
from store_contract import make_job

from clary.contract.training_values import FindingKind, TrainingProgress
from clary.control.jobs import kept_pictures
from clary.control.jobs.training_job import FinalMetric
from clary.control.store import job_rows, training_records
from clary.control.store.database import parse_url
from clary.control.store.errors import JobNotFound
from clary.control.store.job_rows import remove_some
from clary.control.store.migrations import MIGRATIONS
from clary.control.store.store import Store
from clary.control.store.tables import training_pictures
from clary.control.store.training_pictures import Picture

START = datetime(2026, 1, 1, tzinfo=UTC)


def value(step: int, name: str = "loss", number: float = 0.5) -> FinalMetric:
    return FinalMetric(name=name, value=number, at=START + timedelta(seconds=step), step=step)


def picture(step: int | None, kind: str = "image", data: bytes | None = b"png", tag: str = "sample") -> Picture:
    return Picture(kind=kind, tag=tag, at=START, step=step, file="output/e", offset=7, size_bytes=3, data=data)


class TrainingContract:
    """Tests that need only the URL of an empty database."""

    @pytest.fixture
    async def store(self, database_url: str) -> AsyncIterator[Store]:
        store = await Store.open(database_url)
        await store.create_job(make_job("job"), {})
        yield store
        await store.close()

    async def test_findings_that_are_sent_again_are_stored_once(self, store: Store) -> None:
        findings = [value(1), picture(1), value(2)]
        assert await store.training.append("job", 1, "algo-1", first=0, findings=findings) == (3, 0)
        assert await store.training.append("job", 1, "algo-1", first=0, findings=findings) == (3, 3)
        assert await store.training.append("job", 1, "algo-1", first=1, findings=[*findings[1:], value(3)]) == (4, 2)
        assert [one.step for one in await store.training.newest_values("job", "loss", most=10)] == [1, 2, 3]
        assert len(await store.training.pictures("job", "image", "sample", most=10)) == 1

    async def test_first_findings_sent_to_two_services_at_once_are_stored_once(
        self, store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told = training_records._told

        def slowly(*progress: Any) -> str | None:
            time.sleep(0.5)  # so that both read the next number before either writes, unless a lock delays the second
            return told(*progress)

        monkeypatch.setattr(training_records, "_told", slowly)
        other = await Store.open(database_url)
        try:
            sending = [one.training.append("job", 1, "algo-1", first=0, findings=[value(1)]) for one in (store, other)]
            assert sorted(await asyncio.gather(*sending)) == [(1, 0), (1, 1)]
        finally:
            await other.close()
        assert len(await store.training.newest_values("job", "loss", most=10)) == 1

    async def test_each_host_and_attempt_numbers_its_findings_and_gaps_are_accepted(self, store: Store) -> None:
        for attempt, host in ((1, "algo-1"), (1, "algo-2"), (2, "algo-1")):
            assert await store.training.append("job", attempt, host, first=0, findings=[value(attempt)]) == (1, 0)
        assert await store.training.append("job", 2, "algo-1", first=9, findings=[value(9)], num_dropped=8) == (10, 0)
        assert len(await store.training.newest_values("job", "loss", most=10)) == 4

    async def test_values_keep_their_steps_and_nan_stays_nan(self, store: Store) -> None:
        await store.training.append("job", 1, "algo-1", first=0, findings=[value(1, number=math.nan), value(2)])
        await store.add_metrics("job", [FinalMetric(name="loss", value=0.25, at=START + timedelta(seconds=9))])
        found = await store.training.newest_values("job", "loss", most=10)
        assert [(one.step, one.value) for one in found[1:]] == [(2, 0.5), (None, 0.25)]
        assert math.isnan(found[0].value)
        assert [one.step for one in await store.training.newest_values("job", "loss", most=1)] == [None]
        (facts,) = await store.training.metric_facts("job")
        assert (facts.name, facts.num_values, facts.least, facts.greatest) == ("loss", 3, 0.25, 0.5)
        asked = await store.query_metrics("job", "loss", START, START + timedelta(days=1))
        assert [one.step for one in asked] == [1, 2, None]

    async def test_pictures_are_listed_by_tag_and_their_bytes_read_by_number(self, store: Store) -> None:
        findings = [picture(1), picture(2, data=None), picture(3, kind="histogram", data=b"[[0,1,2]]")]
        await store.training.append("job", 1, "algo-1", first=0, findings=findings)
        tags = [(one.kind, one.tag, one.num_values, one.last_step) for one in await store.training.tags("job")]
        assert tags == [("histogram", "sample", 1, 3), ("image", "sample", 2, 2)]
        kept, large = await store.training.pictures("job", "image", "sample", most=10)
        assert (kept.data, kept.step, kept.file, kept.offset, kept.size_bytes) == (None, 1, "output/e", 7, 3)
        assert (kept.is_kept, large.is_kept) == (True, False)
        assert (await store.training.picture("job", kept.id)).data == b"png"
        assert (await store.training.picture("job", large.id)).data is None
        assert await store.training.picture("other", kept.id) is None
        (histogram,) = await store.training.pictures("job", "histogram", "sample", most=10)
        assert histogram.data == b"[[0,1,2]]"

    async def test_of_many_pictures_the_first_the_last_and_evenly_spaced_ones_are_kept(self, store: Store) -> None:
        for first in range(0, 600, 20):
            findings = [picture(step * 10) for step in range(first, first + 20)]
            await store.training.append("job", 1, "algo-1", first=first, findings=findings)
        steps = [one.step for one in await store.training.pictures("job", "image", "sample", most=1000)]
        (tag,) = await store.training.tags("job")
        most = kept_pictures.MOST_OF_TAG[FindingKind.IMAGE]
        assert most <= len(steps) <= most + most // 4
        assert (steps[0], steps[-1]) == (0, 5990)
        assert max(right - left for left, right in itertools.pairwise(steps)) <= 2 * 5990 / (most - 1) + 10
        assert (tag.num_seen, tag.num_values, tag.kept_bytes, tag.last_step) == (600, len(steps), 3 * len(steps), 5990)
        await store.training.append("job", 1, "algo-1", first=580, findings=[picture(step) for step in range(20)])
        assert (await store.training.tags("job")) == [tag], "what is sent again brings nothing back"

    async def test_pictures_without_steps_are_thinned_by_their_order(self, store: Store) -> None:
        findings = [picture(None, data=bytes([number])) for number in range(200)]
        await store.training.append("job", 1, "algo-1", first=0, findings=findings)
        kept = await store.training.pictures("job", "image", "sample", most=1000)
        numbers = [(await store.training.picture("job", one.id)).data[0] for one in kept]
        assert (numbers[0], numbers[-1], len(numbers)) == (0, 199, kept_pictures.MOST_OF_TAG[FindingKind.IMAGE])
        assert (await store.training.tags("job"))[0].last_step is None

    async def test_a_job_at_its_size_limit_drops_pictures_of_all_its_large_tags(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(kept_pictures, "MAX_JOB_BYTES", 3_000)
        early = [picture(step, data=b"x" * 100, tag="early") for step in range(20)]
        await store.training.append("job", 1, "algo-1", first=0, findings=[*early, picture(7, tag="small")])
        assert [one.num_values for one in await store.training.tags("job")] == [20, 1]
        late = [picture(step, data=b"x" * 100, tag="late") for step in range(20)]
        await store.training.append("job", 1, "algo-1", first=21, findings=late)
        kept = {one.tag: (one.num_seen, one.num_values, one.kept_bytes) for one in await store.training.tags("job")}
        assert kept == {"early": (20, 10, 1_000), "late": (20, 10, 1_000), "small": (1, 1, 3)}

    async def test_a_tag_beyond_the_limit_is_dropped_and_other_tags_are_kept(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(kept_pictures.MOST_TAGS, FindingKind.IMAGE, 2)
        findings = [picture(step, tag=tag) for step in (1, 2) for tag in ("a", "b", "c")]
        assert await store.training.append("job", 1, "algo-1", first=0, findings=findings) == (6, 0)
        assert [(one.tag, one.num_seen) for one in await store.training.tags("job")] == [("a", 2), ("b", 2)]
        assert await store.training.pictures("job", "image", "c", most=10) == []

    async def test_pictures_of_an_older_release_are_counted(self, store: Store, database_url: str) -> None:
        number = next(step.number for step in MIGRATIONS if step.name == "tags of pictures")
        findings = [picture(1), picture(4, data=None), picture(2, kind="histogram", data=b"[]", tag="w")]
        await store.training.append("job", 1, "algo-1", first=0, findings=findings)
        before = await store.training.tags("job")
        engine = create_engine(parse_url(database_url))
        with engine.begin() as connection:
            connection.execute(text("DROP TABLE training_tags"))
            MIGRATIONS[number - 1].apply(connection)
        engine.dispose()
        assert await store.training.tags("job") == before

    async def test_progress_is_each_hosts_newest_and_a_programs_report_beats_the_log(self, store: Store) -> None:
        async def say(progress: TrainingProgress, host: str = "algo-1", attempt: int = 1) -> None:
            await store.training.append("job", attempt, host, first=0, findings=(), progress=progress)

        async def told(attempt: int = 1) -> dict[str, tuple[float, str]]:
            found = await store.training.progress_of("job", attempt)
            return {one.host: (one.progress.done, one.progress.source) for one in found}

        await say(TrainingProgress(done=1, total=10, at_ms=1_000))
        await say(TrainingProgress(done=2, total=10, at_ms=2_000))
        await say(TrainingProgress(done=5, total=10, at_ms=2_000), host="algo-2")
        assert await told() == {"algo-1": (2, "log"), "algo-2": (5, "log")}
        await say(TrainingProgress(done=3, total=10, source="kubeflow", at_ms=3_000))
        await say(TrainingProgress(done=4, total=99, at_ms=4_000))
        assert (await told())["algo-1"] == (3, "kubeflow")
        await say(TrainingProgress(done=9, total=99, at_ms=100_000))
        assert (await told())["algo-1"] == (9, "log")
        assert await told(attempt=2) == {}

    async def test_findings_are_deleted_with_their_job_and_refused_for_a_missing_one(self, store: Store) -> None:
        await store.training.append(
            "job", 1, "algo-1", first=0, findings=[value(1), picture(1)], progress=TrainingProgress(done=1)
        )
        await store.delete_job("job")
        with pytest.raises(JobNotFound):
            await store.training.append("job", 1, "algo-1", first=2, findings=[value(2)])
        await store.create_job(make_job("job"), {})
        assert await store.training.metric_facts("job") == []
        assert await store.training.tags("job") == []
        assert await store.training.progress_of("job", 1) == []

    async def test_a_job_with_many_pictures_and_values_is_deleted_in_batches(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for first in range(0, 400, 100):
            findings = [picture(first + number, tag=f"t{number}", data=b"p" * 1000) for number in range(100)]
            await store.training.append("job", 1, "algo-1", first=first, findings=findings)
        for first in range(0, 12_000, 2_000):
            values = [value(first + number) for number in range(2_000)]
            await store.training.append("job", 1, "algo-2", first=first, findings=values)
        await store.create_job(make_job("other"), {})
        await store.training.append("other", 1, "algo-1", first=0, findings=[value(1), picture(1)])
        pieces = []

        def count(connection: Connection, job_name: str) -> bool:
            before = connection.execute(select(func.count()).select_from(training_pictures)).scalar_one()
            is_more = remove_some(connection, job_name)
            after = connection.execute(select(func.count()).select_from(training_pictures)).scalar_one()
            pieces.append(before - after)
            return is_more

        monkeypatch.setattr(job_rows, "remove_some", count)
        await store.delete_job("job")
        assert (sum(pieces), max(pieces)) == (400, 40)
        assert len(pieces) >= 11, "pictures in ten pieces, and values in one more"
        assert await store.training.metric_facts("job") == []
        assert len(await store.training.newest_values("other", "loss", most=10)) == 1
        assert len(await store.training.pictures("other", "image", "sample", most=10)) == 1
        with pytest.raises(JobNotFound):
            await store.delete_job("job")

    async def test_of_two_concurrent_deletions_one_finds_no_job(self, store: Store) -> None:
        findings = [picture(number, tag=f"t{number % 50}") for number in range(200)]
        await store.training.append("job", 1, "algo-1", first=0, findings=findings)
        done = await asyncio.gather(store.delete_job("job"), store.delete_job("job"), return_exceptions=True)
        assert [type(one) for one in done if one is not None] == [JobNotFound]
