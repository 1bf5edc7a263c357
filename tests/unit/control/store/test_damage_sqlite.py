"""Damage on SQLite: the contract, and values that only an untyped database file can hold."""

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from damage_contract import DamageContract, execute
from store_contract import START, completed, make_job

from clary.control.jobs.training_job import FinalMetric
from clary.control.store.damage import JobUnreadable
from clary.control.store.job_cards import CardQuery
from clary.control.store.job_queries import JobQuery
from clary.control.store.store import Store


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/clary.db"


class TestDamageOnSqlite(DamageContract):
    """Runs the contract against a database file."""


COLUMNS = {
    "text for a time": "created_at = 'yesterday'",
    "a time beyond the calendar": "created_at = 9000000000000000000",
    "a real number": "modified_at = 1.5",
    "an unknown status": "status = 'Dreaming'",
    "a mark that is none": "is_terminal = 'no'",
    "a large mark": "is_released = 7",
    "bytes for a status": "secondary_status = x'ff00'",
}


@pytest.mark.parametrize("change", COLUMNS.values(), ids=COLUMNS.keys())
async def test_damaged_columns_are_restored_from_the_document_in_their_row(database_url: str, change: str) -> None:
    store = await Store.open(database_url)
    for name in ("damaged", "sound"):
        await store.create_job(make_job(name), {})
    await store.close()
    execute(database_url, f"UPDATE jobs SET {change} WHERE name = 'damaged'")

    store = await Store.open(database_url)
    try:
        assert [job.name for job in await store.unfinished_jobs()] == ["damaged", "sound"]
        assert [summary.name for summary in (await store.list_jobs(JobQuery())).summaries] == ["damaged", "sound"]
        (entry,) = await store.quarantine.entries()
        assert not entry.is_held
        assert change.split(" ")[0] in entry.reason
    finally:
        await store.close()


DOCUMENTS = {
    "bytes": "document = x'ff00fe'",
    "no UTF-8": "document = CAST(CAST('{\"name\": \"' AS BLOB) || x'ff' || CAST('\"}' AS BLOB) AS TEXT)",
    "a number": "document = 17",
    "flipped marks": "is_terminal = 1, is_released = 1",
}


@pytest.mark.parametrize("change", DOCUMENTS.values(), ids=DOCUMENTS.keys())
async def test_documents_of_another_type_are_quarantined(database_url: str, change: str) -> None:
    store = await Store.open(database_url)
    for name in ("damaged", "sound"):
        await store.create_job(make_job(name), {})
    await store.close()
    execute(database_url, f"UPDATE jobs SET {change} WHERE name = 'damaged'")

    store = await Store.open(database_url)
    try:
        assert [job.name for job in await store.unfinished_jobs()] == ["sound"]
        with pytest.raises(JobUnreadable):
            await store.get_job("damaged")
        assert [entry.is_held for entry in await store.quarantine.entries()] == [True]
    finally:
        await store.close()


async def test_wrong_types_in_other_tables_are_found_when_a_query_fails(database_url: str) -> None:
    store = await Store.open(database_url)
    try:
        await store.create_job(completed(make_job("job")), {})
        for step in range(3):
            at = START + timedelta(seconds=step)
            await store.add_metrics("job", [FinalMetric(name="loss", value=step, at=at, step=step)])
        execute(database_url, "UPDATE metrics SET at = 'noon' WHERE step = 1")
        execute(database_url, "UPDATE job_cards SET created_at = x'00'")

        facts = await store.training.metric_facts("job")
        assert [(fact.name, fact.num_values) for fact in facts] == [("loss", 2)]
        cards = await store.cards.page(CardQuery(), now=datetime.now(UTC))
        assert [card.name for card in cards.cards] == ["job"]
        (entry,) = await store.quarantine.entries()
        contents = await store.quarantine.contents(entry.id)
        assert (contents["at"]["type"], base64.b64decode(contents["at"]["base64"])) == ("text", b"noon")
    finally:
        await store.close()


async def test_a_damaged_value_is_set_aside_when_statistics_are_computed(database_url: str) -> None:
    store = await Store.open(database_url)
    try:
        await store.create_job(completed(make_job("job")), {})
        for step in range(2):
            at = START + timedelta(seconds=step)
            await store.add_metrics("job", [FinalMetric(name="loss", value=4.0, at=at, step=step)])
        execute(database_url, "UPDATE metrics SET value = 'abc' WHERE step = 1")
        end = START + timedelta(seconds=9)
        periods = await store.aggregates.by_period("job", "loss", start=START, end=end, period_s=3600)
        assert [(one.least, one.greatest, one.total, one.num_values) for one in periods.values()] == [
            (4.0, 4.0, 4.0, 1)
        ]
        assert len(await store.quarantine.entries()) == 1
    finally:
        await store.close()


async def test_a_damaged_lease_or_key_does_not_prevent_the_start(database_url: str) -> None:
    store = await Store.open(database_url)
    lease = await store.acquire_lease("service", "me", 30)
    assert lease is not None
    await store.close()
    execute(database_url, "UPDATE leases SET token = 'x', expires_at = 'never'")
    execute(database_url, "UPDATE properties SET value = 'no key' WHERE name = 'token_key'")

    store = await Store.open(database_url)
    try:
        taken = await store.acquire_lease("service", "other", 30)
        assert taken is not None
        assert taken.token > lease.token
    finally:
        await store.close()
