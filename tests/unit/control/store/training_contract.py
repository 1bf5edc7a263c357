"""What every database behind the findings of trainings must do; run against SQLite and PostgreSQL.

A test class inherits `TrainingContract` and gives a `database_url` fixture: a fresh, empty database.
"""

import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from store_contract import make_job

from clary.contract.training_values import TrainingProgress
from clary.control.jobs.training_job import FinalMetric
from clary.control.store.errors import JobNotFound
from clary.control.store.store import Store
from clary.control.store.training_records import Picture

START = datetime(2026, 1, 1, tzinfo=UTC)


def value(step: int, name: str = "loss", number: float = 0.5) -> FinalMetric:
    return FinalMetric(name=name, value=number, at=START + timedelta(seconds=step), step=step)


def picture(step: int, kind: str = "image", data: bytes | None = b"png") -> Picture:
    return Picture(kind=kind, tag="sample", at=START, step=step, file="output/e", offset=7, size_bytes=3, data=data)


class TrainingContract:
    """Tests that need nothing but the URL of an empty database."""

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

    async def test_each_host_and_attempt_counts_for_itself_and_a_gap_is_taken(self, store: Store) -> None:
        for attempt, host in ((1, "algo-1"), (1, "algo-2"), (2, "algo-1")):
            assert await store.training.append("job", attempt, host, first=0, findings=[value(attempt)]) == (1, 0)
        assert await store.training.append("job", 2, "algo-1", first=9, findings=[value(9)], num_dropped=8) == (10, 0)
        assert len(await store.training.newest_values("job", "loss", most=10)) == 4

    async def test_values_keep_their_steps_and_what_is_no_number_stays_so(self, store: Store) -> None:
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

    async def test_pictures_come_back_by_tag_and_their_bytes_by_number(self, store: Store) -> None:
        findings = [picture(1), picture(2, data=None), picture(3, kind="histogram", data=b"[[0,1,2]]")]
        await store.training.append("job", 1, "algo-1", first=0, findings=findings)
        tags = [(one.kind, one.tag, one.num_values, one.last_step) for one in await store.training.tags("job")]
        assert tags == [("histogram", "sample", 1, 3), ("image", "sample", 2, 2)]
        kept, large = await store.training.pictures("job", "image", "sample", most=10)
        assert (kept.data, kept.step, kept.file, kept.offset, kept.size_bytes) == (None, 1, "output/e", 7, 3)
        assert (await store.training.picture("job", kept.id)).data == b"png"
        assert (await store.training.picture("job", large.id)).data is None
        assert await store.training.picture("other", kept.id) is None
        (histogram,) = await store.training.pictures("job", "histogram", "sample", most=10)
        assert histogram.data == b"[[0,1,2]]"

    async def test_progress_is_the_newest_of_each_host_and_a_programs_own_word_stands_for_a_while(
        self, store: Store
    ) -> None:
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

    async def test_findings_go_with_their_job_and_none_come_for_one_that_is_not_there(self, store: Store) -> None:
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
