"""Unauthenticated connections while a group is formed: garbage, silence, floods, other users."""

import contextlib
import errno
import os
import socket
import struct
import threading
import time
from dataclasses import replace

import pytest
from collective_groups import FAST, MemoryStore, open_descriptors, run_ranks

from clary.train._native.errors import BootstrapError
from clary.train.collective.bootstrap import group, handshake, meeting
from clary.train.collective.bootstrap.group import connect_group
from clary.train.collective.bootstrap.records import RankRecord, decode, encode


def form(enemy, settings=FAST, *, comes_late=True):
    """Let rank 0 wait for rank 1, and attack it meanwhile with `enemy(record of rank 0)`.

    Rank 0 sees a record of rank 1 at once; rank 1 itself starts after the attack, or not at all.
    Returns: outcomes of rank 0, of the attack, and of rank 1 (or None).
    """
    store = MemoryStore()
    attacked = []

    def act(rank):
        if rank == 1:
            record = decode(RankRecord, store.get("g/0", 10), key="g/0")
            store.set("g/1", encode(replace(record, rank=1)))
            attacked.append(enemy(record))
            if not comes_late:
                return None
        return connect_group(store, rank=rank, size=2, group_name="g", settings=settings)

    first, second = run_ranks(2, act)
    if not attacked:
        raise second
    return first, attacked[0], second


def close(outcome):
    for descriptor in (outcome.segment_fd, *outcome.lane_fds, *outcome.side_fds):
        if descriptor >= 0:
            os.close(descriptor)


def tcp(record):
    sock = socket.create_connection((record.address, record.port), timeout=5)
    sock.settimeout(10)
    return sock


def unix(record):
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(10)
    sock.connect(f"\0{record.unix_name}")
    return sock


def is_hung_up_on(sock):
    try:
        return sock.recv(100) == b""
    except ConnectionResetError:
        return True


def answers_of(sock):
    answers = b""
    with contextlib.suppress(ConnectionResetError):
        while more := sock.recv(100):
            answers += more
    return answers


@pytest.mark.parametrize("door", [tcp, unix])
@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 100,
        b"\x00" * 10_000,
        handshake.MAGIC + b"\xff" * 41,
        handshake.MAGIC + struct.pack("<BII32s", handshake.Role.SIDE, 0, 0, bytes(32)),
        handshake.MAGIC + struct.pack("<BII32s", handshake.Role.STORE, 1, 0, bytes(32)),
        handshake.MAGIC + struct.pack("<BII32s", handshake.Role.SIDE, 1, 0, bytes(32)) + bytes(32),
    ],
)
def test_a_connection_that_sends_garbage_is_closed_and_the_group_is_formed(door, bytes_sent):
    before = open_descriptors()

    def enemy(record):
        with door(record) as sock:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(bytes_sent)
            return answers_of(sock)

    first, answers, second = form(enemy)
    assert answers[32:] in (b"", bytes(33))  # at most a nonce and a refusal, never a proof
    close(first)
    close(second)
    assert open_descriptors().keys() == before.keys()


def test_silent_connections_do_not_delay_the_group():
    silent = []
    start_s = time.monotonic()
    first, _, second = form(lambda record: silent.extend(door(record) for door in (tcp, unix, tcp)))
    assert time.monotonic() - start_s < 5
    close(first)
    close(second)
    assert all(is_hung_up_on(sock) for sock in silent)
    for sock in silent:
        sock.close()


def test_a_slow_greeting_ends_at_its_own_limit_and_is_counted(monkeypatch):
    monkeypatch.setattr(meeting, "GUEST_LIMIT_S", 0.3)

    def enemy(record):
        with tcp(record) as sock:
            sock.sendall(handshake.MAGIC)
            start_s = time.monotonic()
            assert is_hung_up_on(sock)
            return time.monotonic() - start_s

    outcome, waited_s, _ = form(enemy, replace(FAST, connect_timeout_s=4.0), comes_late=False)
    assert 0.2 < waited_s < 3.9, "before the limit of the connection itself"
    assert isinstance(outcome, BootstrapError)
    assert "did not connect to this rank: rank 1" in str(outcome)
    assert "Refused meanwhile: 1 x 127.0.0.1 (no complete greeting)" in str(outcome)


