"""Listening sockets that one service hands to the next."""

import socket

import pytest

from clary.control.server.edge.handed_sockets import NAME, HandedSockets, SocketInbox, send_sockets


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / ("deep" * 40) / "run"  # longer than the path of a local socket may be
    folder.mkdir(parents=True)
    return folder


def test_clients_that_connect_in_between_are_served_by_the_next_service(run_folder, listening):
    host, port = listening.getsockname()
    with SocketInbox(run_folder) as inbox:
        send_sockets(run_folder, [listening])
        listening.close()
        with socket.create_connection((host, port), timeout=5) as client:
            handed = inbox.receive()
            taken = handed.take(host, port)
            assert handed.take(host, port) is None
            with taken, taken.accept()[0] as served:
                served.sendall(b"next")
            assert client.recv(4) == b"next"
    assert not (run_folder / NAME).exists()


def test_without_a_sender_there_are_no_sockets(run_folder):
    with SocketInbox(run_folder) as inbox:
        assert not inbox.receive().has("127.0.0.1", 4570)


def test_without_an_inbox_nothing_is_sent_and_nothing_fails(run_folder, listening):
    send_sockets(run_folder, [listening])


def test_what_a_killed_successor_left_is_no_hindrance(run_folder, listening):
    (run_folder / NAME).touch()
    with SocketInbox(run_folder) as inbox:
        send_sockets(run_folder, [listening])
        handed = inbox.receive()
        assert handed.has(*listening.getsockname())
        handed.close()


def test_sockets_that_nobody_takes_are_closed(listening):
    address = listening.getsockname()
    handed = HandedSockets([socket.socket(fileno=socket.dup(listening.fileno()))])
    listening.close()
    handed.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)
