"""A job under a trace of spot capacity: the cost of a step, and the share of the possible steps that it took.

Four hosts take steps as in `goodput`; the service plays the trace `time_scale` times as fast as it was. The oracle
takes a step in every moment in which the trace has enough hosts, at the rate of this job while nothing strikes it, and
loses none. The cost ratio is what the job is billed for over what the oracle's hosts would cost on demand for the same
steps; with a goodput of g it is the spot fraction over g. Starts and stops do not shrink with the trace: at 60 an hour
is a minute, and an interruption costs 60 times its share.

Verified: every step has the state that it has without interruptions (`step_history`), training time is the sum over
attempts, billable time and savings are the documented formulas of it to the bit.

CLARY_BENCH_TRACE names a file of github.com/skypilot-org/spot-traces in place of the generated one; CLARY_BENCH_HOURS
(of the trace, 24) and CLARY_BENCH_SCALE (60) stand in place of the usual ones.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.job_life.spot_traces import Trace, generate, load
from benchmarks.job_life.stepping_job import INSTANCE_TYPE, LONG_S, SteppingJob
from benchmarks.job_life.stepping_program import PROGRAM, SCRIPT
from benchmarks.jobs import BenchmarkJobs
from benchmarks.lines import Line
from benchmarks.service import BenchmarkService, running_service
from benchmarks.training.step_history import History, history

MOST_HOSTS = 4
STEP_S = 0.2
SAVE_EVERY = 1
SPOT_FRACTION = 0.3
HOURS, TIME_SCALE, SEED = 24.0, 60.0, 11
QUICK_HOURS, QUICK_SCALE = 2.0, 120.0
GOAL_GOODPUT = 0.95


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The job at its end."""

    steps: History
    available_s: float  # real seconds with enough hosts, from the begin of the first step to the end of the trace
    facts: dict[str, Any]  # what Describe says
    page: dict[str, Any]  # what `clary describe --json` says
    problems: tuple[str, ...]


def run(quick: bool) -> Iterator[Line]:
    """Play one trace."""
    scale = QUICK_SCALE if quick else float(os.environ.get("CLARY_BENCH_SCALE", TIME_SCALE))
    hours = QUICK_HOURS if quick else float(os.environ.get("CLARY_BENCH_HOURS", HOURS))
    path = os.environ.get("CLARY_BENCH_TRACE", "")
    trace = load(Path(path)).cut(hours) if path else generate(hours=hours, num_hosts=MOST_HOSTS, seed=SEED)
    num_hosts = min(MOST_HOSTS, max(trace.hosts))
    if num_hosts == 0:
        raise SystemExit(f"{path}: its first {hours:g} hours have no capacity")
    with tempfile.TemporaryDirectory(prefix="clary-spot-") as folder:
        schedule, prices = Path(folder) / "trace.json", Path(folder) / "prices.json"
        schedule.write_text(trace.as_json())
        price = {"usd_per_hour": 1.0, "spot_fraction": SPOT_FRACTION}
        prices.write_text(json.dumps({"region": "bench", "types": {INSTANCE_TYPE: price}}))
        settings = {
            "spot_schedule_file": str(schedule),
            "spot_time_scale": scale,
            "prices_file": str(prices),
            "max_hosts": MOST_HOSTS,
            "memory_overcommit": 32.0,
            "stop_grace_s": 120 / scale,  # two minutes of the trace
            "checkpoint_interval_s": 0.2,
        }
        text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        with running_service(text) as service:
            print(
                f"{trace.length_s / scale:.0f} s, {trace.num_interruptions(num_hosts)} interruptions", file=sys.stderr
            )
            outcome = _play(service, trace, num_hosts, scale)
    name = Path(path).stem if path else f"generated:{SEED}"
    yield from _lines(outcome, f"trace={name},hosts={num_hosts},hours={trace.length_s / 3600:g},time_scale={scale:g}")


def _play(service: BenchmarkService, trace: Trace, num_hosts: int, scale: float) -> Outcome:
    began_s = _origin_s(service, trace, scale)
    job = SteppingJob(
        service.home,
        BenchmarkJobs(service, PROGRAM, SCRIPT),
        "spot",
        num_hosts=num_hosts,
        step_s=STEP_S,
        save_every=SAVE_EVERY,
        EnableManagedSpotTraining=True,
        StoppingCondition={"MaxRuntimeInSeconds": LONG_S, "MaxWaitTimeInSeconds": LONG_S},
    )
    end_s = began_s + trace.length_s / scale
    job.wait_for(lambda _: time.monotonic() >= end_s, limit_s=end_s - time.monotonic() + 60)
    facts = job.stop()
    steps = history(job.lines, num_hosts=num_hosts)
    first_s = min(line.at_s for line in job.lines) - steps.step_s
    available_s = trace.available_s(num_hosts, (first_s - began_s) * scale, trace.length_s) / scale
    page = json.loads(service.clary("describe", job.name, "--json"))
    problems = (*steps.problems, *_bill_problems(facts, page))
    return Outcome(steps=steps, available_s=available_s, facts=facts, page=page, problems=problems)


