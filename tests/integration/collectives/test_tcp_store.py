"""The TCP store: values across ranks, waits, timeouts, and unauthenticated clients."""

import contextlib
import socket
import threading
import time

import pytest
from collective_groups import held_ports, open_descriptors, run_ranks

from clary.train._native.errors import BootstrapError
from clary.train.collective.bootstrap import store_server
from clary.train.collective.bootstrap.handshake import MAGIC
from clary.train.collective.bootstrap.store_server import MAX_KEY_BYTES, MAX_VALUE_BYTES, REQUEST, SET
from clary.train.collective.bootstrap.tcp_store import TcpStore


@pytest.fixture
def port():
    with held_ports() as first:
        yield first


@pytest.fixture
def open_store(port):
    opened = []

    def open_one(rank, **changes):
        arguments = {"secret": "", "timeout_s": 5.0, **changes}
        opened.append(TcpStore("127.0.0.1", port, rank=rank, **arguments))
        return opened[-1]

    yield open_one
    for store in reversed(opened):
        store.close()


def test_a_value_set_by_one_rank_is_read_by_the_others(open_store):
    first, second = open_store(0), open_store(1)
    first.set("a", b"one")
    second.set("b", bytes(MAX_VALUE_BYTES))
    assert second.get("a", 0) == b"one"
    assert first.get("b", 5) == bytes(MAX_VALUE_BYTES)
    first.set("a", b"")
    assert second.get("a", 0) == b""
    second.delete("a")
    second.delete("never set")
    with pytest.raises(TimeoutError, match="'a' was not set within 0 s"):
        first.get("a", 0)


def test_a_get_waits_for_the_key_until_its_timeout(open_store):
    first, second = open_store(0), open_store(1)
    threading.Timer(0.3, first.set, ("late", b"here")).start()
    start_s = time.monotonic()
    assert second.get("late", 20) == b"here"
    assert 0.2 < time.monotonic() - start_s < 10
    start_s = time.monotonic()
    with pytest.raises(TimeoutError):
        second.get("never", 0.3)
    assert 0.2 < time.monotonic() - start_s < 10
    assert second.get("late", 0) == b"here"


def test_ranks_may_connect_before_rank_zero_listens(port):
    def come(rank):
        time.sleep(0.0 if rank else 0.5)
        store = TcpStore("127.0.0.1", port, rank=rank, secret="x", timeout_s=10.0)
        store.set(str(rank), b"came")
        found = [store.get(str(other), 10) for other in range(3)]
        store.set(f"{rank} is done", b"")
        if rank == 0:
            for other in range(3):
                store.get(f"{other} is done", 10)
        store.close()
        return found

    assert run_ranks(3, come) == [[b"came"] * 3] * 3


def test_a_missing_rank_zero_is_named(port):
    with pytest.raises(
        BootstrapError, match=rf"rank 1 cannot reach the store at 127.0.0.1 port {port} after 0"
    ) as lost:
        TcpStore("127.0.0.1", port, rank=1, secret="", timeout_s=0.3)
    assert lost.value.culprit == 0


def test_a_wrong_secret_is_refused_at_once(open_store):
    open_store(0, secret="right")
    start_s = time.monotonic()
    with pytest.raises(BootstrapError, match=r"did not take the proof of rank 1.*CLARY_COLLECTIVE_SECRET") as refusal:
        open_store(1, secret="wrong")
    assert not refusal.value.retryable
    assert time.monotonic() - start_s < 2


def test_another_program_at_the_port_is_reported(port):
    with socket.create_server(("127.0.0.1", port)) as other:

        def answer():
            sock, _ = other.accept()
            with sock:
                sock.recv(100)
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\nServer: something else\r\n\r\n" * 3)
                sock.recv(100)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(BootstrapError, match="is not one that rank 1 can use"):
            TcpStore("127.0.0.1", port, rank=1, secret="", timeout_s=3.0)
        thread.join(5)


def test_a_port_in_use_is_reported_by_rank_zero(port):
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(BootstrapError, match=r"cannot serve the store .*Address already in use.*CLARY_COLLECTIVE_PORT"),
    ):
        TcpStore("127.0.0.1", port, rank=0, secret="", timeout_s=1.0)


def test_the_end_of_rank_zero_ends_the_waits_of_other_ranks(open_store):
    first, second = open_store(0), open_store(1)
    threading.Timer(0.2, first.close).start()
    with pytest.raises(BootstrapError, match=r"is lost: .*It lives in rank 0's process"):
        second.get("never", 10)
    with pytest.raises(BootstrapError, match="closed or lost earlier"):
        second.set("a", b"")


def test_keys_and_values_that_are_too_long_are_bad_arguments(open_store):
    store = open_store(0)
    for key, value in (("k" * (MAX_KEY_BYTES + 1), b""), ("k", bytes(MAX_VALUE_BYTES + 1))):
        with pytest.raises(ValueError, match="takes keys of 1024 bytes and values of 65536 at most"):
            store.set(key, value)
    store.set("still", b"works")


@pytest.mark.parametrize("nonsense", [b"GET / HTTP/1.1\r\n\r\n", MAGIC + b"\xff" * 41, b"\x00" * 5000])
def test_unauthenticated_clients_are_disconnected_and_the_store_stays_usable(open_store, port, nonsense):
    store = open_store(0)
    with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
        stranger.sendall(nonsense)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(100) == b""
    store.set("still", b"works")


def test_silent_unauthenticated_clients_are_disconnected_after_a_limit(open_store, port, monkeypatch):
    monkeypatch.setattr(store_server, "_STRANGER_LIMIT_S", 0.3)
    store = open_store(0)
    with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
        assert stranger.recv(100) == b""
    store.set("still", b"works")


@pytest.mark.parametrize(
    "request_bytes",
    [
        REQUEST.pack(9, 1, 0, 0) + b"k",
        REQUEST.pack(SET, 0, 0, 0),
        REQUEST.pack(SET, MAX_KEY_BYTES + 1, 0, 0),
        REQUEST.pack(SET, 1, MAX_VALUE_BYTES + 1, 0),
    ],
)
def test_a_client_that_exceeds_a_limit_is_disconnected_and_others_are_served(open_store, request_bytes):
    first, second = open_store(0), open_store(1)
    second._sock.sendall(request_bytes)
    second._sock.settimeout(5)
    assert second._sock.recv(100) == b""
    first.set("still", b"works")


def test_a_closed_store_leaves_no_descriptor_open(port):
    before = open_descriptors()
    threads = threading.active_count()
    first = TcpStore("127.0.0.1", port, rank=0, secret="", timeout_s=5)
    second = TcpStore("127.0.0.1", port, rank=1, secret="", timeout_s=5)
    first.set("a", b"")
    second.close()
    first.close()
    first.close()
    assert open_descriptors().keys() == before.keys()
    assert threading.active_count() == threads
