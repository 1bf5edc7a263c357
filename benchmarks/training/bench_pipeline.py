"""Idle time of the ranks of a pipeline, against the formula of its schedule, ours beside torch's.

Four ranks of one host over gloo. Compute is emulated: stages sleep in the forward pass, in the gradient of the input
and in that of the weight, all alike, so that four ranks on two cores do not wait for processors; a whole backward takes
twice a forward. Schedules with two stages a rank have stages half as slow: the model is the same. A step is timed on
the rank that takes longest, all having begun together; ours ends with all ranks having told that they are done.

    idle = 1 - what a rank sleeps in a step / the step
    bound = the same where nothing but the sleeps took time, from `simulate`

CLARY_BENCH_PICTURES names a folder that gets a picture of the last step of every case.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from benchmarks.lines import ROOT, Line, median_and_spread
from benchmarks.service import TRAIN_PYTHON
from clary.train.parallel.pipeline.schedule import Kind, simulate
from clary.train.parallel.pipeline.schedules import gpipe, interleaved, one_f_one_b, zb1p
from clary.train.parallel.pipeline.zero_bubble import zbv

NUM_RANKS = 4
MICROBATCHES = (4, 8, 16)
PASS_S = 0.024  # forward, gradient of the input, gradient of the weight: each, of all stages of a rank together
NUM_STEPS = 5
GOAL_POINTS = 3.0
SCHEDULES = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": lambda num_ranks, count: interleaved(num_ranks, count, stages_a_rank=2),
    "zb1p": zb1p,
    "zbv": zbv,
}
PASSES = {Kind.FORWARD: 1.0, Kind.BACKWARD: 2.0, Kind.INPUT: 1.0, Kind.WEIGHT: 1.0}
END_LIMIT_S = 30.0


def run(quick: bool) -> Iterator[Line]:
    """Measure every schedule with every number of microbatches."""
    plan = {
        "schedules": list(SCHEDULES),
        "microbatches": MICROBATCHES[:1] if quick else MICROBATCHES,
        "pass_s": PASS_S,
        "steps": 1 if quick else NUM_STEPS,
        "pictures": os.environ.get("CLARY_BENCH_PICTURES"),
    }
    with tempfile.TemporaryDirectory(prefix="clary-pipeline-") as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        command = [str(TRAIN_PYTHON), "-m", "benchmarks.training.pipeline_rank"]
        ranks = [
            subprocess.Popen(
                [*command, str(rank), str(NUM_RANKS), folder, json.dumps(plan)],
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                text=True,
                env=environment,
                cwd=ROOT,
            )
            for rank in range(NUM_RANKS)
        ]
        try:
            assert ranks[0].stdout is not None
            for text in ranks[0].stdout:
                found = json.loads(text)
                print(f"{found['schedule']}, {found['microbatches']} microbatches", file=sys.stderr)
                yield _line(found)
            codes = [rank.wait(END_LIMIT_S) for rank in ranks]
            if any(codes):
                raise RuntimeError(f"the ranks of the pipeline ended with {codes}; their words are above")
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


def _line(found: dict[str, Any]) -> Line:
    name, num_microbatches = found["schedule"], found["microbatches"]
    simulated = simulate(SCHEDULES[name](NUM_RANKS, num_microbatches), lambda action: PASSES[action.kind])
    busy_s = 3 * PASS_S * num_microbatches
    idle = {who: [100 * (1 - busy_s / step_s) for step_s in seconds] for who, seconds in found["seconds"].items()}
    bound = 100 * max(simulated.idle)
    ours, spread = median_and_spread(idle["ours"])
    return Line(
        case=f"schedule={name},ranks={NUM_RANKS},microbatches={num_microbatches}",
        metric="idle_percent",
        unit="%",
        better="lower",
        ours=ours,
        peers={"torch.distributed.pipelining": statistics.median(idle["torch"])},
        peer_note="the schedule of the same name; zb1p is ScheduleInterleavedZeroBubble with one stage a rank",
        bound=bound,
        bound_note="the simulated schedule: sleeps alone take time",
        goal=f"<= bound + {GOAL_POINTS:g} points",
        met=ours <= bound + GOAL_POINTS,
        samples=len(idle["ours"]),
        spread=spread,
        verified=found["same"],
        details={
            "step_s": {who: statistics.median(seconds) for who, seconds in found["seconds"].items()},
            "points_above_bound": {who: statistics.median(values) - bound for who, values in idle.items()},
            "least_points_above_bound": {who: min(values) - bound for who, values in idle.items()},
            "load": os.getloadavg()[0],
        },
    )
