"""SIGTERM from outside, to every process of a host, as some schedulers send it, or only to its first process."""

import contextlib
import os
import signal
import subprocess
import time

import pytest
from host_world import DEADLINE_S, eventually, python, shell
from host_worlds import EVERY_MODE, world_of

from clary.agent.host.stopping.census import DescendantCensus
from clary.base.processes import live_descendants, read_entry

COUNTER = """
import os, signal, time
def caught(*_):
    os.write(1, b"caught\\n")
signal.signal(signal.SIGTERM, caught)
os.write(1, b"waiting\\n")
time.sleep(600)
"""
LINGER_S = 0.5  # a second SIGTERM would arrive within this time

world = world_of(EVERY_MODE)


def signal_everybody(program, number=signal.SIGTERM):
    """Send a signal to every process of a host, the first ones included, but not to the test's own process."""
    first = first_process(program)
    for pid in sorted({first, *live_descendants(first)}):
        with contextlib.suppress(ProcessLookupError):  # a child of a shell may have ended
            os.kill(pid, number)


def first_process(program):
    """Return the pid of the host's process that the agent started: with namespaces, the parent of process 1."""
    parent = read_entry(program.init_pid).parent
    return program.init_pid if parent == os.getpid() else parent


def test_programs_get_no_second_sigterm_after_one_sent_to_all_processes(world):
    program, listener = world.start(python(COUNTER), python(COUNTER))
    for index in (0, 1):
        listener.wait_for("waiting", index=index)
    assert not program.was_signalled
    signal_everybody(program)
    eventually(lambda: program.was_signalled)
    assert program.signal_all(signal.SIGTERM) == 2
    time.sleep(LINGER_S)
    assert [listener.text(index).count("caught") for index in (0, 1)] == [1, 1]
    program.kill()
    assert program.first_failure() is None


def test_ends_by_a_signal_to_all_processes_count_as_consequences(world):
    trap = "trap 'exit 0' TERM; echo on; while :; do sleep 0.01; done"
    program, listener = world.start(shell(trap), shell("echo on; exec sleep 600"))
    for index in (0, 1):
        listener.wait_for("on", index=index)
    signal_everybody(program)
    exits = program.wait(DEADLINE_S).exits
    assert [(end.exit_code, end.signal, end.is_consequence) for end in exits] == [(0, None, True), (None, 15, True)]


def test_processes_that_a_handler_starts_after_the_signal_get_no_signal(world):
    program, listener = world.start(shell("trap 'sleep 0.6; echo saved; exit 0' TERM; echo on; while :; do wait; done"))
    listener.wait_for("on")
    signal_everybody(program)
    eventually(lambda: program.was_signalled)
    time.sleep(0.1)
    program.signal_all(signal.SIGTERM)
    listener.wait_for("saved")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT])
def test_other_signals_to_the_first_process_do_not_count_as_signalled(world, number):
    program, listener = world.start(python(COUNTER))
    listener.wait_for("waiting")
    for pid in {first_process(program), program.init_pid}:
        os.kill(pid, number)
    time.sleep(0.1)
    assert not program.was_signalled
    assert program.signal_all(signal.SIGTERM) == 1
    listener.wait_for("caught")


def test_a_program_that_signals_its_first_process_still_gets_sigterm_at_a_stop(world):
    target = "1" if world.mode != "plain" else "os.getppid()"
    # If programs have their own user, the kernel refuses the signal.
    attempt = f"import contextlib, os\nwith contextlib.suppress(PermissionError):\n    os.kill({target}, 15)\n"
    program, listener = world.start(python(attempt + COUNTER))
    listener.wait_for("waiting")
    time.sleep(0.1)
    assert not program.was_signalled
    assert program.signal_all(signal.SIGTERM) == 1
    listener.wait_for("caught")


def test_the_census_excludes_processes_that_cannot_belong_to_the_program():
    census = DescendantCensus()
    with subprocess.Popen(["sleep", "60"]) as child:
        assert census.may_hold(child.pid)
        child.kill()
        child.wait(DEADLINE_S)
        assert census.may_hold(child.pid), "nobody knows of one that has ended"
    assert not census.may_hold(os.getppid())
    assert not census.may_hold(0), "beyond this process's namespace"
