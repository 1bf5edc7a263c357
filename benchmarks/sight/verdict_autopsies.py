"""Autopsies of jobs that do not move: how often the culprit is named, and how often somebody innocent is.

Three hosts with a rank each step through all_reduce and broadcast over gloo until one of them, another one each time,
goes astray in one of six ways, or does one of three honest things for which the others wait. A moment later `clary
dump` is asked once. Right is a dump whose suspects are the culprit alone, with the cause in its words.

Where: `verdicts`.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.jobs import BenchmarkJobs
from benchmarks.lines import Line
from benchmarks.service import BenchmarkService, running_service
from clary.testing.gangs import has_namespaces

NUM_HOSTS = 3
NUM_RUNS, QUICK_RUNS = 10, 1
SETTLE_S = 4.0  # from the culprit's last word to the dump
INSTANCE_TYPE = "ml.m5.large"
PROGRAM = "train.py"
SEED = 7
GOAL = "right in 9 of 10, no false alarm"
SCRIPT = """
import os, signal, subprocess, sys, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK, CULPRIT, CASE = dist.get_rank(), int(os.environ["CULPRIT"]), os.environ["CASE"]

def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)

class Locked(torch.utils.data.Dataset):
    def __init__(self):
        self.lock = torch.multiprocessing.Lock()
    def __len__(self):
        return 8
    def __getitem__(self, index):
        self.lock.acquire()
        return index

def loader():
    for _ in torch.utils.data.DataLoader(Locked(), num_workers=1):
        pass

def read():
    os.mkfifo("/tmp/fifo")
    open("/tmp/fifo").read()

def checkpoint():
    end = time.monotonic() + 60
    with open("/tmp/checkpoint", "wb") as file:
        while time.monotonic() < end:
            file.seek(0)
            file.write(os.urandom(1 << 22))
            file.flush()
            os.fsync(file.fileno())

def compiler():
    burn = "import time; e = time.monotonic() + 60\\nwhile time.monotonic() < e: pass"
    subprocess.run([sys.executable, "-c", burn])

def evaluation():
    weights, end = torch.rand(400, 400), time.monotonic() + 60
    while time.monotonic() < end:
        weights @ weights

def astray():
    print("astray", flush=True)
    if CASE in globals():
        globals()[CASE]()

def step(number):
    is_mine = RANK == CULPRIT
    if number == 20 and is_mine and CASE not in ("skipped", "skipped_at_last", "link"):
        astray()
    if not (number == 20 and is_mine and CASE in ("skipped", "skipped_at_last")):
        dist.all_reduce(torch.ones(4))
    if not (number == 20 and is_mine and CASE == "skipped_at_last"):
        dist.broadcast(torch.ones(4), 0)
    time.sleep(0.02)

num_steps = 40 if CASE == "skipped_at_last" else 1_000_000
if RANK == CULPRIT and CASE in ("skipped", "skipped_at_last", "link"):
    print("astray", flush=True)
for number in range(num_steps):
    step(number)
dist.barrier()
dist.barrier()
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A way to hold others up; innocent if `words` are empty."""

    name: str  # as the script knows it
    words: tuple[str, ...] = ()  # one of which a right suspicion says
    names_rank: bool = True  # whether it has to name the rank


CASES = (
    Case(name="stopped", words=("stopped by a signal",)),
    Case(name="skipped", words=("left out",)),
    Case(name="skipped_at_last", words=("left out",)),  # a whole step: all operations fit until the last
    Case(name="loader", words=("data loader",)),
    Case(name="link", words=("link", "sent again"), names_rank=False),
    Case(name="read", words=("file or disk",)),
    Case(name="checkpoint"),
    Case(name="compiler"),
    Case(name="evaluation"),
)


def autopsies(num_runs: int) -> Iterator[Line]:
    """Hold jobs up in each way, so many times; a line a way."""
    draws = random.Random(SEED)
    with running_service("stop_grace_s = 2.0\n") as service:  # ranks that are held up hear no SIGTERM
        jobs = BenchmarkJobs(service, PROGRAM, SCRIPT)
        for case in CASES:
            if case.name == "link" and not has_namespaces(service.home):
                print("link: left out, hosts are plain processes here", file=sys.stderr)
                continue
            found = [
                _one(service, jobs, case, f"autopsy-{case.name.replace('_', '-')}-{index}", draws.randrange(NUM_HOSTS))
                for index in range(num_runs)
            ]
            yield _line(case, found)


def _one(service: BenchmarkService, jobs: BenchmarkJobs, case: Case, name: str, culprit: int) -> tuple[str, list[str]]:
    """Hold one job up; return the outcome, and the service's suspicions in words."""
    jobs.create(
        name,
        instance_type=INSTANCE_TYPE,
        num_hosts=NUM_HOSTS,
        Environment={"CULPRIT": str(culprit), "CASE": case.name},
    )
    jobs.wait_for_lines(name, lambda lines: any("astray" in line for line in lines))
    other = (culprit + 1) % NUM_HOSTS
    if case.name == "link":
        time.sleep(1)  # let them take some steps
        _cut(service.home / "jobs" / name / "1", f"algo-{culprit + 1}:algo-{other + 1}")
    time.sleep(SETTLE_S)
    page = json.loads(service.clary("dump", name, "--json"))
    jobs.sagemaker.stop_training_job(TrainingJobName=name)
    jobs.wait(name, status="Stopped")
    outcome, said = judged(case, page["autopsy"]["suspicions"], culprit, other)
    print(f"{name}: {outcome}: {'; '.join(said) or 'nobody suspected'}", file=sys.stderr)
    return outcome, said


def judged(case: Case, suspicions: list[dict[str, Any]], culprit: int, other: int) -> tuple[str, list[str]]:
    """Return right, wrong, missed or false alarm, and the suspicions as text. Pure."""
    suspects = [item for item in suspicions if item["weight"] == "suspect"]
    said = [f"{item['who']}: {item['why']}" for item in suspects]
    if not case.words:
        return ("false alarm" if suspects else "right"), said
    if not suspects:
        return "missed", said
    hosts = {f"algo-{culprit + 1}", f"algo-{other + 1}"} if case.name == "link" else {f"algo-{culprit + 1}"}
    for text in said:
        is_named = not case.names_rank or f"rank {culprit} on" in text
        if case.name == "link":
            is_named = all(host in text for host in hosts)
        if not is_named or not any(word in text for word in case.words):
            return "wrong", said
    return "right", said


def _cut(folder: Path, hosts: str) -> None:
    command = [sys.executable, "-m", "clary.control.engines.local.network_faults", str(folder), hosts, "down"]
    subprocess.run(command, check=True, timeout=30)


def _line(case: Case, found: list[tuple[str, list[str]]]) -> Line:
    counts = {
        name: sum(outcome == name for outcome, _ in found) for name in ("right", "wrong", "missed", "false alarm")
    }
    return Line(
        case=f"autopsy={case.name},hosts={NUM_HOSTS}",
        metric="right_share",
        unit="1",
        better="higher",
        ours=counts["right"] / len(found),
        peer_note="none: torch's flight recorder needs NCCL, py-spy alone judges nothing",
        bound=1.0,
        goal=GOAL,
        met=counts["right"] >= 0.9 * len(found) and not counts["false alarm"],
        samples=len(found),
        verified=True,
        details={**counts, "said": [said for outcome, said in found if outcome != "right"]},
    )
