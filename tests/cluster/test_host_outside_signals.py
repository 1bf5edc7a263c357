"""SIGTERM to every process of a host, as some schedulers send it, and to its first process alone."""

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
LINGER_S = 0.5  # whoever signals a second time does so in this time

world = world_of(EVERY_MODE)


def signal_everybody(program, number=signal.SIGTERM):
    """Signal the processes of a host one after the other, its first ones too; the sender lives on."""
    first = first_process(program)
    for pid in sorted({first, *live_descendants(first)}):
        with contextlib.suppress(ProcessLookupError):  # what a shell runs may have ended since
            os.kill(pid, number)


def first_process(program):
    """Return the process of the host that the agent has started: with namespaces, the parent of process 1."""
    parent = read_entry(program.init_pid).parent
    return program.init_pid if parent == os.getpid() else parent


def test_a_signal_to_everybody_is_the_one_that_programs_hear(world):
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


def test_what_a_signal_to_everybody_ends_did_not_end_by_itself(world):
    trap = "trap 'exit 0' TERM; echo on; while :; do sleep 0.01; done"
    program, listener = world.start(shell(trap), shell("echo on; exec sleep 600"))
    for index in (0, 1):
        listener.wait_for("on", index=index)
    signal_everybody(program)
    exits = program.wait(DEADLINE_S).exits
    assert [(end.exit_code, end.signal, end.is_consequence) for end in exits] == [(0, None, True), (None, 15, True)]


def test_what_a_handler_starts_after_a_signal_to_everybody_is_left_alone(world):
    program, listener = world.start(shell("trap 'sleep 0.6; echo saved; exit 0' TERM; echo on; while :; do wait; done"))
    listener.wait_for("on")
    signal_everybody(program)
    eventually(lambda: program.was_signalled)
    time.sleep(0.1)
    program.signal_all(signal.SIGTERM)
    listener.wait_for("saved")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT])
def test_other_signals_leave_the_first_process_alive_and_tell_nothing(world, number):
    program, listener = world.start(python(COUNTER))
    listener.wait_for("waiting")
    for pid in {first_process(program), program.init_pid}:
        os.kill(pid, number)
    time.sleep(0.1)
    assert not program.was_signalled
    assert program.signal_all(signal.SIGTERM) == 1
    listener.wait_for("caught")


def test_a_program_that_signals_the_first_process_of_its_host_hears_its_own_stop_all_the_same(world):
    target = "1" if world.mode != "plain" else "os.getppid()"
    # Where programs have a user of their own the kernel refuses it.
    attempt = f"import contextlib, os\nwith contextlib.suppress(PermissionError):\n    os.kill({target}, 15)\n"
    program, listener = world.start(python(attempt + COUNTER))
    listener.wait_for("waiting")
    time.sleep(0.1)
    assert not program.was_signalled
    assert program.signal_all(signal.SIGTERM) == 1
    listener.wait_for("caught")


def test_who_may_be_of_a_program_of_plain_processes():
    census = DescendantCensus()
    with subprocess.Popen(["sleep", "60"]) as child:
        assert census.may_hold(child.pid)
        child.kill()
        child.wait(DEADLINE_S)
        assert census.may_hold(child.pid), "nobody knows of one that has ended"
    assert not census.may_hold(os.getppid())
    assert not census.may_hold(0), "beyond this process's namespace"
