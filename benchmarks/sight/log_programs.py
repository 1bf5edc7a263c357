"""Programs that print, for `bench_logs`: each is sent to a host as it stands, or run beside a peer.

python log_programs.py flood NUM_LINES LINE_BYTES      as fast as they are taken, 64 KiB a write
python log_programs.py steady SECONDS BYTES_PER_S      one line a write, each with its time; last how long they took
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time

STEADY_LINE_BYTES = 256
PAUSE_S = 1.0  # from the first line to the flood, for whoever measures to look at clocks
_WRITE_BYTES = 65536


def flood_line(number: int, line_bytes: int) -> str:
    """Return line `number`, which differs from every other one, without its end."""
    return f"{number:09d} {'step loss accuracy lr '[number % 20 :]}".ljust(line_bytes - 1, "x")


def flood(num_lines: int, line_bytes: int) -> None:
    """Print lines that were made before, so that making them costs nothing while the clock runs."""
    made = [flood_line(number, line_bytes) + "\n" for number in range(num_lines)]
    a_write = max(1, _WRITE_BYTES // line_bytes)
    blocks = ["".join(made[first : first + a_write]).encode() for first in range(0, num_lines, a_write)]
    del made
    os.write(1, f"BEGIN {time.time() + PAUSE_S:.6f}\n".encode())
    time.sleep(PAUSE_S)
    slowest_s = 0.0
    for block in blocks:
        began_s = time.perf_counter()
        left = memoryview(block)
        while left:
            left = left[os.write(1, left) :]
        slowest_s = max(slowest_s, time.perf_counter() - began_s)
    os.write(1, f"END {json.dumps({'ended_at': time.time(), 'slowest_write_s': slowest_s})}\n".encode())


def steady(seconds: float, bytes_per_s: int) -> None:
    """Print at an even rate, as a talkative trainer does, and time each write."""
    took_s = []
    longest_wait_s = 0.0  # of a write that waited for its reader, and not only for a processor
    interval_s = STEADY_LINE_BYTES / bytes_per_s
    num_lines = int(seconds / interval_s)
    os.write(1, f"BEGIN {time.time():.6f}\n".encode())
    due_s = time.perf_counter()
    for number in range(num_lines):
        line = f"{number:09d} {time.time():.6f} ".ljust(STEADY_LINE_BYTES - 1, "x") + "\n"
        num_waits = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        began_s = time.perf_counter()
        os.write(1, line.encode())
        took_s.append(time.perf_counter() - began_s)
        if resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw > num_waits:
            longest_wait_s = max(longest_wait_s, took_s[-1])
        due_s += interval_s
        pause_s = due_s - time.perf_counter()
        if pause_s > 0.002:  # many lines a turn: a pause costs more than a line
            time.sleep(pause_s)
    took_s.sort()
    facts = {
        "ended_at": time.time(),
        "num_lines": num_lines,
        "p50_ms": took_s[num_lines // 2] * 1000,
        "p99_ms": took_s[num_lines * 99 // 100] * 1000,
        "max_ms": took_s[-1] * 1000,
        "max_of_waiting_ms": longest_wait_s * 1000,
        "num_over_10_ms": sum(value > 0.010 for value in took_s),
    }
    os.write(1, f"END {json.dumps(facts)}\n".encode())


if __name__ == "__main__":
    act, first, second = sys.argv[1:]
    if act == "flood":
        flood(int(first), int(second))
    else:
        steady(float(first), int(second))
