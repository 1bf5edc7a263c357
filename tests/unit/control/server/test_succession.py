"""One service takes the place of another."""

import os
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from clary.base.errors import ClaryError
from clary.base.processes import ProcessId
from clary.control import full_disks
from clary.control.server import succession
from clary.control.server.succession import Leave, check_start, predecessor_of, succeed_option, take_turn
from clary.control.settings import Settings
from clary.control.state_folder import StateFolder


@pytest.fixture
def folder(tmp_path):
    folder = StateFolder(tmp_path)
    folder.create()
    return folder


@pytest.fixture
def program():
    """Start a program that says when it is ready; return its identity."""
    started = []

    def start(code):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return ProcessId.of(process.pid)

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_option_names_the_process():
    assert predecessor_of(["--new-keys", succeed_option(ProcessId(12, "345"))]) == ProcessId(12, "345")
    assert predecessor_of(["--new-keys"]) is None


def test_a_release_without_the_signal_is_ended_by_it(program, folder):
    old = program("print('ready', flush=True)\nimport time\ntime.sleep(60)")
    take_turn(old, folder).close()
    assert not old.is_alive()


def test_a_service_that_does_not_hand_over_is_killed(program, folder, monkeypatch):
    monkeypatch.setattr(succession, "HAND_OVER_LIMIT_S", 0.3)
    deaf = (
        "import signal, time\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(60)"
    )
    old = program(deaf)
    take_turn(old, folder).close()
    assert not old.is_alive()


def test_of_two_services_that_take_one_place_the_second_leaves_the_old_one_alone(program, folder):
    old = program("print('ready', flush=True)\nimport time\ntime.sleep(60)")
    other = program("print('ready', flush=True)\nimport time\ntime.sleep(60)")
    handed = take_turn(old, folder)
    with pytest.raises(ClaryError, match="another service takes its place already"):
        take_turn(other, folder)
    assert other.is_alive()
    handed.close()
    take_turn(other, folder).close()
    assert not other.is_alive()


def test_a_service_that_stops_with_its_jobs_does_not_hand_them_over_any_more():
    leave = Leave()
    leave.set()
    leave.hand_over()
    assert not leave.keeps_jobs


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"prices_file": "/nowhere/prices.json"}, "/nowhere/prices.json"),
        ({"spot_schedule_file": "/nowhere/spot.txt"}, "/nowhere/spot.txt"),
        ({"s3_endpoint_url": "http://127.0.0.1:1"}, "s3_secret_access_key is not"),
    ],
)
def test_what_would_end_the_start_is_told_before_the_old_service_is(folder, changed, told):
    settings = Settings(home=str(folder.root), port=0, tls_port=0)
    check_start(settings)
    with pytest.raises(ClaryError, match=told):
        check_start(Settings(home=str(folder.root), port=0, tls_port=0, **changed))


def test_a_disk_that_takes_no_writes_is_told_before_the_old_service_ends(folder, monkeypatch):
    room = {"f_bavail": 10**9, "f_blocks": 10**9, "f_frsize": 4096, "f_files": 0}
    monkeypatch.setattr(full_disks, "_facts", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY, **room))
    with pytest.raises(ClaryError, match="the next service would not start"):
        check_start(Settings(home=str(folder.root), port=0, tls_port=0))


def test_a_new_port_of_another_program_is_told_before_the_old_service_ends(folder):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ClaryError, match=f"cannot listen on 127.0.0.1:{port}"):
            check_start(Settings(home=str(folder.root), port=port, tls_port=0))


def test_the_signal_is_one_that_ends_programs_which_do_not_know_it():
    assert signal.Signals.SIGUSR1 == succession.HAND_OVER
