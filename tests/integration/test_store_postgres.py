"""The store's contract on a real PostgreSQL server, started for these tests alone."""

import getpass
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from clary.contract.errors import StoreError

# The contract lies beside the unit tests of the store, which run it against SQLite.
_CONTRACT_FOLDER = Path(__file__).parents[1] / "unit" / "control" / "store"
sys.path.insert(0, str(_CONTRACT_FOLDER))
pytest.register_assert_rewrite("store_contract", "crash_nursery")

from store_contract import StoreContract, count_up, make_job  # noqa: E402

from clary.control.store.store import Store  # noqa: E402

_PROGRAMS = Path("/usr/lib/postgresql/15/bin")  # Debian's postgresql-15
_START_TIMEOUT_S = 60


class PostgresServer:
    """A server of its own in a temporary folder, without any durability: it is thrown away."""

    def __init__(self) -> None:
        if os.geteuid() == 0 and not (_PROGRAMS / "initdb").exists():
            pytest.fail(f"PostgreSQL is missing: expected {_PROGRAMS}/initdb; apt-get install postgresql-15")
        if not (_PROGRAMS / "initdb").exists():
            pytest.skip(f"no PostgreSQL in {_PROGRAMS}, and only root may install it; these tests run in CI as root")
        self._user = "postgres" if os.geteuid() == 0 else getpass.getuser()
        # pytest's own temporary folders are closed to other users; the server refuses to run as root.
        self.folder = Path(tempfile.mkdtemp(prefix="clary-postgres-"))
        self.data = self.folder / "data"
        if os.geteuid() == 0:
            shutil.chown(self.folder, self._user)
        self._run("initdb", "-D", str(self.data), "--auth=trust", "--username=clary", "--no-sync", "--encoding=UTF8")
        # The server takes no port: clients find its socket by its folder, so two of them cannot meet.
        with (self.data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"listen_addresses = ''\nunix_socket_directories = '{self.folder}'\nfsync = off\n")
        self.start()

    def start(self) -> None:
        log = str(self.folder / "server.log")
        self._run("pg_ctl", "-D", str(self.data), "-l", log, "-w", "-t", str(_START_TIMEOUT_S), "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self.data), "-m", "immediate", "-w", "stop")

    def remove(self) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self.folder)

    def url(self, database: str) -> str:
        return f"postgresql://clary@/{database}?host={self.folder}"

    def create_database(self) -> str:
        name = f"t{uuid.uuid4().hex}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return name

    def drop_database(self, name: str) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def _run(self, program: str, *arguments: str) -> None:
        # A server inherits the pipes of what started it, so nothing is captured: output goes to a file.
        with tempfile.TemporaryFile() as output:
            user = self._user if os.geteuid() == 0 else None
            result = subprocess.run(
                [str(_PROGRAMS / program), *arguments],
                user=user,
                group=user,
                extra_groups=[] if user else None,
                cwd=self.folder,
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=2 * _START_TIMEOUT_S,
                check=False,
            )
            output.seek(0)
            assert result.returncode == 0, f"{program}: {output.read().decode(errors='replace')}"


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


class TestStoreOnPostgres(StoreContract):
    """The contract against a server."""


async def test_the_url_may_name_the_driver(database_url: str) -> None:
    store = await Store.open(database_url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        await store.create_job(make_job("j"), {})
        assert await store.get_job("j") == make_job("j")
    finally:
        await store.close()


async def test_the_store_goes_on_after_the_server_was_restarted(server: PostgresServer, database_url: str) -> None:
    store = await Store.open(database_url)
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


async def test_a_server_that_cannot_be_reached_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot open the database.*nothing-here"):
        await Store.open(f"postgresql://clary@/x?host={tmp_path}/nothing-here")
