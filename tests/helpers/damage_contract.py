"""Damaged rows, on SQLite and PostgreSQL: each is quarantined with a name and a reason; other rows stay usable.

A test class inherits `DamageContract` and provides a `database_url` fixture: a fresh, empty database.
"""

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from store_contract import completed, count_up, make_job

from clary.base.errors import StoreError
from clary.contract.training_values import TrainingProgress
from clary.control.store.damage import DamagedRow, JobUnreadable
from clary.control.store.database import parse_url
from clary.control.store.errors import JobExists
from clary.control.store.job_cards import CardQuery
from clary.control.store.job_documents import row_of
from clary.control.store.job_queries import JobQuery
from clary.control.store.quarantine import NoSuchEntry
from clary.control.store.store import Store
from clary.control.store.tracking.experiment_rows import Kind, Tracked

DOCUMENT = json.loads(row_of(make_job("damaged"))["document"])
DAMAGES = {
    "truncated": row_of(make_job("damaged"))["document"][:60],
    "empty": "",
    "no object": "[1, 2]",
    "deep": "[" * 100_000,
    "unknown status": json.dumps({**DOCUMENT, "status": "Dreaming"}),
    "wrong type": json.dumps({**DOCUMENT, "attempt": "one"}),
    "no member": json.dumps({name: DOCUMENT[name] for name in DOCUMENT if name != "created_at"}),
    "huge number": json.dumps({**DOCUMENT, "attempt": 10**40}),
    "negative attempt": json.dumps({**DOCUMENT, "attempt": -1}),
    "no date": json.dumps({**DOCUMENT, "modified_at": "yesterday"}),
    "absurd date": json.dumps({**DOCUMENT, "created_at": "9999-12-31T23:59:59+00:00"}),
    "no request": json.dumps({**DOCUMENT, "request": {}}),
    "request of wrong types": json.dumps({**DOCUMENT, "request": {**DOCUMENT["request"], "ResourceConfig": 5}}),
    "another job": json.dumps({**DOCUMENT, "name": "other"}),
    "another status": row_of(completed(make_job("damaged")))["document"],
}


def execute(database_url: str, statement: str, **values: Any) -> None:
    """Change the database without the store."""
    engine = create_engine(parse_url(database_url))
    with engine.begin() as connection:
        connection.execute(text(statement), values)
    engine.dispose()


def damage(database_url: str, document: object, *, name: str = "damaged") -> None:
    execute(database_url, "UPDATE jobs SET document = :document WHERE name = :name", document=document, name=name)


