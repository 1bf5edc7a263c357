"""The contract of every store, checked on a PostgreSQL server that is started for these tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from curve_contract import CurveContract
from damage_contract import DamageContract
from postgres_server import PostgresServer
from store_contract import StoreContract, count_up, make_job

from clary.base.errors import StoreError
from clary.control.store.database_life import DatabaseLife
from clary.control.store.store import Store


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture
def database_url(server: PostgresServer) -> Iterator[str]:
    name = server.create_database()
    yield server.url(name)
    server.drop_database(name)


class TestStoreOnPostgres(CurveContract, DamageContract, StoreContract):
    """The tests of every store, on a PostgreSQL server."""


async def test_an_empty_database_in_place_of_the_state_folders_database_is_refused(
    database_url: str, server: PostgresServer, tmp_path: Path
) -> None:
    def life(**options: bool) -> DatabaseLife:
        return DatabaseLife(tmp_path, **options)

    await (await Store.open(database_url, life=life())).close()
    await (await Store.open(database_url, life=life())).close()
    other = server.create_database()
    try:
        with pytest.raises(StoreError, match=r"none of Clary's tables.*clary up --new-database"):
            await Store.open(server.url(other), life=life())
        await (await Store.open(server.url(other), life=life(begins_anew=True))).close()
        with pytest.raises(StoreError, match="is not the one that"):
            await Store.open(database_url, life=life())
    finally:
        server.drop_database(other)


async def test_the_url_may_name_the_driver(database_url: str) -> None:
    store = await Store.open(database_url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        await store.create_job(make_job("j"), {})
        assert await store.get_job("j") == make_job("j")
    finally:
        await store.close()


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """Start a server of its own for a test that stops it: other tests would meet a shared server after the restart."""
    server = PostgresServer()
    try:
        yield server
    finally:
        server.remove()


async def test_the_store_works_again_after_a_restart_of_the_server(own_server: PostgresServer) -> None:
    server = own_server
    store = await Store.open(server.url(server.create_database()))
    try:
        await store.create_job(make_job("j"), {})
        server.stop()
        try:
            for act in (store.update_job("j", count_up), store.get_job("j")):
                with pytest.raises(StoreError) as failure:
                    await act
                assert failure.value.retryable
        finally:
            server.start()
        assert (await store.update_job("j", count_up)).attempt == 1
        assert await store.get_job("j") is not None
    finally:
        await store.close()


async def test_an_unreachable_server_raises_a_store_error_with_its_address(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot open the database.*nothing-here"):
        await Store.open(f"postgresql://clary@/x?host={tmp_path}/nothing-here")
