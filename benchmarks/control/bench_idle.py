"""Load of the machine by a service with nothing to do: percent of one core, fresh and after jobs.

Prediction, written before the first change: 0.9 % fresh and 4.4 % after jobs and a restart become 0.45 % in both, since
what is left is the store's own timers (a hundred wake-ups a second of Go's scheduler) and three wake-ups of ours.
Prediction, written before the second (no reporter of crashes in the store, tasks of ours that sleep until there is a
job): 0.64 % becomes 0.3 %, of which 0.05 % is ours; 130 wake-ups a second of the store become 60, four of ours two.
Prediction, written before the third (no change of the product, a day's jobs in place of six): below 0.45 % after them,
since neither the store nor the service wakes for what has ended.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.lines import Line
from benchmarks.service import TRAIN_PYTHON, BenchmarkService, running_service
from benchmarks.sight.log_job import client, submit

MEASURED_S = 600.0
QUICK_S = 20.0
NUM_JOBS = 60  # what a busy day of one person brings
JOB_LIMIT_S = 120.0
UPLOADED_BYTES = 256 << 20  # as much as makes the store's caches fill
PIECE_BYTES = 32 << 20
GOAL_PERCENT = 0.5
SETTLE_S = 20.0
SETTINGS = """[images]
"bench:*" = "bench"
[environments]
bench = "{python}"
"""


def run(quick: bool) -> Iterator[Line]:
    """Measure a fresh service, one that has run jobs, and the same after a restart."""
    seconds = QUICK_S if quick else MEASURED_S
    with running_service(SETTINGS.format(python=TRAIN_PYTHON)) as service:
        yield _line(service, "fresh", seconds)
        for index in range(1 if quick else NUM_JOBS):
            _run_job(service, f"idle-{index}")
        store = client(service, "s3")
        for number in range(UPLOADED_BYTES // PIECE_BYTES):
            store.put_object(Bucket="clary", Key=f"bench/piece-{number}", Body=bytes(PIECE_BYTES))
            store.get_object(Bucket="clary", Key=f"bench/piece-{number}")["Body"].read()
        yield _line(service, "after jobs", seconds)
        service.clary("down")
        service.start_again()
        yield _line(service, "after a restart", seconds)


def _line(service: BenchmarkService, case: str, seconds: float) -> Line:
    time.sleep(SETTLE_S)
    pids = {"service": _service_pid(service.home), "store": _store_pid(service.home)}
    before_s, began_s = {name: _cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
    wakes_before = {name: _num_wakes(pid) for name, pid in pids.items()}
    time.sleep(seconds)
    passed_s = time.monotonic() - began_s
    shares = {name: round(100 * (_cpu_s(pid) - before_s[name]) / passed_s, 3) for name, pid in pids.items()}
    wakes = {f"{name}_wakes_a_second": (_num_wakes(pid) - wakes_before[name]) / passed_s for name, pid in pids.items()}
    total = round(sum(shares.values()), 3)
    return Line(
        case=case,
        metric="processor",
        unit="percent of a core",
        better="lower",
        ours=total,
        bound=0.0,
        bound_note="a service that does nothing",
        goal=f"below {GOAL_PERCENT} %",
        met=total < GOAL_PERCENT,
        verified=all(_cpu_s(pid) > 0 for pid in pids.values()),
        details={
            **shares,
            **{name: round(rate, 1) for name, rate in wakes.items()},
            "seconds": round(passed_s, 1),
            "load": os.getloadavg()[0],
        },
    )


def _run_job(service: BenchmarkService, name: str) -> None:
    submit(service, name, "steady 1")
    deadline_s = time.monotonic() + JOB_LIMIT_S
    while time.monotonic() < deadline_s:
        status = client(service, "sagemaker").describe_training_job(TrainingJobName=name)["TrainingJobStatus"]
        if status != "InProgress":
            return
        time.sleep(0.5)
    raise SystemExit(f"{name} has not ended within {JOB_LIMIT_S:g} s")


def _service_pid(home: Path) -> int:
    return int(json.loads((home / "run" / "service.json").read_text())["pid"])


def _store_pid(home: Path) -> int:
    return int(json.loads((home / "run" / "seaweed.json").read_text())["process"]["pid"])


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _num_wakes(pid: int) -> int:
    """Return how often the threads that a process has now have been woken."""
    texts = (path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status"))
    return sum(int(text.partition("voluntary_ctxt_switches:")[2].split()[0]) for text in texts)