class DamageContract:
    """Tests that need only the URL of an empty database."""

    @pytest.mark.parametrize("damaged", DAMAGES.values(), ids=DAMAGES.keys())
    async def test_a_start_quarantines_unreadable_rows_and_continues(self, database_url: str, damaged: str) -> None:
        store = await Store.open(database_url)
        for name in ("before", "damaged", "later"):
            await store.create_job(make_job(name), {"of": name})
        await store.close()
        damage(database_url, damaged)

        store = await Store.open(database_url)
        try:
            assert [job.name for job in await store.unfinished_jobs()] == ["before", "later"]
            (entry,) = await store.quarantine.entries()
            assert (entry.source, entry.name, entry.is_held) == ("jobs", "damaged", True)
            assert entry.reason
            kept = (await store.quarantine.contents(entry.id))["document"]
            assert base64.b64decode(kept["base64"]).decode() == damaged
            with pytest.raises(JobUnreadable, match=rf"clary quarantine show {entry.id}") as told:
                await store.get_job("damaged")
            assert entry.reason in str(told.value)
            with pytest.raises(JobUnreadable):
                await store.update_job("damaged", count_up)
            with pytest.raises(JobExists):
                await store.create_job(make_job("damaged"), {})
            page = await store.list_jobs(JobQuery())
            assert [summary.name for summary in page.summaries] == ["before", "later"]
            cards = await store.cards.page(CardQuery(), now=datetime.now(UTC))
            assert sorted(card.name for card in cards.cards) == ["before", "later"]
            assert [job.name for job in await store.jobs_with(limit=10)] == ["before", "later"]
            assert await store.quarantine.num_held() == 1
        finally:
            await store.close()

    async def test_a_row_that_was_repaired_meanwhile_is_not_quarantined(self, database_url: str) -> None:
        store = await Store.open(database_url)
        try:
            await store.create_job(make_job("damaged"), {})
            await store.quarantine.hold([DamagedRow(table="jobs", key={"name": "damaged"}, name="damaged", reason="x")])
            assert (await store.get_job("damaged")) is not None
            assert await store.quarantine.entries() == []
        finally:
            await store.close()

    async def test_an_unreadable_terminal_job_is_quarantined_when_it_is_read(self, database_url: str) -> None:
        store = await Store.open(database_url)
        try:
            await store.create_job(completed(make_job("damaged")), {})
            damage(database_url, "{")
            with pytest.raises(JobUnreadable):
                await store.get_job("damaged")
            with pytest.raises(JobUnreadable):  # a second read adds no second entry
                await store.get_job("damaged")
            assert len(await store.quarantine.entries()) == 1
        finally:
            await store.close()

    async def test_an_update_from_memory_repairs_the_damaged_row(self, database_url: str) -> None:
        store = await Store.open(database_url)
        try:
            job = make_job("damaged")
            await store.create_job(job, {})
            damage(database_url, "{")
            changed = await store.update_job("damaged", count_up, known=job)
            assert changed == replace(job, attempt=1) == await store.get_job("damaged")
            (entry,) = await store.quarantine.entries()
            assert not entry.is_held
            kept = (await store.quarantine.contents(entry.id))["document"]
            assert base64.b64decode(kept["base64"]) == b"{"
        finally:
            await store.close()

    async def test_only_a_repaired_job_is_released_from_quarantine(self, database_url: str) -> None:
        store = await Store.open(database_url)
        try:
            job = make_job("damaged")
            await store.create_job(job, {"kept": "yes"})
            damage(database_url, "{")
            assert await store.unfinished_jobs() == []
            (entry,) = await store.quarantine.entries()
            with pytest.raises(StoreError, match="can still not be read"):
                await store.quarantine.release(entry.id)
            damage(database_url, row_of(job)["document"])
            assert await store.quarantine.release(entry.id) == job == await store.get_job("damaged")
            assert await store.unfinished_jobs() == [job]
            assert await store.get_tags(job.arn) == {"kept": "yes"}
            cards = await store.cards.page(CardQuery(), now=datetime.now(UTC))
            assert [card.name for card in cards.cards] == ["damaged"]
            assert await store.quarantine.entries() == []
            with pytest.raises(NoSuchEntry):
                await store.quarantine.release(entry.id)
        finally:
            await store.close()

    async def test_the_name_of_a_dropped_job_can_be_used_again(self, database_url: str) -> None:
        store = await Store.open(database_url)
        try:
            await store.create_job(make_job("damaged"), {})
            damage(database_url, "{")
            assert await store.unfinished_jobs() == []
            (entry,) = await store.quarantine.entries()
            assert await store.quarantine.drop(entry.id) == entry
            assert await store.get_job("damaged") is None
            await store.create_job(make_job("damaged"), {})
        finally:
            await store.close()

    async def test_damage_in_other_tables_affects_only_the_damaged_row(self, database_url: str) -> None:
        store = await Store.open(database_url)
        try:
            await store.create_job(make_job("one"), {})
            await store.create_job(make_job("two"), {})
            for name in ("good", "bad"):
                at = make_job(name).created_at
                await store.experiments.create(
                    Tracked(kind=Kind.EXPERIMENT, name=name, arn=f"arn:{name}", created_at=at, modified_at=at), {}
                )
            progress = TrainingProgress(done=1, total=None, unit="steps", source="log", at_ms=1)
            for host in ("algo-1", "algo-2"):
                await store.training.append("one", 1, host, first=0, findings=[], progress=progress)
            execute(database_url, "UPDATE tracked SET document = '{' WHERE name_key = 'bad'")
            execute(database_url, "UPDATE training_ends SET progress = '[]' WHERE host = 'algo-2'")
            execute(database_url, "UPDATE job_cards SET metrics = '{' WHERE name = 'two'")

            assert (await store.experiments.get(Kind.EXPERIMENT, "good")) is not None
            assert (await store.experiments.get(Kind.EXPERIMENT, "bad")) is None
            assert [item.host for item in await store.training.progress_of("one", 1)] == ["algo-1"]
            cards = await store.cards.page(CardQuery(), now=datetime.now(UTC))
            assert sorted(card.name for card in cards.cards) == ["one", "two"]  # rebuilt from its job
            entries = await store.quarantine.entries()
            assert sorted(entry.source for entry in entries) == ["tracked", "training_ends"]
            for entry in entries:  # restored unchanged, and quarantined again
                await store.quarantine.release(entry.id)
            assert (await store.experiments.get(Kind.EXPERIMENT, "bad")) is None
            assert [entry.source for entry in await store.quarantine.entries()] == ["tracked"]
        finally:
            await store.close()
