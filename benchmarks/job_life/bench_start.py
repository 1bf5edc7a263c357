"""From CreateTrainingJob to the first line of user code, in parts, against `torchrun --standalone` of the same script.

The script prints the time in its first statement, before it imports anything large. `first` is the first job of a
service that has just started; `second` is every later one. Two hosts with two ranks each here; torchrun starts two
ranks on one host, without a service, a queue, an upload or logs: it is the least that any launcher needs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.jobs import TIMEOUT_S, BenchmarkJobs
from benchmarks.lines import Line, median_and_spread
from benchmarks.service import TRAIN_PYTHON, running_service

SCRIPT = """import time
import os
os.write(1, f"FIRST {time.time():.6f}\\n".encode())  # one write: lines of two ranks must not mix
"""
NUM_SAMPLES = 7


def run(quick: bool) -> Iterator[Line]:
    """Measure the first job and later ones, alternating with torchrun."""
    num_samples = 2 if quick else NUM_SAMPLES
    with running_service() as service:
        jobs = BenchmarkJobs(service, "first.py", SCRIPT)
        samples = []
        theirs = []
        for index in range(num_samples + 1):
            print(f"job {index} of {num_samples}", file=sys.stderr)
            samples.append(_submit(jobs, f"start-{index}"))
            theirs.append(_torchrun())
    peer, _ = median_and_spread(theirs)
    for case, chosen in (("first", samples[:1]), ("second", samples[1:])):
        ours, spread = median_and_spread([sample["submit_to_first_line_s"] for sample in chosen])
        yield Line(
            case=f"{case},hosts=2,ranks=4",
            metric="submit_to_first_line_s",
            unit="s",
            better="lower",
            ours=ours,
            peers={"torchrun --standalone": peer},
            goal="< 10 s first, < 2 s second",
            met=ours < (10 if case == "first" else 2),
            samples=len(chosen),
            spread=spread,
            verified=all(sample["is_right"] for sample in chosen),
        )
        for part in chosen[0]["parts"]:
            middle, part_spread = median_and_spread([sample["parts"][part] for sample in chosen])
            yield Line(
                case=f"{case},part:{part}",
                metric="seconds",
                unit="s",
                better="lower",
                ours=middle,
                peer_note="a part of submit_to_first_line_s",
                samples=len(chosen),
                spread=part_spread,
                verified=True,
            )


def _submit(jobs: BenchmarkJobs, name: str) -> dict[str, Any]:
    submitted_at = time.time()
    jobs.create(name)
    accepted_at = time.time()
    facts = jobs.wait(name, status="Completed")
    firsts = [float(line.split()[1]) for line in jobs.log(name) if line.startswith("FIRST ")]
    began = {row["Status"]: row["StartTime"].timestamp() for row in facts["SecondaryStatusTransitions"]}
    return {
        "submit_to_first_line_s": max(firsts) - submitted_at,
        "is_right": len(firsts) == 4,
        "parts": {
            "accept": accepted_at - submitted_at,
            "hosts": began["Downloading"] - accepted_at,
            "prepare": began["Training"] - began["Downloading"],
            "program": max(firsts) - began["Training"],
            "after_first_line": facts["TrainingEndTime"].timestamp() - max(firsts),
        },
    }


def _torchrun() -> float:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "first.py"
        script.write_text(SCRIPT)
        started_at = time.time()
        completed = subprocess.run(
            [str(TRAIN_PYTHON), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)],
            capture_output=True,
            text=True,
            check=True,
            timeout=TIMEOUT_S,
        )
    return max(float(line.split()[1]) for line in completed.stdout.splitlines()) - started_at
