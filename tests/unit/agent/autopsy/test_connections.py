"""Connections are read from /proc as the kernel prints them."""

import os
import socket
import threading

import pytest

from clary.agent.autopsy import connections
from clary.agent.autopsy.connections import addresses_in, parse_connections, read_connections, sockets_of

LINES = [
    "   0: 0100007F:1E61 0200000A:C350 01 00000010:00000020 01:00000014 00000003  1000        0 4242 2 0 20 4 30 10 -1",
    "   1: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000"
    " 00000000     0        0 17 1 0 100 0 0 10 0",
    "   2: 0000000000000000FFFF00000100007F:0050 0000000000000000FFFF00000100007F:0051 08 00000000:00000001 00:00000000"
    " 00000000     0        0 18 1 0 20 4 30 10 -1",
]


def test_addresses_queues_and_retransmissions_are_read():
    found = parse_connections(LINES)
    first = found[4242]
    assert (first.local, first.peer, first.state) == ("127.0.0.1:7777", "10.0.0.2:50000", "ESTABLISHED")
    assert (first.unsent_bytes, first.unread_bytes, first.num_retransmits) == (16, 32, 3)
    assert (found[17].local, found[17].state) == ("[::1]:22", "LISTEN")
    assert (found[18].local, found[18].state) == ("127.0.0.1:80", "CLOSE_WAIT"), "IPv4 in an IPv6 socket"


@pytest.mark.parametrize("line", ["", "0: x", "0: zz:1 00:2 01 0:0 0:0 0 0 0 5", "a b c d e f g h i j"])
def test_other_lines_are_refused(line):
    with pytest.raises(ValueError, match=r"."):
        parse_connections([line])


def test_the_receive_queue_shows_bytes_that_a_process_has_not_read():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            client.sendall(b"x" * 1000)
            accepted.recv(1)  # by now it has arrived
            own = sockets_of(os.getpid(), read_connections(os.getpid()))
            port = client.getsockname()[1]
            (ours,) = [item for item in own if item.peer.endswith(f":{port}") and item.state == "ESTABLISHED"]
            assert ours.unread_bytes == 999


def test_a_process_that_has_ended_has_none():
    assert sockets_of(2**22 + 1, {}) == ()
    assert read_connections(2**22 + 1) == {}


def test_a_networks_own_addresses_are_those_of_its_sockets():
    assert addresses_in(parse_connections(LINES).values()) == set()
    line = LINES[0].replace("0100007F", "0100000A")
    assert addresses_in(parse_connections([line]).values()) == {"10.0.0.1"}


def test_descriptors_that_close_meanwhile_hide_no_others():
    with socket.create_server(("127.0.0.1", 0)) as server:
        is_over = threading.Event()

        def open_and_close():
            while not is_over.is_set():
                os.close(os.open("/dev/null", os.O_RDONLY))

        busy = threading.Thread(target=open_and_close)
        busy.start()
        try:
            place = f"127.0.0.1:{server.getsockname()[1]}"
            for _ in range(30):
                own = sockets_of(os.getpid(), read_connections(os.getpid()))
                assert place in [item.local for item in own]
        finally:
            is_over.set()
            busy.join()


def test_no_more_than_so_many_sockets_of_a_namespace_are_kept(monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    assert set(parse_connections(LINES)) == {4242, 17}
