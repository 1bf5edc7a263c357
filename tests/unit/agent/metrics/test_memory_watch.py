"""A host without a cgroup is ended when its processes exceed its memory; shared pages count once."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from clary.agent.metrics.memory_watch import MemoryWatch

MIB = 1024**2
LIMIT_S = 30
# Children that only read their parent's memory: it is resident in each of them, but exists once.
SHARING = """
import os, time
data = bytearray(b"x" * (100 << 20))
for _ in range(4):
    if os.fork() == 0:
        sum(data[::4096]); print("touched", flush=True); time.sleep(60); os._exit(0)
time.sleep(60)
"""
GROWING = """
import time
kept = []
while True:
    kept.append(bytearray(b"x" * (8 << 20))); time.sleep(0.005)
"""
SHARED = """
import mmap, time
area = mmap.mmap(-1, 400 << 20)
for start in range(0, 400 << 20, 1 << 20):
    area[start : start + (1 << 20)] = b"x" * (1 << 20)
time.sleep(60)
"""


@pytest.fixture
def watched():
    """Start a program below a first process and watch it; return the process, the messages, and an event."""
    made = []

    def start(script, limit_bytes):
        # A shell stands in for the first process of a host.
        command = ["/bin/sh", "-c", '"$0" -I -c "$1"; true', sys.executable, script]
        first = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        words, came = [], threading.Event()

        def on_excess(text):
            words.append(text)
            came.set()

        watch = MemoryWatch(
            "algo-1",
            first_pid=first.pid,
            ranks={},
            limit_bytes=limit_bytes,
            advice="use less",
            has_own_shared_memory=False,
            on_excess=on_excess,
        )
        watch.start()
        made.append((first, watch))
        return first, words, came

    yield start
    for first, watch in made:
        watch.close()
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()


@pytest.mark.parametrize("script", [GROWING, SHARED])
def test_host_that_grows_past_its_limit_is_named_with_its_largest_process(watched, script):
    _, words, came = watched(script, 200 * MIB)
    assert came.wait(LIMIT_S)
    assert words[0].startswith("algo-1 used 0.")
    assert "its memory limit is 0.20 GiB" in words[0]
    assert "python" in words[0].split("ended: ")[1].split(",")[0]
    used_gib = float(words[0].split()[2])
    assert 0.19 < used_gib < 0.35, words[0]


def test_pages_that_processes_share_count_once(watched):
    first, words, came = watched(SHARING, 250 * MIB)
    assert [first.stdout.readline() for _ in range(4)] == [b"touched\n"] * 4
    assert not came.wait(2)
    assert words == []
