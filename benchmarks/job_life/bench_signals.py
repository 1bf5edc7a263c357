"""From the first to the last handler of SIGTERM on two hosts with two ranks each, and how often each handler ran.

The program has torch_distributed's variables and no torch. Each rank says when its handler ran; it stays for a while
after that, so that a signal which something forwards once more would be counted.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator

from benchmarks.jobs import BenchmarkJobs
from benchmarks.lines import Line, median_and_spread
from benchmarks.service import running_service

SCRIPT = """import json, os, signal, time
times = []
signal.signal(signal.SIGTERM, lambda *_: times.append(time.time()))
os.write(1, b"READY\\n")
while not times:
    time.sleep(0.001)
time.sleep(1.0)
os.write(1, f"TIMES {json.dumps(times)}\\n".encode())
"""
NUM_SAMPLES = 10
NUM_RANKS = 4
GOAL_S = 1.0


def run(quick: bool) -> Iterator[Line]:
    """Stop a number of jobs."""
    num_samples = 2 if quick else NUM_SAMPLES
    samples = []
    with running_service() as service:
        jobs = BenchmarkJobs(service, "signals.py", SCRIPT)
        for index in range(num_samples):
            print(f"job {index + 1} of {num_samples}", file=sys.stderr)
            samples.append(_stop_one(jobs, f"signals-{index}"))
    spreads = [max(times) - min(times) for times in samples]
    num_handled = [len(times) for times in samples]
    middle, spread = median_and_spread(spreads)
    yield Line(
        case=f"stop,hosts=2,ranks={NUM_RANKS}",
        metric="first_to_last_handler_s",
        unit="s",
        better="lower",
        ours=middle,
        peer_note="SageMaker documents no bound",
        goal=f"< {GOAL_S:g} at most",
        met=max(spreads) < GOAL_S,
        samples=num_samples,
        spread=spread,
        verified=all(count == NUM_RANKS for count in num_handled),
        details={"max_s": max(spreads), "handlers_a_job": statistics.mean(num_handled)},
    )


def _stop_one(jobs: BenchmarkJobs, name: str) -> list[float]:
    """Return the times of all handlers' runs."""
    jobs.create(name)
    jobs.wait_for_lines(name, lambda lines: lines.count("READY") >= NUM_RANKS)
    jobs.sagemaker.stop_training_job(TrainingJobName=name)
    jobs.wait(name, status="Stopped")
    lines = [line for line in jobs.log(name) if line.startswith("TIMES ")]
    if len(lines) != NUM_RANKS:
        raise SystemExit(f"{name}: expected a line of each of {NUM_RANKS} ranks, got {lines}")
    return [moment for line in lines for moment in json.loads(line.removeprefix("TIMES "))]
