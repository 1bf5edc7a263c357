"""Which looks at a process count as idle."""

import os
import subprocess

import pytest

from clary.agent.host.standstill import Activity, Standstill, read_activity


def counts(*seen):
    """Return the count after each look but the first, for a process with these states and ticks."""
    shown = iter(seen)
    standstill = Standstill(1, read=lambda pid: next(shown))
    return [standstill.look() for _ in seen[1:]]


SLEEPING, STOPPED = Activity("S", 7), Activity("T", 7)


def test_a_process_that_sleeps_or_is_stopped_is_idle_from_look_to_look():
    assert counts(SLEEPING, SLEEPING, STOPPED, STOPPED) == [1, 2, 3]


@pytest.mark.parametrize("state", ["R", "D"])
def test_one_that_waits_for_a_processor_or_a_disk_is_not_idle_though_it_computes_nothing(state):
    assert counts(SLEEPING, SLEEPING, Activity(state, 7), SLEEPING) == [1, 0, 1]


def test_one_that_has_computed_since_the_last_look_is_not_idle():
    assert counts(SLEEPING, SLEEPING, Activity("S", 8), Activity("S", 8)) == [1, 0, 1]


def test_nobody_is_judged_who_cannot_be_seen():
    assert counts(None, SLEEPING, None, SLEEPING, SLEEPING) == [0, 0, 0, 1]


def test_a_process_is_read_from_proc():
    own = read_activity(os.getpid())
    assert (own.state, own.cpu_ticks >= 0) == ("R", True)
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        assert read_activity(process.pid).state in "RSD"
        process.kill()
    assert read_activity(process.pid) is None
