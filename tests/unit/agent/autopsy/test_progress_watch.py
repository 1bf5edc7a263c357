"""The progress watch over real processes: one sleeps, one computes, one is stopped."""

import os
import queue
import signal
import subprocess
import sys

import pytest

from clary.agent.autopsy.progress_reading import evidence, read_counters
from clary.agent.autopsy.progress_watch import ProgressWatch

LIMIT_S = 20.0


@pytest.fixture
def start():
    """Start a program as a child of a shell, as a program runs below the first process of its host."""
    started = []

    def start(script):
        process = subprocess.Popen(["sh", "-c", '"$0" -c "$1"; true', sys.executable, script], start_new_session=True)
        started.append(process)
        return process.pid

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def watch(pid, *, limit_s, lines=lambda: 0):
    told = queue.Queue()
    watched = ProgressWatch(
        pid, num_outputs=lines, limit_s=limit_s, on_standstill=told.put, on_progress=lambda: told.put("goes on")
    )
    watched.start()
    return watched, told


def test_a_sleeping_program_is_reported_once_with_its_wait(start):
    pid = start("import time; time.sleep(60)")
    watched, told = watch(pid, limit_s=1.0)
    words = told.get(timeout=LIMIT_S)
    watched.close()
    assert words.startswith("no progress for ")
    assert "waits for something that does not come" in words
    assert "time.sleep(60)" in words
    assert told.empty()


def test_a_program_that_computes_and_one_that_prints_are_left_alone(start):
    busy, busy_told = watch(start("while True: pass"), limit_s=1.0)
    lines = iter(range(10**6))
    talking, talking_told = watch(start("import time; time.sleep(60)"), limit_s=1.0, lines=lambda: next(lines))
    with pytest.raises(queue.Empty):
        talking_told.get(timeout=3.0)
    busy.close()
    talking.close()
    assert busy_told.empty()


def test_a_program_that_only_computes_is_reported_as_spinning_once(start):
    told, quiet = queue.Queue(), queue.Queue()
    watched = ProgressWatch(
        start("while True: pass"),
        num_outputs=lambda: 0,
        limit_s=3.0,
        on_standstill=told.put,
        on_progress=lambda: None,
        on_quiet=quiet.put,
    )
    watched.start()
    try:
        assert "computed or waited in a loop" in quiet.get(timeout=2 * LIMIT_S)
        assert told.empty()
        with pytest.raises(queue.Empty):
            quiet.get(timeout=1.0)
    finally:
        watched.close()


def test_a_program_that_resumes_is_reported_too(start):
    lines = [0]
    watched, told = watch(start("import time; time.sleep(60)"), limit_s=0.5, lines=lambda: lines[0])
    assert "no progress" in told.get(timeout=LIMIT_S)
    lines[0] = 1
    assert told.get(timeout=LIMIT_S) == "goes on"
    watched.close()


def test_counters_include_child_processes_and_evidence_names_their_state(start):
    pid = start("import os, time\nos.write(1, b'')\nx = open('/dev/null', 'wb').write(b'x' * 300000)\ntime.sleep(60)")
    for _ in range(200):
        if read_counters(pid).io_bytes >= 300_000:
            break
        os.sched_yield()
        subprocess.run(["sleep", "0.05"], check=True)
    counters = read_counters(pid)
    assert counters.io_bytes >= 300_000
    assert counters.cpu_s >= 0
    assert "(S, " in evidence(pid)


def test_an_ended_program_has_empty_counters_and_evidence():
    assert read_counters(2**22 - 1).cpu_s == 0
    assert evidence(2**22 - 1) == ""
