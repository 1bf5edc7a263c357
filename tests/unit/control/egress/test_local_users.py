"""The user of a connection on this machine."""

import os
import socket
import subprocess

import pytest

from clary.control.egress.local_users import is_own_client, user_of

NOBODY = 65534
CLIENT = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.recv(1)
"""


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_connection_of_this_process_belongs_to_its_user(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        client = socket.create_connection(server.getsockname()[:2])
        taken, peer = server.accept()
        with client, taken:
            assert user_of(peer, taken.getsockname()) == os.geteuid()
            assert is_own_client(peer, taken.getsockname())
            assert user_of((peer[0], 1), taken.getsockname()) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_connection_of_another_user_is_not_ours():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        # an interpreter that every user may execute, unlike an interpreter in root's home
        command = ["/usr/bin/python3", "-S", "-c", CLIENT, "127.0.0.1", str(port)]
        with subprocess.Popen(command, user=NOBODY, group=NOBODY, extra_groups=[]) as other:
            taken, peer = server.accept()
            with taken:
                assert user_of(peer, taken.getsockname()) == NOBODY
                assert not is_own_client(peer, taken.getsockname())
            assert other.wait(20) == 0


@pytest.mark.parametrize("client", [None, "", ("10.1.2.3", 4), ("nowhere", 4)])
def test_an_unknown_connection_has_no_user(client):
    assert user_of(client, ("127.0.0.1", 4)) is None
    assert not is_own_client(client, ("127.0.0.1", 4))
