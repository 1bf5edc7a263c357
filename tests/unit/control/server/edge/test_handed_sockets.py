"""Listening sockets that one service hands to the next."""

import os
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
            handed = HandedSockets(inbox.receive())
            taken = handed.take(host, port)
            assert handed.take(host, port) is None
            with taken, taken.accept()[0] as served:
                served.sendall(b"next")
            assert client.recv(4) == b"next"
    assert not (run_folder / NAME).exists()


def test_without_a_sender_there_are_no_sockets(run_folder):
    with SocketInbox(run_folder) as inbox:
        assert inbox.receive() == []


def test_without_an_inbox_nothing_is_sent_and_nothing_fails(run_folder, listening):
    send_sockets(run_folder, [listening])


def test_what_a_killed_successor_left_is_no_hindrance(run_folder, listening):
    (run_folder / NAME).touch()
    with SocketInbox(run_folder) as inbox:
        send_sockets(run_folder, [listening])
        handed = HandedSockets(inbox.receive())
        assert handed.has(*listening.getsockname())
        handed.close()


def test_sockets_that_nobody_takes_are_closed(listening):
    address = listening.getsockname()
    handed = HandedSockets([socket.socket(fileno=socket.dup(listening.fileno()))])
    listening.close()
    handed.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)


def test_programs_that_the_next_service_starts_do_not_inherit_the_sockets(run_folder, listening):
    with SocketInbox(run_folder) as inbox:
        send_sockets(run_folder, [listening])
        [taken] = inbox.receive()
        with taken:
            assert not os.get_inheritable(taken.fileno())


def test_descriptors_that_do_not_listen_are_closed(run_folder, listening, tmp_path):
    with socket.socket(socket.AF_UNIX) as local, socket.socket() as silent, (tmp_path / "file").open("wb") as file:
        before = len(os.listdir("/proc/self/fd"))
        with SocketInbox(run_folder) as inbox:
            send_sockets(run_folder, [local, silent, file, listening])
            [taken] = inbox.receive()
            assert taken.getsockname() == listening.getsockname()
            taken.close()
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_socket_is_found_by_a_name_of_its_address(listening):
    handed = HandedSockets([listening])
    port = listening.getsockname()[1]
    assert handed.has("localhost", port)
    assert not handed.has("no..name", port)
    assert handed.take("localhost", port) is listening


def test_a_port_can_be_bound_at_another_address_after_its_sockets_are_closed(listening):
    port = listening.getsockname()[1]
    handed = HandedSockets([listening])
    handed.close_port(port + 1)
    assert handed.has("127.0.0.1", port)
    handed.close_port(port)
    with socket.create_server(("0.0.0.0", port)):
        assert not handed.has("127.0.0.1", port)
