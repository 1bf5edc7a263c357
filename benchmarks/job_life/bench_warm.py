"""From CreateTrainingJob to the first line and to the first all_reduce, with cold and with warm hosts, and torchrun.

Two hosts with two ranks each run a script that prints the time in its first statement, imports torch, meets over gloo
and prints the time of its first all_reduce; a job's time is that of its slowest rank. Cold: hosts, processes and
interpreters are made for the job. Warm: ResourceConfig.KeepAlivePeriodInSeconds keeps the hosts of the job before, and
DescribeTrainingJob says of that job that its hosts were reused by this one, or the line is not verified. Both kinds of
jobs have another volume size, so that a cold one cannot match the warm hosts. torchrun starts four ranks on one host,
without a service, a queue, an upload or logs. All three take turns.

The page cache is warm in all cases: `page_cache=dropped` with CLARY_BENCH_DROP_CACHES=1, which drops it before each
cold job and each torchrun (root; slows down everything else on the machine). Objects that are read are counted in a
run of its own, with a gateway before the store.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.counting_store import counting_store
from benchmarks.jobs import BUCKET, TIMEOUT_S, BenchmarkJobs
from benchmarks.lines import Line, median_and_spread
from benchmarks.service import TRAIN_PYTHON, running_service
from clary.testing.gangs import INSTANCE_SETTINGS, INSTANCE_TYPE

PROGRAM = "warm.py"
SCRIPT = """import os, time
os.write(1, f"FIRST {time.time():.6f}\\n".encode())  # one write: lines of two ranks must not mix
import torch
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
took = f"REDUCED {time.time():.6f} {int(ones)}\\n"
os.write(1, took.encode())
dist.barrier()
dist.destroy_process_group()
"""
NUM_RANKS = 4
NUM_SAMPLES = 20
KEEP_ALIVE_S = 600
SETTLE_S = 6.0  # hosts that were kept make themselves ready for the next job while nobody waits
SETTINGS = "max_hosts = 8\nmemory_overcommit = 32.0\n" + INSTANCE_SETTINGS
COLD_GB, WARM_GB = 31, 30
NUM_OBJECTS, OBJECT_BYTES = 20, 64 * 1024
DATA = "bench/warm-data/"
PEER = "torchrun --standalone --nproc-per-node=4"
GOALS_S = {"first_line": 0.15, "first_allreduce": 0.3}
MIN_CUT, MIN_RATIO = 0.95, 10.0


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of four ranks."""

    first_line: float  # seconds from submission to the last rank's
    first_allreduce: float
    problem: str = ""


def run(quick: bool) -> Iterator[Line]:
    """Measure cold starts, warm starts and torchrun in turns, then count the objects read."""
    num_samples = 2 if quick else NUM_SAMPLES
    drops = os.environ.get("CLARY_BENCH_DROP_CACHES") == "1"
    with running_service(SETTINGS) as service:
        jobs = BenchmarkJobs(service, PROGRAM, SCRIPT)
        _put_data(jobs)
        cold: list[Start] = []
        warm: list[Start] = []
        theirs: list[Start] = []
        _submit(jobs, "cold-first", COLD_GB)  # what only the first job of a service pays counts for nobody
        before = "warm-first"
        _submit(jobs, before, WARM_GB)
        for index in range(num_samples):
            print(f"{index + 1} of {num_samples}", file=sys.stderr)
            _drop_caches(drops)
            cold.append(_submit(jobs, f"cold-{index}", COLD_GB))
            _drop_caches(drops)
            theirs.append(_torchrun())
            _wait_for_pool(jobs, before)
            name = f"warm-{index}"
            warm.append(_submit(jobs, name, WARM_GB, reused=before))
            before = name
        _give_back(jobs, before)
    note = "page_cache=dropped" if drops else "page_cache=warm"
    yield from _lines(cold, warm, theirs, note)
    yield _count_reads()


def _submit(jobs: BenchmarkJobs, name: str, volume_gb: int, *, reused: str = "") -> Start:
    """Run one job to its end; `reused` names the job whose hosts it has to get."""
    keep = {"KeepAlivePeriodInSeconds": KEEP_ALIVE_S} if volume_gb == WARM_GB else {}
    resources = {"InstanceCount": 2, "InstanceType": INSTANCE_TYPE, "VolumeSizeInGB": volume_gb, **keep}
    source = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": f"s3://{BUCKET}/{DATA}"}}
    submitted_at = time.time()
    jobs.create(
        name,
        ResourceConfig=resources,
        InputDataConfig=[{"ChannelName": "training", "DataSource": source}],
    )
    jobs.wait(name, status="Completed")
    lines = jobs.log(name)
    return _start(lines, submitted_at, problem=_pool_problem(jobs, reused, name) if reused else "")


