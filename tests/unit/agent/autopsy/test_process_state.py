"""State of a process from /proc: the time for which its threads ran or waited for a processor."""

import os
import threading
import time

import pytest

from clary.agent.autopsy import process_state
from helpers.huge_areas import huge, small_and_fast


def test_a_thread_that_computes_is_runnable_all_the_time_and_one_that_waits_is_not():
    if not process_state.runnable_s(os.getpid()):
        pytest.skip("this kernel does not count how long threads wait for a processor")
    waiting = threading.Event()
    thread = threading.Thread(target=waiting.wait, args=(30,))
    thread.start()
    before, began_s = process_state.runnable_s(os.getpid()), time.monotonic()
    while time.monotonic() - began_s < 0.3:
        pass
    after = process_state.runnable_s(os.getpid())
    waiting.set()
    thread.join()
    assert after[os.getpid()] - before[os.getpid()] > 0.2
    assert after[thread.native_id] - before[thread.native_id] < 0.1


def test_a_process_that_has_ended_has_no_threads():
    assert process_state.runnable_s(2**22 + 1) == {}


def test_the_command_of_a_process_with_a_huge_command_line_is_its_beginning():
    with huge("cmdline", keeps=True) as program, small_and_fast():
        assert process_state.command(program.pid).startswith("python")


def test_a_huge_environment_is_read_in_part():
    with huge("environ") as program, small_and_fast():
        assert len(process_state.read(f"/proc/{program.pid}/environ")) == process_state.MAX_READ_BYTES
