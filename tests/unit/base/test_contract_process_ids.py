"""A process is identified by pid and start time instead of its name, and is signalled only if both still match."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clary.base import processes
from clary.base.processes import ProcessId, has_variable, read_entry, read_process_list

SLEEPER = "import time; print('up', flush=True); time.sleep(300)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER
PR_SET_NAME = 15


@pytest.fixture
def child():
    """Start a Python program and wait until it prints `up`."""
    children = []

    def start(code=SLEEPER):
        process = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
        children.append(process)
        process.stdout.readline()
        return process

    yield start
    for process in children:
        process.kill()
        process.wait(10)
        process.stdout.close()


def test_a_process_that_reused_a_pid_is_another_process():
    own = ProcessId.of(os.getpid())
    assert own.is_alive()
    assert not ProcessId(own.pid, str(int(own.started) - 1)).is_alive()


def test_an_unused_pid_names_no_process():
    largest = int(Path("/proc/sys/kernel/pid_max").read_text())
    assert ProcessId.of(largest + 1) is None
    assert read_entry(largest + 1) is None
    assert ProcessId(largest + 1, "1").terminate(timeout_s=1)


def test_a_zombie_is_not_alive_and_has_nothing_to_end(child):
    process = child()
    identity = ProcessId.of(process.pid)
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not identity.is_alive()
    assert ProcessId.of(process.pid) is None
    assert read_process_list()[process.pid].has_ended
    assert identity.kill(timeout_s=1)


def test_terminate_waits_until_the_process_has_ended(child):
    process = child()
    assert ProcessId.of(process.pid).terminate(timeout_s=10)
    assert process.wait(0.5) == -signal.SIGTERM


def test_terminate_reports_a_process_that_survives_and_kill_ends_it(child):
    process = child(DEAF)
    identity = ProcessId.of(process.pid)
    assert not identity.terminate(timeout_s=0.1)
    assert identity.is_alive()
    assert identity.kill(timeout_s=10)
    assert process.wait(0.5) == -signal.SIGKILL


def test_a_process_that_reused_the_pid_is_not_signalled(child):
    process = child()
    stale = ProcessId(process.pid, "1")
    assert stale.terminate(timeout_s=1)
    assert stale.kill(timeout_s=1)
    assert process.poll() is None


def test_a_process_name_that_is_no_text_does_no_harm(child):
    rename = f"import ctypes; ctypes.CDLL(None).prctl({PR_SET_NAME}, b'\\xff) Z \\xfe'); "
    process = child(rename + SLEEPER)
    assert b"\xff" in Path(f"/proc/{process.pid}/stat").read_bytes()
    identity = ProcessId.of(process.pid)
    assert identity is not None
    assert identity.is_alive()
    assert read_process_list()[process.pid].parent == os.getpid()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_too_many_open_files_do_not_make_a_process_a_stranger(monkeypatch, number):
    def refuse(path, max_bytes):
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(processes, "read_at_most", refuse)
    with pytest.raises(OSError, match="oo many open files"):
        has_variable(os.getpid(), "HOME", "/root")
