"""The watch over real processes that connect to each other late, or never."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from clary.agent.fact_board import FactBoard
from clary.agent.rendezvous import rendezvous_watch
from clary.agent.rendezvous.rendezvous_policy import MeetingPlace
from clary.agent.rendezvous.rendezvous_watch import RendezvousWatch
from clary.base.clock import SystemClock

LIMIT_S = 20.0
CONNECTS = "import socket, sys, time\nkept = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\ntime.sleep(60)"
SLEEPS = "import time\ntime.sleep(60)"


def program_of(pid):
    """Return a program of which `pid` is the first process."""
    return SimpleNamespace(init_pid=pid, num_processes=1)


@pytest.fixture
def server():
    """Start a store that accepts every connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def program():
    """Start a shell that starts a program for each line, as a program runs below the first process of its host."""
    shell = subprocess.Popen(["bash"], stdin=subprocess.PIPE, start_new_session=True, text=True)

    def add(script, port):
        shell.stdin.write(f'{sys.executable} -c "{script}" {port} &\n')
        shell.stdin.flush()

    add.pid = shell.pid
    yield add
    os.killpg(shell.pid, signal.SIGKILL)
    shell.stdin.close()
    shell.wait()


@pytest.fixture
def watch():
    """Start watches, and close them with their threads at the end."""
    before, started = set(threading.enumerate()), []

    def start(pid, server, *, num_processes=1, **changes):
        place = MeetingPlace(
            ports=frozenset({server.getsockname()[1]}),
            addresses=frozenset({"127.0.0.1"}),
            others=frozenset({"10.0.0.2"}),
            num_processes=num_processes,
        )
        board = FactBoard(clock=SystemClock())
        started.append(RendezvousWatch(lambda _: place, board=board, **changes))
        started[-1].begin(program_of(pid), None)
        return board, started[-1]

    yield start
    for one in started:
        one.abort()
    assert set(threading.enumerate()) <= before


def wait_until(has_come):
    deadline_s = time.monotonic() + LIMIT_S
    while not has_come():
        assert time.monotonic() < deadline_s, f"nothing came within {LIMIT_S} s"
        time.sleep(0.02)


def test_the_time_of_the_rendezvous_is_reported_and_nothing_earlier(program, server, watch):
    board, _ = watch(program.pid, server)
    assert board.facts.awaits_rendezvous
    program(SLEEPS, 0)
    time.sleep(0.5)
    assert board.facts.rendezvous_at is None
    before = datetime.now(UTC)
    program(CONNECTS, server.getsockname()[1])
    wait_until(lambda: board.facts.rendezvous_at is not None)
    assert before <= board.facts.rendezvous_at <= datetime.now(UTC)
    assert not board.facts.awaits_rendezvous


def test_the_last_of_several_processes_is_waited_for(program, server, watch):
    board, _ = watch(program.pid, server, num_processes=2)
    program(CONNECTS, server.getsockname()[1])
    server.settimeout(LIMIT_S)
    with server.accept()[0]:
        time.sleep(0.5)
        assert board.facts.rendezvous_at is None
        program(CONNECTS, server.getsockname()[1])
        wait_until(lambda: board.facts.rendezvous_at is not None)


def test_a_program_that_never_connects_is_no_longer_awaited_after_the_limit(program, server, watch):
    program(SLEEPS, 0)
    board, _ = watch(program.pid, server, give_up_s=0.5)
    wait_until(lambda: not board.facts.awaits_rendezvous)
    assert board.facts.rendezvous_at is None


def test_a_host_whose_network_cannot_be_read_is_not_waited_for(server, watch):
    gone = subprocess.Popen(["true"])
    gone.wait(30)
    board, _ = watch(gone.pid, server)
    wait_until(lambda: not board.facts.awaits_rendezvous)


def test_a_program_that_ends_unconnected_leaves_the_answer_to_its_exit(program, server, watch):
    board, watched = watch(program.pid, server)
    time.sleep(0.3)
    os.killpg(program.pid, signal.SIGKILL)
    time.sleep(0.3)
    watched.abort()
    assert board.facts.awaits_rendezvous
    assert board.facts.rendezvous_at is None


def test_nothing_is_watched_without_a_rendezvous_place_or_a_process():
    board = FactBoard(clock=SystemClock())
    RendezvousWatch(lambda _: None, board=board).begin(program_of(os.getpid()), None)
    place = MeetingPlace(ports=frozenset({1}), addresses=frozenset(), others=frozenset(), num_processes=2)
    RendezvousWatch(lambda _: place, board=board).begin(program_of(None), None)
    assert not board.facts.awaits_rendezvous
    assert "rendezvous-watch" not in [thread.name for thread in threading.enumerate()]


def test_a_slow_poll_does_not_delay_the_next_one(program, server, watch, monkeypatch):
    read = rendezvous_watch.read_connections

    def read_late(*arguments):
        time.sleep(0.5)  # as on a machine whose processors are busy with the ranks
        return read(*arguments)

    monkeypatch.setattr(rendezvous_watch, "read_connections", read_late)
    board, _ = watch(program.pid, server, num_processes=2)
    with contextlib.ExitStack() as held:
        program(CONNECTS, server.getsockname()[1])
        held.enter_context(server.accept()[0])
        time.sleep(1.0)  # the first connection is seen
        program(CONNECTS, server.getsockname()[1])
        held.enter_context(server.accept()[0])
        came_s = time.monotonic()
        wait_until(lambda: board.facts.rendezvous_at is not None)
    assert time.monotonic() - came_s < 5.0  # formerly, a pause of ten seconds followed such a slow poll
