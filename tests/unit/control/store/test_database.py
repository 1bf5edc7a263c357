"""Options of connections to PostgreSQL, read from the socket that the driver has really opened."""

import socket
import struct
import threading
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy.exc import DataError, InternalError, OperationalError

from clary.control.store import database

_ENCRYPTION_REQUESTS = (80877103, 80877104)  # SSLRequest and GSSENCRequest of PostgreSQL's protocol, version 3


def _serve(listener: socket.socket) -> None:
    """Accept one client without a password, as PostgreSQL does, and read until it leaves."""
    with listener.accept()[0] as client:
        while True:
            length, code = struct.unpack("!II", client.recv(8, socket.MSG_WAITALL))
            if code not in _ENCRYPTION_REQUESTS:
                break
            client.sendall(b"N")
        client.recv(length - 8, socket.MSG_WAITALL)
        client.sendall(b"R" + struct.pack("!II", 8, 0) + b"Z" + struct.pack("!I", 5) + b"I")
        while client.recv(4096):
            pass


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve, args=(listener,))
        thread.start()
        yield listener.getsockname()[1]
    thread.join(10)


def test_a_postgresql_machine_that_vanishes_is_noticed_within_the_limit_of_a_statement(port: int) -> None:
    options = {"host": "127.0.0.1", "port": port, "user": "clary", "dbname": "x", **database._postgres_arguments()}
    with psycopg.connect(**options) as connection:
        own = socket.socket(fileno=connection.fileno())
        try:
            assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            idle_s, interval_s, count, unacknowledged_ms = (own.getsockopt(socket.IPPROTO_TCP, name) for name in names)
            assert idle_s + interval_s * count <= database.STATEMENT_TIMEOUT_S
            assert unacknowledged_ms == int(database.STATEMENT_TIMEOUT_S * 1000)
        finally:
            own.detach()


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (
            InternalError("INSERT", {}, psycopg.errors.ReadOnlySqlTransaction("cannot execute INSERT")),
            "make the server",
        ),
        (OperationalError("INSERT", {}, psycopg.errors.DiskFull("could not extend file")), "free space on the disk of"),
        (OperationalError("", {}, psycopg.OperationalError("connection failed")), "runs and accepts this connection"),
    ],
)
def test_failures_of_the_server_are_passing_and_say_what_its_administrator_does(failure, words):
    said = database.describe_failure("a write was refused", failure)
    assert said.retryable
    assert f"{failure.orig}; " in said.message
    assert words in said.message


def test_a_value_that_the_driver_refuses_is_not_blamed_on_the_server():
    """The driver's own refusals have no state either, but the server has not seen them."""
    failure = DataError("INSERT", {}, psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"))
    said = database.describe_failure("a write was refused", failure)
    assert not said.retryable
    assert said.message.endswith("NUL (0x00) bytes")
