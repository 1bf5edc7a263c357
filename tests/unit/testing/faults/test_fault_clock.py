"""A clock that jumps for one process: only its time of day jumps."""

import os
import subprocess
import sys
import time

import pytest

from clary.testing.faults.fault_clock import FaultClock, find_compiler

SCRIPT = """
import sys, time
from datetime import datetime, timezone
for _ in sys.stdin:
    start = time.monotonic()
    time.sleep(0.01)
    print(time.time(), datetime.now(timezone.utc).timestamp(), time.monotonic(), flush=True)
"""


@pytest.mark.needs("compiler")
def test_the_time_of_day_jumps_at_once_and_sleep_and_monotonic_time_do_not(tmp_path):
    clock = FaultClock(tmp_path, find_compiler())
    command = [sys.executable, "-S", "-c", SCRIPT]
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": {**os.environ, **clock.environment()}}
    with subprocess.Popen(command, text=True, bufsize=1, **options) as process:

        def ask():
            process.stdin.write("\n")
            return [float(word) for word in process.stdout.readline().split()]

        for offset_s in (0.0, 1000.0, -1000.0, 0.25):
            clock.set_offset(offset_s)
            before = time.time() + offset_s, time.monotonic()
            time_of_day, moment, monotonic = ask()
            after = time.time() + offset_s, time.monotonic()
            assert before[0] <= time_of_day <= moment <= after[0]
            assert before[1] <= monotonic <= after[1]
        process.stdin.close()
        assert process.wait(30) == 0
