"""Contract of numbered documents for every database of the store; run against SQLite and PostgreSQL.

A test class inherits `DocumentsContract` and provides a `database_url` fixture: a fresh, empty database.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import create_engine, text
from store_contract import make_job

from clary.control.store.database import parse_url
from clary.control.store.documents.numbered_documents import NumberedDocuments
from clary.control.store.errors import JobNotFound
from clary.control.store.store import Store


class DocumentsContract:
    """Tests that need only the URL of an empty database."""

    @pytest.fixture
    async def store(self, database_url: str) -> AsyncIterator[Store]:
        store = await Store.open(database_url)
        for name in ("job", "other"):
            await store.create_job(make_job(name), {})
        yield store
        await store.close()

    @pytest.fixture
    def dumps(self, store: Store) -> NumberedDocuments:
        return store.documents("dumps")

    async def test_documents_are_read_as_they_were_written(self, dumps: NumberedDocuments) -> None:
        value = {"words": "\ud800 \0 \u00fc", "number": 1 << 70, "list": [None, 1.5]}
        await dumps.put("job", 3, {"request": value, "algo-1": 1})
        assert await dumps.read("job", 3) == {"request": value, "algo-1": 1}
        await dumps.put("job", 3, {"algo-1": 2})
        assert await dumps.read_one("job", 3, "algo-1") == 2
        assert await dumps.names("job", 3) == ["algo-1", "request"]
        assert await dumps.read_named("request") == [("job", 3, value)]

    async def test_documents_of_different_numbers_kinds_and_jobs_are_separate(
        self, store: Store, dumps: NumberedDocuments
    ) -> None:
        await dumps.put("job", 3, {"request": 1})
        for documents, name, number in (
            (store.documents("profiles"), "job", 3),
            (dumps, "other", 3),
            (dumps, "job", 4),
            (dumps, "job", -1),
            (dumps, "job", 10**30),
        ):
            assert await documents.read(name, number) == {}
            assert await documents.read_one(name, number, "request") is None
        assert await store.documents("profiles").read_named("request") == []
        await dumps.put("job", 4, {"request": 2})
        assert await dumps.numbers("job") == [4, 3]
        await dumps.remove("job", 3)
        assert await dumps.numbers("job") == [4]
        await dumps.remove("job")
        assert await dumps.numbers("job") == []

    async def test_the_newest_numbers_and_the_number_being_written_are_kept(self, dumps: NumberedDocuments) -> None:
        for number in (5, 6, 7, 8):
            await dumps.put("job", number, {"request": number, "algo-1": number}, keep=3)
            await dumps.put("other", number, {"request": number})
        assert await dumps.numbers("job") == [8, 7, 6]
        await dumps.put("job", 1, {"request": 1}, keep=3)
        assert await dumps.numbers("job") == [8, 7, 6, 1]
        assert await dumps.numbers("other") == [8, 7, 6, 5]

    async def test_documents_are_deleted_with_their_job_and_refused_without_it(
        self, store: Store, dumps: NumberedDocuments
    ) -> None:
        for number in range(100):
            await dumps.put("job", number, {"request": number})
        await store.delete_job("job")
        with pytest.raises(JobNotFound):
            await dumps.put("job", 101, {"request": 1})
        await store.create_job(make_job("job"), {})
        assert await dumps.numbers("job") == []

    async def test_documents_that_hosts_write_at_once_are_all_kept(self, dumps: NumberedDocuments) -> None:
        hosts = [f"algo-{number}" for number in range(1, 51)]
        await asyncio.gather(*(dumps.put("job", 3, {host: host}) for host in hosts))
        assert await dumps.names("job", 3) == sorted(hosts)

    async def test_a_call_writes_all_its_documents_or_none(self, dumps: NumberedDocuments) -> None:
        with pytest.raises(TypeError):
            await dumps.put("job", 3, {"algo-1": 1, "algo-2": object()})
        assert await dumps.read("job", 3) == {}

    async def test_a_damaged_row_is_quarantined_and_the_other_rows_are_read(
        self, store: Store, dumps: NumberedDocuments, database_url: str
    ) -> None:
        await dumps.put("job", 3, {"algo-1": 1, "algo-2": 2})
        engine = create_engine(parse_url(database_url))
        with engine.begin() as connection:
            connection.execute(text("UPDATE numbered_documents SET document = '{' WHERE name = 'algo-1'"))
        engine.dispose()
        assert await dumps.read("job", 3) == {"algo-2": 2}
        assert [entry.source for entry in await store.quarantine.entries()] == ["numbered_documents"]

    async def test_another_service_on_the_same_database_sees_them(
        self, dumps: NumberedDocuments, database_url: str
    ) -> None:
        await dumps.put("job", 3, {"request": 1})
        second = await Store.open(database_url)
        assert await second.documents("dumps").read("job", 3) == {"request": 1}
        await second.close()