def _start(lines: Sequence[str], submitted_at: float, *, problem: str = "") -> Start:
    firsts = [float(line.split()[1]) for line in lines if line.startswith("FIRST ")]
    reduced = [line.split()[1:] for line in lines if line.startswith("REDUCED ")]
    sums = [int(total) for _, total in reduced]
    if len(firsts) != NUM_RANKS or sums != [NUM_RANKS] * NUM_RANKS:
        problem = f"expected {NUM_RANKS} first lines and sums of {NUM_RANKS}, got {len(firsts)} and {sums}"
    return Start(
        first_line=max(firsts, default=submitted_at) - submitted_at,
        first_allreduce=max((float(at) for at, _ in reduced), default=submitted_at) - submitted_at,
        problem=problem,
    )


def _pool_problem(jobs: BenchmarkJobs, before: str, name: str) -> str:
    status = _pool_status(jobs, before)
    is_reused = (status.get("Status"), status.get("ReusedByJob")) == ("Reused", name)
    return "" if is_reused else f"{name} was not warm: WarmPoolStatus of {before} is {status}"


def _wait_for_pool(jobs: BenchmarkJobs, name: str) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while _pool_status(jobs, name).get("Status") != "Available":
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{name}: expected WarmPoolStatus Available, got {_pool_status(jobs, name)}")
        time.sleep(0.1)
    time.sleep(SETTLE_S)


def _pool_status(jobs: BenchmarkJobs, name: str) -> dict[str, Any]:
    facts: dict[str, Any] = jobs.sagemaker.describe_training_job(TrainingJobName=name)
    status: dict[str, Any] = facts.get("WarmPoolStatus", {})
    return status


def _give_back(jobs: BenchmarkJobs, name: str) -> None:
    if _pool_status(jobs, name).get("Status") == "Available":
        jobs.sagemaker.update_training_job(TrainingJobName=name, ResourceConfig={"KeepAlivePeriodInSeconds": 0})


def _torchrun() -> Start:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / PROGRAM
        script.write_text(SCRIPT)
        command = [str(TRAIN_PYTHON), "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={NUM_RANKS}"]
        started_at = time.time()
        completed = subprocess.run(
            [*command, str(script)], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
        )
    return _start(completed.stdout.splitlines(), started_at)


def _count_reads() -> Line:
    """Run one job twice without a warm host in between, and count the objects that the second reads."""
    print("counting reads", file=sys.stderr)
    with counting_store(BUCKET) as store, running_service(store.settings + SETTINGS) as service:
        jobs = BenchmarkJobs(service, PROGRAM, SCRIPT)
        _put_data(jobs)
        reads: list[list[str]] = []
        problems = []
        for name in ("read-first", "read-second"):
            since = len(store.requests)
            problems.append(_submit(jobs, name, COLD_GB).problem)
            reads.append(store.objects_read(since))
    return Line(
        case=f"objects,second_run,channel={NUM_OBJECTS}",
        metric="object_gets",
        unit="",
        better="lower",
        ours=len(reads[1]),
        peer_note="the first run of the same job reads what it has to",
        goal="0",
        met=not reads[1],
        verified=not any(problems) and len(reads[0]) >= NUM_OBJECTS,
        details={"first_run": len(reads[0]), "second_run": sorted(set(reads[1]))[:10]},
    )


def _put_data(jobs: BenchmarkJobs) -> None:
    for index in range(NUM_OBJECTS):
        jobs.s3.put_object(Bucket=BUCKET, Key=f"{DATA}{index:03}.bin", Body=os.urandom(OBJECT_BYTES))


def _drop_caches(is_wanted: bool) -> None:
    if is_wanted:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")


def _lines(cold: list[Start], warm: list[Start], theirs: list[Start], note: str) -> Iterator[Line]:
    for start in (*cold, *warm, *theirs):
        if start.problem:
            print(f"wrong: {start.problem}", file=sys.stderr)
    for metric, goal_s in GOALS_S.items():
        peer_s, _ = median_and_spread([getattr(start, metric) for start in theirs])
        cold_s, cold_spread = median_and_spread([getattr(start, metric) for start in cold])
        warm_s, warm_spread = median_and_spread([getattr(start, metric) for start in warm])
        cut = 1 - warm_s / cold_s
        yield Line(
            case=f"{metric},cold,hosts=2,ranks={NUM_RANKS},{note}",
            metric="seconds",
            unit="s",
            better="lower",
            ours=cold_s,
            peers={PEER: peer_s},
            samples=len(cold),
            spread=cold_spread,
            verified=not any(start.problem for start in (*cold, *theirs)),
        )
        yield Line(
            case=f"{metric},warm,hosts=2,ranks={NUM_RANKS},{note}",
            metric="seconds",
            unit="s",
            better="lower",
            ours=warm_s,
            peers={PEER: peer_s},
            goal=f"<= {goal_s} s, cut of cold >= {MIN_CUT:.0%}, torchrun >= {MIN_RATIO:g} times as long",
            met=warm_s <= goal_s and cut >= MIN_CUT and peer_s >= MIN_RATIO * warm_s,
            samples=len(warm),
            spread=warm_spread,
            verified=not any(start.problem for start in (*warm, *theirs)),
            details={"cut_of_cold": round(cut, 4)},
        )
