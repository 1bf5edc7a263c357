"""From the death of a host to the next step of its job, in parts, beside torchrun with the same script.

Two hosts with two ranks each take steps of 0.1 s that end with an all_reduce over gloo; rank 0 of each host writes the
step down after every twentieth. All of the second host is killed at once, its agent too. Ours finds out, replaces the
host, restores the checkpoint from the object store and goes on. torchrun (`--max-restarts`, c10d rendezvous) has its
second agent started again by us in the very moment of the death, so that its time to find out and to replace a host
counts nothing, and its checkpoint lies in a local folder. If it gives up, both agents are started anew in that moment,
as by an outer loop: torchrun 2.13 takes the dead agent for a member of the new rendezvous, waits 60 s for it and ends.
Times are of one clock, which programs print.
"""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from benchmarks.collectives.torchrun_gang import TorchrunGang
from benchmarks.jobs import BenchmarkJobs
from benchmarks.lines import Line, median_and_spread
from benchmarks.service import BenchmarkService, running_service
from clary.testing.gangs import INSTANCE_SETTINGS, INSTANCE_TYPE, PROGRAM, Gang, has_namespaces

NUM_SAMPLES = 7
NUM_PEER_SAMPLES = 3  # a minute each
LIMIT_S = 120.0
POLL_S = 0.1
STEPS_BEFORE = 10
GOAL = "<= 0.2 of torchrun's"
PEER = "torchrun --max-restarts, two agents"
SCRIPT = """import json, os, pathlib, sys, time
import torch
import torch.distributed as dist
torch.set_num_threads(1)
folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 and os.path.isdir(sys.argv[1]) else "/opt/ml/checkpoints")
place = folder / f"step-{os.environ['GROUP_RANK']}.json"
step = json.loads(place.read_text()) if place.exists() else 0
dist.init_process_group("gloo")
value = torch.tensor([float(step)])
dist.all_reduce(value, op=dist.ReduceOp.MIN)  # the newest step that every host has
step = int(value)
(folder / f"{os.environ['GROUP_RANK']}-{os.environ['LOCAL_RANK']}").write_text(str(os.getpid()))
print("asleep", flush=True)  # what `Gang` waits for
while True:
    time.sleep(0.1)
    dist.all_reduce(torch.ones(1024))
    step += 1
    if os.environ["LOCAL_RANK"] == "0" and step % 20 == 0:
        new = place.with_suffix(".new")
        new.write_text(json.dumps(step))
        os.replace(new, place)
    if os.environ["RANK"] == "0":
        print(f"step {step} at {time.monotonic():.3f}", flush=True)
"""
_STEP = re.compile(r"step (\d+) at ([0-9.]+)")


def run(quick: bool) -> Iterator[Line]:
    """Kill hosts of jobs, then of torchrun."""
    num_samples, num_peer_samples = (2, 1) if quick else (NUM_SAMPLES, NUM_PEER_SAMPLES)
    parts: list[dict[str, float]] = []
    with running_service("checkpoint_interval_s = 1.0\n" + INSTANCE_SETTINGS) as service:
        if not has_namespaces(service.home):
            print("left out: hosts are plain processes here", file=sys.stderr)
            return
        jobs = BenchmarkJobs(service, PROGRAM, SCRIPT)
        for index in range(num_samples):
            print(f"ours: {index + 1} of {num_samples}", file=sys.stderr)
            parts.append(_recover_one(service, jobs, f"recover-{index}"))
    theirs: list[tuple[float, float | None]] = []
    for index in range(num_peer_samples):
        print(f"torchrun: {index + 1} of {num_peer_samples}", file=sys.stderr)
        theirs.append(_recover_peer())
    yield _line(parts, theirs)


def _recover_one(service: BenchmarkService, jobs: BenchmarkJobs, name: str) -> dict[str, float]:
    config = {"S3Uri": f"s3://clary/recover/{name}"}
    jobs.create(name, instance_type=INSTANCE_TYPE, CheckpointConfig=config)
    gang = Gang(service.home, name, sagemaker=jobs.sagemaker, logs=jobs.logs)
    _wait_for_step(lambda: "\n".join(jobs.log(name)), STEPS_BEFORE, after_s=0.0)
    time.sleep(5)  # until a checkpoint, one of every two seconds, is in the object store
    died_at = datetime.now().astimezone()
    died_at_s = gang.kill_agent("algo-2")  # and with it whatever runs on the host: as a machine that is gone
    step, at_s = _wait_for_step(lambda: "\n".join(jobs.log(name)), 1, after_s=died_at_s + 1.0)
    if step <= 1:
        raise SystemExit(f"{name}: went on at step {step}: no checkpoint was restored")
    facts = jobs.sagemaker.describe_training_job(TrainingJobName=name)
    jobs.sagemaker.stop_training_job(TrainingJobName=name)
    jobs.wait(name, status="Stopped")
    rows = facts["SecondaryStatusTransitions"]
    begun = {row["Status"]: row["StartTime"] for row in rows[3:]}  # of the second attempt
    moments = [died_at, *(begun[status] for status in ("Restarting", "Starting", "Downloading", "Training"))]
    seconds = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(moments)]
    names = ("detect_s", "leave_s", "replace_s", "restore_s")
    whole_s = at_s - died_at_s
    return {**dict(zip(names, seconds, strict=True)), "first_step_s": whole_s - sum(seconds), "whole_s": whole_s}


def _recover_peer() -> tuple[float, float | None]:
    """Return how long it took to the next step, and when torchrun gave up, if it did."""
    with TorchrunGang(SCRIPT, max_restarts=3) as gang:
        _wait_for_step(gang.said, STEPS_BEFORE, after_s=0.0)
        died_at_s = gang.kill_host()
        gang.replace_host()
        gave_up_s = None

        def said() -> str:
            nonlocal gave_up_s
            if gave_up_s is None and gang.has_given_up():
                gave_up_s = time.monotonic() - died_at_s
                gang.start_anew()
            return gang.said()

        _, at_s = _wait_for_step(said, 1, after_s=died_at_s + 1.0)
        return at_s - died_at_s, gave_up_s


def _wait_for_step(read: Any, at_least: int, *, after_s: float) -> tuple[int, float]:
    """Return the first step from `at_least` on that ended after a moment, and when it did."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        said = read()
        for number, at_s in _STEP.findall(said):
            if int(number) >= at_least and float(at_s) > after_s:
                return int(number), float(at_s)
        time.sleep(POLL_S)
    raise SystemExit(f"no step was taken within {LIMIT_S:g} s: {said[-2000:]}")


def _line(parts: list[dict[str, float]], theirs: list[tuple[float, float | None]]) -> Line:
    whole_s, spread = median_and_spread([one["whole_s"] for one in parts])
    peer_s, _ = median_and_spread([whole for whole, _ in theirs])
    middles = {name: round(median_and_spread([one[name] for one in parts])[0], 3) for name in parts[0]}
    return Line(
        case="host,hosts=2,ranks=4",
        metric="death_to_next_step_s",
        unit="s",
        better="lower",
        ours=whole_s,
        peers={PEER: peer_s},
        peer_note="its dead agent is started again at once by us; ours finds out and replaces hosts by itself",
        goal=GOAL,
        met=whole_s <= 0.2 * peer_s,
        samples=len(parts),
        spread=spread,
        verified=True,
        details={
            "parts": middles,
            "peer_whole_s": [one for one, _ in theirs],
            "peer_gave_up_s": [one for _, one in theirs],
        },
    )
