"""Which polls of a process count as idle."""

import os
import subprocess

import pytest

from clary.agent.host.standstill import Activity, Standstill, read_activity


def counts(*seen):
    """Return the idle count after each poll but the first, for a process with these states and ticks."""
    shown = iter(seen)
    standstill = Standstill(1, read=lambda pid: next(shown))
    return [standstill.look() for _ in seen[1:]]


SLEEPING, STOPPED = Activity("S", 7), Activity("T", 7)


def test_a_sleeping_or_stopped_process_is_idle_from_poll_to_poll():
    assert counts(SLEEPING, SLEEPING, STOPPED, STOPPED) == [1, 2, 3]


@pytest.mark.parametrize("state", ["R", "D"])
def test_a_process_that_waits_for_a_processor_or_a_disk_is_not_idle(state):
    assert counts(SLEEPING, SLEEPING, Activity(state, 7), SLEEPING) == [1, 0, 1]


def test_a_process_that_has_computed_since_the_last_poll_is_not_idle():
    assert counts(SLEEPING, SLEEPING, Activity("S", 8), Activity("S", 8)) == [1, 0, 1]


def test_a_process_that_cannot_be_read_is_not_judged():
    assert counts(None, SLEEPING, None, SLEEPING, SLEEPING) == [0, 0, 0, 1]


def test_a_process_is_read_from_proc():
    own = read_activity(os.getpid())
    assert (own.state, own.cpu_ticks >= 0) == ("R", True)
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        assert read_activity(process.pid).state in "RSD"
        process.kill()
    assert read_activity(process.pid) is None
