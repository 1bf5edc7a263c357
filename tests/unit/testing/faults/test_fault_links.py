"""Damage to connections of another process, observed at both ends."""

import os
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from clary.testing.faults import fault_links

ECHO = """
import socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=30)
while data := peer.recv(100):
    peer.sendall(data)
print("ended")
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: borrows sockets of another process")


@contextmanager
def echo():
    """Yield this end of a connection, the process at the other end, and a filter that matches its socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        port = server.getsockname()[1]
        with subprocess.Popen([sys.executable, "-S", "-c", ECHO, str(port)], stdout=subprocess.PIPE) as process:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(30)
                connection.sendall(b"hello")
                assert connection.recv(100) == b"hello"
                yield connection, process, fault_links.leads_to_port(port)
            process.wait(30)


def test_a_cut_connection_ends_on_both_sides():
    with echo() as (connection, process, wanted):
        with fault_links.connections_of(process.pid, wanted) as borrowed:
            assert len(borrowed) == 1
            fault_links.cut(borrowed[0])
        assert connection.recv(100) == b""
        assert process.stdout.read() == b"ended\n"


def test_forged_bytes_arrive_and_the_connection_stays_open():
    with echo() as (connection, process, wanted):
        with fault_links.connections_of(process.pid, wanted) as borrowed:
            fault_links.garble(borrowed[0], b"noise")
        assert connection.recv(100) == b"noise"
        connection.sendall(b"more")
        assert connection.recv(100) == b"more"


def test_only_connections_that_match_the_filter_are_used():
    nobody = fault_links.leads_to_port(1)
    with echo() as (_, process, _), fault_links.connections_of(process.pid, nobody) as borrowed:
        assert borrowed == []


def test_an_ended_process_has_no_connections():
    with subprocess.Popen([sys.executable, "-S", "-c", "pass"]) as process:
        process.wait(30)
    with fault_links.connections_of(process.pid, lambda item: True) as borrowed:
        assert borrowed == []
