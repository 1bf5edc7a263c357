"""TCP tables as the kernel writes them, with connections that the test makes."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from clary.agent.rendezvous.connection_table import change_mark, read_connections, socket_holders


@pytest.fixture
def sockets():
    with ExitStack() as stack:
        yield stack


def pair(stack, *, listens_to="127.0.0.1", host="127.0.0.1"):
    """Return a client socket and the accepted one, both open."""
    is_both = listens_to == ""
    if is_both and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    family = socket.AF_INET6 if is_both else socket.AF_INET
    server = stack.enter_context(socket.create_server((listens_to, 0), family=family, dualstack_ipv6=is_both))
    client = stack.enter_context(socket.create_connection((host, server.getsockname()[1])))
    accepted = stack.enter_context(server.accept()[0])
    return client, accepted


def inode_of(sock):
    return os.fstat(sock.fileno()).st_ino


def test_both_ends_of_a_connection_are_in_the_table_with_their_inodes(sockets):
    client, accepted = pair(sockets)
    port = accepted.getsockname()[1]
    found = {item.inode: item for item in read_connections(os.getpid(), {port})}
    assert set(found) == {inode_of(client), inode_of(accepted)}, "the socket that listens is no connection"
    outgoing = found[inode_of(client)]
    assert (outgoing.local, outgoing.remote) == (client.getsockname(), client.getpeername())
    assert outgoing.is_established
    assert found[inode_of(accepted)].local == ("127.0.0.1", port)


def test_an_ipv4_client_of_a_socket_for_both_families_has_its_ipv4_address(sockets):
    client, accepted = pair(sockets, listens_to="")
    port = accepted.getsockname()[1]
    remotes = {item.remote for item in read_connections(os.getpid(), {port})}
    assert remotes == {("127.0.0.1", port), client.getsockname()}


def test_an_ipv6_address_is_read_in_the_right_order(sockets):
    _, accepted = pair(sockets, listens_to="", host="::1")
    port = accepted.getsockname()[1]
    assert ("::1", port) in {item.remote for item in read_connections(os.getpid(), {port})}


def test_an_ended_connection_is_listed_and_marked_as_not_established(sockets):
    client, accepted = pair(sockets)
    address, port = client.getsockname(), accepted.getsockname()[1]
    client.close()
    (ended,) = (item for item in read_connections(os.getpid(), {port}) if item.local == address)
    assert not ended.is_established


def test_the_mark_changes_with_a_connection_and_not_with_one_that_was_refused(sockets):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = closed.getsockname()  # bound, and without a listener
        for _ in range(20):  # other programs on this machine connect meanwhile
            before = change_mark(os.getpid())
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(nobody)
            if change_mark(os.getpid()) == before:
                break
        else:
            raise AssertionError("refusals change the mark")
    before = change_mark(os.getpid())
    pair(sockets)
    assert change_mark(os.getpid()) != before


def test_sockets_include_descendants_and_a_shared_socket_belongs_to_the_eldest(sockets):
    client, _ = pair(sockets)
    script = "import socket, sys; s = socket.socket(); print(s.fileno(), flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[client.fileno()],
    ) as child:
        number = int(child.stdout.readline())
        own = os.stat(f"/proc/{child.pid}/fd/{number}").st_ino
        holders = socket_holders(os.getpid())
        assert holders[own] == child.pid
        assert holders[inode_of(client)] == min(os.getpid(), child.pid)
        assert inode_of(client) in socket_holders(child.pid), "which has it too"
        child.stdin.close()
        child.wait(30)


def test_a_process_that_is_gone_has_no_table():
    child = subprocess.Popen(["true"])
    child.wait(30)
    with pytest.raises(OSError, match=str(child.pid)):
        read_connections(child.pid, {1})
    with pytest.raises(OSError, match=str(child.pid)):
        change_mark(child.pid)
    assert socket_holders(child.pid) == {}
