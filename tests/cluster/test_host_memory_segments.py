"""Shared memory of a program is removed when the program ends, in every mode and for every kind of end."""

import os
import uuid
from pathlib import Path

from host_world import DEADLINE_S, HostWorld, python
from host_worlds import EVERY_MODE, world_of

from clary.agent.host.stopping.census import LOOK_INTERVAL_S
from clary.base.processes import live_descendants

# Like a killed data loader worker: no process unlinks its segments, neither the named nor the numbered one.
MAKE = """
import ctypes, mmap, os, time
descriptor = os.open("/dev/shm/{name}", os.O_RDWR | os.O_CREAT)
os.truncate(descriptor, 1 << 20)
memory = mmap.mmap(descriptor, 1 << 20)
number = ctypes.CDLL(None).shmget(0, 1 << 20, 0o1600)  # IPC_CREAT
assert number >= 0
print(f"made {{number}};", flush=True)
time.sleep({seconds})
"""


world = world_of(EVERY_MODE)


def segments_of(makers, name, number):
    """Return which of a program's two segments exist; segments of other programs may appear and vanish meanwhile."""
    rows = [row.split() for row in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    numbered = {row[1] for row in rows if row[1] == number and row[4] in makers}  # row[4]: pid of the creator
    return numbered | {entry for entry in os.listdir("/dev/shm") if entry == name}


def number_in(listener):
    """Return the number of the segment, as the program has printed it."""
    listener.wait_for(";")
    return listener.text().partition(";")[0].split()[1]


def pids_now():
    """Return the pids of this test's descendants, as strings."""
    return {str(pid) for pid in live_descendants(os.getpid())}


def test_a_program_that_is_killed_leaves_no_shared_memory(world):
    name = f"psm_{uuid.uuid4().hex}"
    program, listener = world.start(python(MAKE.format(name=name, seconds=3600)))
    number, pids = number_in(listener), pids_now()
    shared = {name, number} if world.mode == "plain" else set()
    assert segments_of(pids, name, number) == shared, "only plain processes share the machine's"
    program.close()
    assert segments_of(pids, name, number) == set()


def test_a_program_that_ends_by_itself_leaves_no_shared_memory(world):
    name = f"psm_{uuid.uuid4().hex}"
    # Plain processes are polled for segments; a host with its own memory namespace needs no poll.
    seconds = 3 * LOOK_INTERVAL_S if world.mode == "plain" else 0.5
    program, listener = world.start(python(MAKE.format(name=name, seconds=seconds)))
    number, pids = number_in(listener), pids_now()
    assert program.wait(DEADLINE_S).exits[0].exit_code == 0
    program.close()
    assert segments_of(pids, name, number) == set()


def test_only_the_shared_memory_of_the_ended_plain_program_is_removed():
    world = HostWorld("plain")
    try:
        name = f"psm_{uuid.uuid4().hex}"
        one, first = world.start(python(MAKE.format(name=f"{name}-one", seconds=3600)))
        two, second = world.start(python(MAKE.format(name=f"{name}-two", seconds=3600)))
        first.wait_for(";")
        second.wait_for(";")
        one.close()
        assert [entry for entry in os.listdir("/dev/shm") if entry.startswith(name)] == [f"{name}-two"]
        two.close()
        assert [entry for entry in os.listdir("/dev/shm") if entry.startswith(name)] == []
    finally:
        world.close()
