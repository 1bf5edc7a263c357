"""Ports of peers, tried concurrently: an accepted and a refused connection count as answers, silence does not."""

import socket
import time

import pytest

from clary.agent.health import interfaces, port_check
from clary.agent.health.port_check import unanswered_ports


@pytest.fixture
def through_loopback(monkeypatch):
    """Make sockets from 127.0.0.1, without CAP_NET_RAW."""

    def stream_through(_interface, address):
        stream = socket.socket()
        stream.setblocking(False)
        stream.bind((address, 0))
        return stream

    monkeypatch.setattr(interfaces, "stream_through", stream_through)
    monkeypatch.setattr(port_check, "_WAIT_S", 0.5)


def ask(peers, ports):
    return unanswered_ports(peers, ports, interface="lo", address="127.0.0.1", round_trip_s=0.0)


def full_listener():
    """Return a socket with a full backlog: the kernel drops new connections."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(0)
    waiting = []
    for _ in range(4):
        waiting.append(socket.socket())
        waiting[-1].setblocking(False)
        waiting[-1].connect_ex(listening.getsockname())
        time.sleep(0.05)
    return listening, waiting


def test_a_port_that_listens_and_one_that_refuses_have_answered_and_one_that_drops_has_not(through_loopback):
    full, waiting = full_listener()
    with socket.socket() as listening, socket.socket() as bound, full:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        bound.bind(("127.0.0.1", 0))
        answering = [listening.getsockname()[1], bound.getsockname()[1]]
        peers = {"algo-2": "127.0.0.1"}
        assert ask(peers, answering) == {}
        silent = full.getsockname()[1]
        assert ask(peers, [*answering, silent]) == {"algo-2": [silent]}
        for stream in waiting:
            stream.close()


def test_without_sockets_no_port_counts_as_answered_and_nothing_is_waited_for(monkeypatch):
    def fails(_interface, _address):
        raise OSError("no such interface")

    monkeypatch.setattr(interfaces, "stream_through", fails)
    monkeypatch.setattr(port_check, "_WAIT_S", 1000.0)
    assert ask({"algo-2": "127.0.0.1"}, [7777, 7778]) == {"algo-2": [7777, 7778]}
