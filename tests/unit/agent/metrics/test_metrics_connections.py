"""Round-trip times of a process's connections, as the kernel reports them."""

import contextlib
import os
import socket
import struct
import subprocess
import sys
import textwrap

import pytest

from clary.agent.metrics.connection_source import INTERVAL_S, ConnectionSource, connection_of

TALKER = """
    import socket, sys
    listening = socket.create_server(("127.0.0.1", 0))
    here = socket.create_connection(listening.getsockname(), source_address=("127.0.0.2", 0))
    there, _ = listening.accept()
    print("ready", flush=True)
    for line in sys.stdin:
        here.sendall(b"a")
        there.recv(1)
        there.sendall(b"b")
        here.recv(1)
        print("told", flush=True)
"""


@pytest.fixture
def talker():
    """Start a process with a connection between two addresses, which sends data for each line that it is given."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(TALKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def talk(process):
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "told\n"


def may_borrow():
    """Whether this process may copy descriptors of its child."""
    return os.geteuid() == 0


@pytest.mark.skipif(not may_borrow(), reason="borrowing sockets of other processes wants root, or a kernel that trusts")
def test_the_round_trip_of_a_connection_is_read_without_affecting_it(talker):
    source = ConnectionSource(os.getpid())
    talk(talker)
    values = source.read(0.0)
    assert 0 < values["host/network_rtt_ms"] < 10_000
    assert "host/network_resent_percent" not in values, "nothing to compare with yet"
    assert source.read(INTERVAL_S / 2) == values, "looked at every few seconds only"
    talk(talker)
    assert source.read(2 * INTERVAL_S)["host/network_resent_percent"] >= 0.0


def test_connections_within_one_address_are_not_measured():
    source = ConnectionSource(os.getpid())
    code = "import socket,sys; l=socket.create_server(('127.0.0.1',0)); c=socket.create_connection(l.getsockname());"
    code += " c.sendall(b'a'); print('ready', flush=True); sys.stdin.read()"
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(process.kill)
        assert process.stdout.readline() == "ready\n"
        assert source.read(0.0) == {}


def test_a_process_that_is_gone_has_no_connections():
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert ConnectionSource(done.pid).read(0.0) == {}


def info(idle_ms=10, rtt_us=1500, resent=3, sent=70):
    fields = {44: idle_ms, 68: rtt_us, 100: resent, 136: sent}
    return b"".join(struct.pack("I", fields.get(at, 0)) for at in range(0, 140, 4))


def test_a_round_trip_is_reported_only_while_the_connection_is_used():
    assert connection_of(7, info()) == (7, 1.5, 3, 70)
    assert connection_of(7, info(idle_ms=60_000)).rtt_ms is None
    assert connection_of(7, info(rtt_us=0)).rtt_ms is None


def test_a_shorter_structure_from_the_kernel_is_refused():
    with pytest.raises(ValueError, match="expected a tcp_info of 140 bytes and more, got 60"):
        connection_of(7, info()[:60])


def test_offsets_in_the_structure_match_the_kernels_headers():
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()) as here:
        taken, _ = listening.accept()
        with taken:
            here.sendall(b"x")
            assert taken.recv(1) == b"x"
            taken.sendall(b"y")
            assert here.recv(1) == b"y"
            found = connection_of(1, here.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256))
    assert found.rtt_ms is not None
    assert 0 < found.rtt_ms < 10_000
    assert found.num_resent == 0
    assert 0 < found.num_sent < 100
