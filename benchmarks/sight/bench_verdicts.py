"""Correctness of verdicts: a host of a real job is slowed or led astray on purpose, and the service must name it.

Part `stragglers`: jobs of three hosts with a rank each under DDP over gloo (`straggler_program`), where the last host

    cpu       may use 30 % of a processor
    delay     has a link of 25 ms one way, so that a round trip takes 50 ms
    disk      may read 1 MiB a second

Part `innocents`: the same jobs where nobody is slowed, all are given 30 %, all links have the delay. A verdict is right
if kind and host are; a straggler that is not found is missed; one that is named for another kind or host is wrong;
anybody who is named among innocents is a false alarm.

Part `autopsies`: jobs that do not move (`verdict_autopsies`).

CLARY_BENCH_VERDICTS names the one part to run; CLARY_BENCH_TRIES stands in place of 10 tries of each case.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.jobs import BenchmarkJobs
from benchmarks.lines import Line
from benchmarks.service import BenchmarkService, running_service
from benchmarks.sight.verdict_autopsies import NUM_RUNS, QUICK_RUNS, autopsies
from clary.testing.slow_hosts import ReadLimit, limit_processors, rank_processes

PARTS = ("stragglers", "innocents", "autopsies")
NUM_TRIES, NUM_QUICK_TRIES = 10, 2  # of each case
NUM_HOSTS = 3
HOSTS = tuple(f"algo-{number}" for number in range(1, NUM_HOSTS + 1))
SLOW_HOST = HOSTS[-1]
TRAIN_S = 120.0
LOOK_S = 30.0  # after everything of the case is in place
LIMIT_S = 90.0  # for the program to begin
CPU_SHARE = 0.3
READ_BYTES_S = 1024 * 1024
NEAR, FAR = "ml.m5.large", "ml.m5.xlarge"
SETTINGS = f"""
internet = false
[instance_types."{NEAR}"]
processes = 1
[instance_types."{FAR}"]
processes = 1
delay_ms = 25
"""
GOAL = "right in at least 9 of 10"
PROGRAM = Path(__file__).with_name("straggler_program.py")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job that is slowed in one way, and the verdict that is right for it."""

    name: str
    kind: str  # of the verdict; nobody for innocents
    types: Sequence[str] = (NEAR,) * NUM_HOSTS
    throttled: Sequence[str] = ()  # hosts
    reads_slowly: Sequence[str] = ()

    @property
    def host(self) -> str:
        """The host that the verdict should name; empty for nobody."""
        return SLOW_HOST if self.kind != "nobody" else ""


STRAGGLERS = (
    Case(name="cpu", kind="compute", throttled=(SLOW_HOST,)),
    Case(name="delay", kind="network", types=(NEAR, NEAR, FAR)),
    Case(name="disk", kind="input", reads_slowly=(SLOW_HOST,)),
)
INNOCENTS = (
    Case(name="innocent", kind="nobody"),
    Case(name="innocent,all_throttled", kind="nobody", throttled=HOSTS),
    Case(name="innocent,all_delayed", kind="nobody", types=(FAR,) * NUM_HOSTS),
)


def run(quick: bool) -> Iterator[Line]:
    """Yield a line for each case of each part."""
    part = os.environ.get("CLARY_BENCH_VERDICTS", "")
    if part not in ("", *PARTS):
        raise SystemExit(f"CLARY_BENCH_VERDICTS: expected {' or '.join(PARTS)}, got {part!r}")
    for name, cases in (("stragglers", STRAGGLERS), ("innocents", INNOCENTS)):
        if part in ("", name):
            yield from _stragglers(cases, tries=_tries(NUM_QUICK_TRIES if quick else NUM_TRIES))
    if part in ("", "autopsies"):
        yield from autopsies(_tries(QUICK_RUNS if quick else NUM_RUNS))


def _tries(usual: int) -> int:
    text = os.environ.get("CLARY_BENCH_TRIES", "") or str(usual)
    if not text.isdecimal() or int(text) < 1:
        raise SystemExit(f"CLARY_BENCH_TRIES: expected a number of tries from 1 on, got {text!r}")
    return int(text)


def _stragglers(cases: Sequence[Case], *, tries: int) -> Iterator[Line]:
    with running_service(SETTINGS) as service:
        jobs = BenchmarkJobs(service, PROGRAM.name, PROGRAM.read_text())
        for case in cases:
            outcomes: Counter[str] = Counter()
            seen = []
            for number in range(tries):
                verdict = _verdict(service, jobs, case, f"{case.name.replace(',', '-').replace('_', '-')}-{number}")
                outcome = outcome_of(case, verdict)
                outcomes[outcome] += 1
                seen.append(f"{outcome}: {verdict['text']}")
                print(f"# {case.name} {number}: {seen[-1]}", file=sys.stderr, flush=True)
            yield line_of(case, outcomes, seen)


def outcome_of(case: Case, verdict: Mapping[str, Any]) -> str:
    """Return right, wrong, missed or false alarm."""
    if case.kind == "nobody":
        return "false alarm" if verdict["is_found"] else "right"
    if not verdict["is_found"]:
        return "missed"
    return "right" if (verdict["kind"], verdict["host"]) == (case.kind, case.host) else "wrong"


def line_of(case: Case, outcomes: Mapping[str, int], seen: Sequence[str]) -> Line:
    """Return the line of a case."""
    tries = sum(outcomes.values())
    share = outcomes.get("right", 0) / tries
    return Line(
        case=f"stragglers,{case.name}",
        metric="right",
        unit="share",
        better="higher",
        ours=share,
        goal=GOAL,
        met=share >= 0.9,
        samples=tries,
        verified=True,
        details={"outcomes": dict(outcomes), "verdicts": list(seen)},
    )


def _verdict(service: BenchmarkService, jobs: BenchmarkJobs, case: Case, name: str) -> dict[str, Any]:
    groups = [
        {"InstanceGroupName": f"group-{number}", "InstanceType": kind, "InstanceCount": 1}
        for number, kind in enumerate(case.types)
    ]
    jobs.create(
        name,
        ResourceConfig={"InstanceGroups": groups, "VolumeSizeInGB": 5},
        HyperParameters={
            **jobs.program,
            "sagemaker_torch_distributed_enabled": "true",
            "sagemaker_distribution_instance_groups": json.dumps([group["InstanceGroupName"] for group in groups]),
        },
        Environment={"SECONDS_TO_TRAIN": str(TRAIN_S)},
    )
    try:
        _wait_for_ranks(jobs, name)
        with contextlib.ExitStack() as stack:
            _slow_down(case, name, stack)
            time.sleep(LOOK_S)
            page: dict[str, Any] = json.loads(service.clary("stragglers", name, "--json"))
        return dict(page["verdict"])
    finally:
        jobs.sagemaker.stop_training_job(TrainingJobName=name)
        jobs.wait(name, status="Stopped")


def _wait_for_ranks(jobs: BenchmarkJobs, name: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while sum("trains" in line for line in jobs.log(name)) < NUM_HOSTS:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{name}: {NUM_HOSTS} ranks did not begin to train in {LIMIT_S:g} s: {jobs.log(name)}")
        time.sleep(0.5)


def _slow_down(case: Case, name: str, stack: contextlib.ExitStack) -> None:
    for host in case.throttled:
        for pid in rank_processes(name, host):
            limit_processors(pid, share=CPU_SHARE)
    for host in case.reads_slowly:
        # Below it lies /opt/ml of the hosts.
        limit = stack.enter_context(ReadLimit(f"clary-{name}", Path("/tmp"), bytes_s=READ_BYTES_S))
        limit.add(list(rank_processes(name, host)))