def _origin_s(service: BenchmarkService, trace: Trace, scale: float) -> float:
    """Return the monotonic time of the trace's second 0: the service says when capacity changes next."""
    left_s = json.loads(service.clary("spot", "status", "--json"))["next_change_s"]
    now_s = time.monotonic()
    first_s = trace.next_change_s(0.0)
    if left_s is None or first_s is None:
        raise SystemExit("the trace has no change in the time that is played: name more hours or another trace")
    return float(now_s + left_s - first_s / scale)


def _bill_problems(facts: dict[str, Any], page: dict[str, Any]) -> list[str]:
    """Return a sentence for each time or amount of the bill that is not as documented."""
    training_s, billable_s = facts["TrainingTimeInSeconds"], facts["BillableTimeInSeconds"]
    rows = facts["SecondaryStatusTransitions"]
    begins = [row["StartTime"] for row in rows if row["Status"] == "Downloading"]
    ends = [*(datetime.fromisoformat(item["ended_at"]) for item in page["past_attempts"]), rows[-1]["EndTime"]]
    whole_s = 0.0
    for earlier, end in itertools.pairwise([facts["CreationTime"], *ends]):
        # An attempt that was taken back before it downloaded has no training time.
        begin = next((begin for begin in begins if earlier <= begin <= end), end)
        whole_s += (end - begin).total_seconds()
    wanted_s = max(1, round(training_s * SPOT_FRACTION))
    savings = (1 - float(billable_s) / training_s) * 100  # as sagemaker.session of both SDKs has it
    told = page["ledger"]["bill"]
    problems = []
    if abs(whole_s - training_s) > 1:
        problems.append(f"attempts add up to {whole_s:.2f} s: TrainingTimeInSeconds is {training_s}")
    if billable_s != wanted_s:
        problems.append(f"BillableTimeInSeconds: expected {wanted_s} for {training_s} s, got {billable_s}")
    if (told["training_s"], told["billable_s"], told["savings_percent"]) != (training_s, billable_s, savings):
        problems.append(f"the bill says {told}, Describe's figures give savings of {savings} %")
    return problems


def _lines(outcome: Outcome, case: str) -> Iterator[Line]:
    steps, facts = outcome.steps, outcome.facts
    for problem in outcome.problems:
        print(f"wrong: {problem}", file=sys.stderr)
    oracle_steps = outcome.available_s / steps.step_s
    goodput = steps.committed / oracle_steps
    cost_ratio = facts["BillableTimeInSeconds"] / (steps.committed * steps.step_s)
    details = {
        "committed": steps.committed,
        "lost": steps.lost,
        "losses": list(steps.losses),
        "oracle_steps": round(oracle_steps, 1),
        "available_s": round(outcome.available_s, 1),
        "training_s": facts["TrainingTimeInSeconds"],
        "billable_s": facts["BillableTimeInSeconds"],
        "savings_percent": outcome.page["ledger"]["bill"]["savings_percent"],
        "ledger": outcome.page["ledger"]["seconds"],
        "problems": list(outcome.problems)[:5],
    }
    yield Line(
        case=case,
        metric="committed_fraction",
        unit="",
        better="higher",
        ours=goodput,
        peer_note="none: no peer plays traces on one machine",
        bound=1.0,
        bound_note="the oracle: a step in every moment with enough hosts, at this job's own rate",
        goal=f">= {GOAL_GOODPUT}",
        met=goodput >= GOAL_GOODPUT,
        samples=len(steps.losses),
        verified=not outcome.problems,
        details=details,
    )
    yield Line(
        case=case,
        metric="cost_ratio",
        unit="",
        better="lower",
        ours=cost_ratio,
        peer_note="on demand without interruptions is 1",
        bound=SPOT_FRACTION,
        bound_note="the price of spot capacity over that on demand",
        goal=f"<= {SPOT_FRACTION} / {GOAL_GOODPUT}",
        met=cost_ratio <= SPOT_FRACTION / GOAL_GOODPUT,
        samples=len(steps.losses),
        verified=not outcome.problems,
    )