def test_a_flood_of_connections_evicts_the_oldest_and_the_group_is_formed(monkeypatch):
    monkeypatch.setattr(meeting, "_GUESTS_OVER", 8)
    flood = []

    def enemy(record):
        flood.extend(tcp(record) for _ in range(100))
        return is_hung_up_on(flood[0])

    first, was_hung_up_on, second = form(enemy)
    assert was_hung_up_on
    close(first)
    close(second)
    for sock in flood:
        sock.close()


class Exhausted(socket.socket):
    """A listener whose process has no descriptor left after the first connection: the next accept fails once."""

    accepted = failed = 0

    def accept(self):
        if type(self).accepted == 1 and type(self).failed < 1:
            type(self).failed += 1
            raise OSError(errno.EMFILE, "Too many open files")
        sock, place = super().accept()
        type(self).accepted += 1
        return sock, place


def test_without_free_descriptors_the_oldest_connection_is_evicted(monkeypatch):
    real = group.open_listeners

    def open_listeners(address, size, **_):
        found = real(address, size)
        if Exhausted.accepted == 0:
            found = replace(found, tcp=Exhausted(fileno=found.tcp.detach()))
            found.tcp.setblocking(False)
        return found

    monkeypatch.setattr(group, "open_listeners", open_listeners)

    def enemy(record):
        with tcp(record) as first, tcp(record):
            return is_hung_up_on(first)

    first, was_hung_up_on, second = form(enemy)
    assert was_hung_up_on
    assert Exhausted.failed
    close(first)
    close(second)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_process_of_another_user_is_refused_on_the_unix_socket():
    def enemy(record):
        child = os.fork()
        if child == 0:
            try:
                os.setuid(12345)
                with unix(record) as sock:
                    sock.sendall(handshake.MAGIC)
                    os._exit(0 if is_hung_up_on(sock) else 1)
            except BrokenPipeError:
                os._exit(0)
            except BaseException:  # noqa: BLE001 - a fork must not go on as the test
                os._exit(2)
        return os.waitpid(child, 0)[1]

    first, status, second = form(enemy)
    assert status == 0
    close(first)
    close(second)


def test_another_program_at_a_ranks_address_is_reported():
    """The record of a rank points to a listener that sends nonsense."""
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        port = impostor.getsockname()[1]

        def answer():
            sock, _ = impostor.accept()
            with sock:
                sock.recv(100)
                sock.sendall(bytes(32))
                sock.recv(100)
                sock.sendall(b"\x01" + bytes(32))

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        store = Forging(port)
        settings = [replace(FAST, host=f"h{rank}", connect_timeout_s=3.0) for rank in range(2)]
        outcomes = run_ranks(
            2, lambda rank: connect_group(store, rank=rank, size=2, group_name="g", settings=settings[rank])
        )
        thread.join(5)
    assert "the process that answers there is not rank 0 of group 'g'" in str(outcomes[1])
    assert "has another process taken that address?" in str(outcomes[1])


class Forging(MemoryStore):
    """A store that replaces the port in rank 0's record."""

    def __init__(self, port):
        super().__init__()
        self._port = port

    def set(self, key, value):
        if key == "g/0":
            record = decode(RankRecord, value, key=key)
            value = value.replace(f'"port": {record.port}'.encode(), f'"port": {self._port}'.encode())
        super().set(key, value)


def test_an_address_that_cannot_be_reached_is_named_with_the_reason(monkeypatch):
    def dial(record, *, is_local, **_):
        raise OSError(errno.EHOSTUNREACH, "No route to host")

    monkeypatch.setattr(meeting, "dial", dial)
    store = MemoryStore()
    settings = replace(FAST, connect_timeout_s=0.5)
    outcomes = run_ranks(2, lambda rank: connect_group(store, rank=rank, size=2, group_name="g", settings=settings))
    assert "did not answer: rank 0" in str(outcomes[1])
    assert "last No route to host" in str(outcomes[1])
