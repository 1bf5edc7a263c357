"""Cost of measuring a host on itself: processor time of 1000 rows, with 1, 4 and 8 ranks on it.

Each rank is a process of 12 threads with two workers below it, as training with a data loader has them, all asleep:
what is measured is the reading. The goal is that of measuring twice a second, the default. The peer opens every file
and goes through the machine's process list for each row, which is how such numbers are read from a script.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.lines import Line, median_and_spread
from clary.agent.autopsy.progress_reading import read_counters
from clary.agent.host.limits.cgroups import HostCgroup
from clary.agent.metrics.program_source import ProgramSource
from clary.agent.metrics.row_store import RowStore
from clary.agent.metrics.sources import AgentSource, DiskSource, MachineSource, Source
from clary.base.plain import to_plain
from clary.base.processes import live_descendants
from clary.contract.launch_plan import Resources

NUM_RANKS = (1, 4, 8)
NUM_ROWS = 200
NUM_SAMPLES = 5
ROWS_A_SECOND = 2
GOAL_LOAD = 0.02  # of one core
ROWS_A_BATCH = 10  # posted every five seconds
PROCESSES_A_RANK = 3
THREADS_A_RANK = 12
_READY_S = 60.0

PROGRAM = f"""
import os, sys, threading, time
files = sys.argv[2:]
for path in files:
    with open(path, "w") as file:
        file.write("0")
for rank in range(int(sys.argv[1])):
    if os.fork() == 0:
        os.environ["RANK"] = str(rank)
        os.execv(sys.executable, [sys.executable, "-c", '''
import os, threading, time
for _ in range({PROCESSES_A_RANK - 1}):
    if os.fork() == 0:
        time.sleep(3600)
for _ in range({THREADS_A_RANK - 1}):
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
time.sleep(3600)
'''])
time.sleep(3600)
"""


def run(quick: bool) -> Iterator[Line]:
    """Measure hosts with and without a cgroup of their own."""
    num_samples = 2 if quick else NUM_SAMPLES
    for has_cgroup in (True, False):
        for num_ranks in NUM_RANKS:
            with _host(num_ranks, has_cgroup=has_cgroup) as first_pid:
                yield _measure(first_pid, num_ranks, has_cgroup=has_cgroup, num_samples=num_samples)


def _measure(first_pid: int, num_ranks: int, *, has_cgroup: bool, num_samples: int) -> Line:
    sources: list[Source] = [
        AgentSource(),
        MachineSource(),
        DiskSource((Path.cwd(),)),
        ProgramSource(first_pid, ranks={}, has_own_network=True),
    ]
    store = RowStore()
    # Time as rows of two a second see it, so that what is read once a second is read every other row.
    clock = iter(range(10**9))
    names: set[str] = set()

    def row() -> None:
        now_s = next(clock) / ROWS_A_SECOND
        values: dict[str, float] = {}
        for source in sources:
            values |= source.read(now_s)
        store.add(int(now_s * 1000), values)
        names.update(values)
        if (store.end - store.first) == ROWS_A_BATCH and (batch := store.batch()) is not None:
            json.dumps(to_plain(batch))  # as it is sent
            store.acknowledge(store.end)

    def naive() -> None:
        read_counters(first_pid)

    try:
        for _ in range(10):
            row()
        ours = [_cpu_s_of_1000(row) for _ in range(num_samples)]
        peer, _ = median_and_spread([_cpu_s_of_1000(naive) for _ in range(num_samples)])
    finally:
        for source in sources:
            source.close()
    middle, spread = median_and_spread(ours)
    load = middle / 1000 * ROWS_A_SECOND
    return Line(
        case=f"ranks={num_ranks},processes={num_ranks * PROCESSES_A_RANK},cgroup={'own' if has_cgroup else 'none'}",
        metric="cpu_s_of_1000_rows",
        unit="s",
        better="lower",
        ours=middle,
        peers={"every file opened, every process looked at": peer},
        peer_note="processor time and bytes of the whole program only, nothing by rank",
        goal=f"at most {GOAL_LOAD:.0%} of a core at {ROWS_A_SECOND} rows a second",
        met=load <= GOAL_LOAD,
        samples=num_samples,
        spread=spread,
        verified={f"rank-{rank}/cpu_percent" for rank in range(num_ranks)} <= names,
        details={"percent_of_a_core": 100 * load, "num_series": len(names)},
    )


def _cpu_s_of_1000(act: Callable[[], None]) -> float:
    began_s = time.thread_time()
    for _ in range(NUM_ROWS):
        act()
    return (time.thread_time() - began_s) * 1000 / NUM_ROWS


@contextmanager
def _host(num_ranks: int, *, has_cgroup: bool) -> Iterator[int]:
    """Give the first process of a host whose ranks all sleep."""
    resources = Resources(num_cpus=max(0.5, (os.cpu_count() or 1) - 0.5), memory_bytes=2**32)
    cgroup = HostCgroup.create(f"sampling-{os.getpid()}", resources) if has_cgroup else None
    files = cgroup.entry_files if cgroup is not None else ()
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(num_ranks), *files], start_new_session=True)
    try:
        deadline_s = time.monotonic() + _READY_S
        while len(live_descendants(process.pid)) < num_ranks * PROCESSES_A_RANK:
            if time.monotonic() > deadline_s:
                raise SystemExit(f"the {num_ranks} ranks were not there after {_READY_S:g} s")
            time.sleep(0.05)
        time.sleep(0.5)  # for their threads
        yield process.pid
    finally:
        for pid in (*live_descendants(process.pid), process.pid):
            os.kill(pid, 9)
        process.wait()
        if cgroup is not None:
            cgroup.remove()
