"""A PostgreSQL server for tests, without durability, removed after use."""

import getpass
import os
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

import psycopg
import pytest

_PROGRAMS = Path("/usr/lib/postgresql/15/bin")  # Debian's postgresql-15
_START_TIMEOUT_S = 60


class PostgresServer:
    """A server in a temporary folder, without durability, removed after use."""

    def __init__(self) -> None:
        if os.geteuid() == 0 and not (_PROGRAMS / "initdb").exists():
            pytest.fail(f"PostgreSQL is missing: expected {_PROGRAMS}/initdb; apt-get install postgresql-15")
        if not (_PROGRAMS / "initdb").exists():
            pytest.skip(f"no PostgreSQL in {_PROGRAMS}, and only root may install it; these tests run in CI as root")
        self._user = "postgres" if os.geteuid() == 0 else getpass.getuser()
        # The server refuses to run as root, and other users cannot read pytest's temporary folders.
        self.folder = Path(tempfile.mkdtemp(prefix="clary-postgres-"))
        self.data = self.folder / "data"
        if os.geteuid() == 0:
            shutil.chown(self.folder, self._user)
        self._run("initdb", "-D", str(self.data), "--auth=trust", "--username=clary", "--no-sync", "--encoding=UTF8")
        # The server listens on no port: clients find its Unix socket by its folder, so two servers cannot collide.
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
        # The server inherits the pipes of its starter, so its output goes to a file instead of a captured pipe.
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
