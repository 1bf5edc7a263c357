"""A job's log from its standard output into the store: throughput, cost, delay, and stalls of the program.

`flood` is one job that prints as fast as it is let, until its last line can be read through GetLogEvents; every line is
read back and compared. `steady` prints 1 MiB/s, one line a write, and times each write. The same is then done while the
service is frozen, dead or unable to write its files, and with a slow disk under the host's spool: no write may take
longer than 10 ms, and afterwards every line is there once.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.lines import ROOT, Line, median_and_spread
from benchmarks.service import TRAIN_PYTHON, BenchmarkService, running_service
from benchmarks.sight.log_job import LogReader, PrintedJob, service_pid, submit, watch_to_end
from benchmarks.sight.log_peers import cat_seconds, syslog_ng_seconds, syslog_ng_version
from benchmarks.sight.log_programs import STEADY_LINE_BYTES, flood_line

LINE_BYTES = 256  # so that the two goals of throughput are one
NUM_LINES = 400_000
NUM_FLOODS = 3
STEADY_BYTES_PER_S = 1024 * 1024
STEADY_S = 20.0
TROUBLE_S = 6.0  # less than a program waits for its service anywhere
MIB = 1024**2
GOAL_MIB_PER_S = 50.0
GOAL_LINES_PER_S = 200_000.0
GOAL_CPU_PERCENT = 5.0
GOAL_VISIBLE_S = 1.0
GOAL_WRITE_MS = 10.0
SETTINGS = """log_max_lines_per_s = 0
log_max_bytes_per_s = 0
[images]
"bench:*" = "bench"
[environments]
bench = "{python}"
"""


def run(quick: bool) -> Iterator[Line]:
    """Measure all cases, the peer after ours."""
    num_lines, num_floods = (50_000, 1) if quick else (NUM_LINES, NUM_FLOODS)
    seconds = 5.0 if quick else STEADY_S
    settings = SETTINGS.format(python=TRAIN_PYTHON)
    with running_service(settings) as service:
        floods = [_flood(service, f"flood-{index}", num_lines) for index in range(num_floods)]
        steady, is_right = _steady(service, "steady", seconds)
    yield from _flood_lines(floods, num_lines)
    yield from _steady_lines(steady, seconds, is_right=is_right)
    for name, trouble in TROUBLES.items():
        print(name, file=sys.stderr)
        with running_service(settings) as service:
            job, is_right = _steady(service, "steady", TROUBLE_S + 6.0, trouble=trouble)
        yield _write_line(name, job.facts, is_right=is_right)
    facts = _slow_disk(TROUBLE_S)
    yield _write_line("slow disk, 0.5 s a write", facts, is_right=facts["is_right"])


def _flood(service: BenchmarkService, name: str, num_lines: int) -> tuple[PrintedJob, bool]:
    """Return the measurements of a flood, and whether each line is in the log once, as it was printed."""
    print(name, file=sys.stderr)
    submit(service, name, f"flood {num_lines} {LINE_BYTES}")
    job = watch_to_end(service, name, reads_all=False)
    lines = [line for line in LogReader(service, name).rest() if line[:9].isdigit()]
    is_right = len(lines) == num_lines and all(
        line == flood_line(number, LINE_BYTES) for number, line in enumerate(lines)
    )
    return job, is_right


def _steady(
    service: BenchmarkService,
    name: str,
    seconds: float,
    *,
    trouble: Callable[[BenchmarkService], None] = lambda _: None,
) -> tuple[PrintedJob, bool]:
    """Return the measurements of a steady job, and whether each line is in the log once."""
    print(f"{name} for {seconds:g} s", file=sys.stderr)
    submit(service, name, f"steady {seconds:g} {STEADY_BYTES_PER_S}")
    job = watch_to_end(service, name, reads_all=True, at_begin=lambda: trouble(service))
    numbers = [int(line[:9]) for line in LogReader(service, name).rest() if line[:9].isdigit()]
    return job, numbers == list(range(job.facts["num_lines"]))


def _freeze(service: BenchmarkService) -> None:
    process = service_pid(service)
    os.kill(process, signal.SIGSTOP)
    try:
        time.sleep(TROUBLE_S)
    finally:
        os.kill(process, signal.SIGCONT)


def _kill(service: BenchmarkService) -> None:
    os.kill(service_pid(service), signal.SIGKILL)
    time.sleep(TROUBLE_S)
    service.start_again()


def _refuse_writes(service: BenchmarkService) -> None:
    """Have the kernel refuse every growing file of the service: its log store, and its database, as on a full disk."""
    process = service_pid(service)
    before = resource.prlimit(process, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        time.sleep(TROUBLE_S)
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, before)


TROUBLES: dict[str, Callable[[BenchmarkService], None]] = {
    "service frozen": _freeze,
    "service killed": _kill,
    "store refuses": _refuse_writes,
}


def _slow_disk(seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.sight.log_slow_disk", str(seconds), str(STEADY_BYTES_PER_S)]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    facts: dict[str, Any] = json.loads(completed.stdout)
    return facts


def _flood_lines(floods: list[tuple[PrintedJob, bool]], num_lines: int) -> Iterator[Line]:
    took_s = [job.seen_at - job.began_at for job, _ in floods]
    peer = syslog_ng_version()
    print("peers", file=sys.stderr)
    peer_s = syslog_ng_seconds(num_lines, LINE_BYTES) if peer is not None else None
    cat_s = cat_seconds(num_lines, LINE_BYTES)
    cpu_s = {
        "agent_cpu_s": median_and_spread([job.agent_cpu_s for job, _ in floods])[0],
        "service_cpu_s": median_and_spread([job.service_cpu_s for job, _ in floods])[0],
    }
    slowest_ms = max(job.facts["slowest_write_s"] for job, _ in floods) * 1000
    for metric, unit, amount, goal in (
        ("mib_per_s", "MiB/s", num_lines * LINE_BYTES / MIB, GOAL_MIB_PER_S),
        ("lines_per_s", "1/s", float(num_lines), GOAL_LINES_PER_S),
    ):
        ours, spread = median_and_spread([amount / seconds for seconds in took_s])
        yield Line(
            case=f"flood,lines={num_lines},line_bytes={LINE_BYTES}",
            metric=metric,
            unit=unit,
            better="higher",
            ours=ours,
            peers={peer: amount / peer_s} if peer is not None and peer_s is not None else {},
            peer_note="two processes, disk buffer, TCP, file; neither numbers nor acknowledges lines",
            bound=amount / cat_s,
            bound_note="cat from the same program's pipe to a file, fsync",
            goal=f">= {goal:g}",
            met=ours >= goal,
            samples=len(floods),
            spread=spread,
            verified=all(is_right for _, is_right in floods),
            details={**cpu_s, "slowest_write_ms": slowest_ms, "load_average": os.getloadavg()[0]},
        )


def _steady_lines(job: PrintedJob, seconds: float, *, is_right: bool) -> Iterator[Line]:
    took_s = job.seen_at - job.began_at
    cpu_percent = 100 * job.agent_cpu_s / took_s
    case = f"steady,bytes_per_s={STEADY_BYTES_PER_S},line_bytes={STEADY_LINE_BYTES},seconds={seconds:g}"
    yield Line(
        case=case,
        metric="agent_cpu_percent",
        unit="% of a core",
        better="lower",
        ours=cpu_percent,
        goal=f"<= {GOAL_CPU_PERCENT:g}",
        met=cpu_percent <= GOAL_CPU_PERCENT,
        verified=is_right,
        details={"service_cpu_percent": 100 * job.service_cpu_s / took_s, "load_average": os.getloadavg()[0]},
    )
    visible_s = sorted(job.visible_s)
    p99_s = visible_s[len(visible_s) * 99 // 100]
    yield Line(
        case=case,
        metric="p99_visible_s",
        unit="s",
        better="lower",
        ours=p99_s,
        goal=f"<= {GOAL_VISIBLE_S:g}",
        met=p99_s <= GOAL_VISIBLE_S,
        samples=len(visible_s),
        verified=is_right,
        details={"p50_s": visible_s[len(visible_s) // 2], "max_s": visible_s[-1]},
    )
    yield _write_line("healthy", job.facts, is_right=is_right)


def _write_line(trouble: str, facts: dict[str, Any], *, is_right: bool) -> Line:
    return Line(
        case=f"steady,bytes_per_s={STEADY_BYTES_PER_S},{trouble}",
        metric="longest_write_ms",
        unit="ms",
        better="lower",
        ours=facts["max_ms"],
        peer_note="max_of_waiting_ms counts writes that waited for their reader, not those that waited for a processor",
        goal=f"<= {GOAL_WRITE_MS:g}",
        met=facts["max_ms"] <= GOAL_WRITE_MS,
        samples=facts["num_lines"],
        verified=is_right,
        details={name: facts[name] for name in ("p50_ms", "p99_ms", "max_of_waiting_ms", "num_over_10_ms")},
    )
