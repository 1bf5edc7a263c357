"""Capacity that a cluster takes back: the share of the grace that programs get, and the checkpoint that comes after.

Two hosts count steps of 0.1 s and write each down. A job of a higher partition preempts them: Slurm sends SIGTERM and
kills GRACE_S later. The program notes the signal and counts on until it is killed, so that it uses all of its time.
Then the nodes are free again, and the job goes on from its checkpoint. Ends of programs are seen from outside, in the
machine's process table. Committed is a step whose file the program had replaced before it ended.

The peer is a batch script with `--requeue` and a trap, in a partition with the same grace whose jobs Slurm itself
queues again (PreemptMode=REQUEUE); its checkpoint lies in a folder that all nodes share, which ours does not need.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.jobs import BenchmarkJobs
from benchmarks.lines import Line
from benchmarks.machines.slurm_cluster import (
    INSTANCE_TYPE,
    PARTITION_OF_PEERS,
    SlurmCluster,
    processes_of,
    slurm_cluster,
    wait_for,
)
from benchmarks.service import TRAIN_PYTHON
from clary.testing.slurm_bed import GRACE_S

NUM_HOSTS = 2
STEPS_BEFORE = 30
STOP_GRACE_S = 60.0  # the setting does not shorten what Slurm grants
LIMIT_S = 60.0
POLL_S = 0.02
MIN_SHARE = 0.9
PEER = "sbatch --requeue with a trap"
PROGRAM = "takeback.py"
SCRIPT = """import os, pathlib, signal, sys, time
host = os.environ.get("SM_CURRENT_HOST") or "host-" + os.environ["SLURM_PROCID"]
folder = pathlib.Path("/opt/ml/checkpoints" if "SM_CURRENT_HOST" in os.environ else sys.argv[1])
place = folder / f"step-{host}"
step = int(place.read_text()) if place.exists() else 0

def say(word, number):
    os.write(1, f"{word} {host} {number} {time.time():.3f}\\n".encode())

def hear(*_):
    say("TERM", step)

signal.signal(signal.SIGTERM, hear)
say("BEGIN", step)
while True:
    time.sleep(0.1)
    new = place.with_suffix(".new")
    new.write_text(str(step + 1))
    os.replace(new, place)
    step += 1
    say("STEP", step)
"""
BATCH = """trap : TERM
srun @PYTHON@ @PROGRAM@ @FOLDER@ &
wait
wait
"""
_WORDS = re.compile(r"(BEGIN|TERM|STEP) (\S+) (\d+) ([0-9.]+)")


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Outcome of one preemption, of the host that had least."""

    share: float  # of the grace, from SIGTERM to the end of the program
    lost_steps: int  # that were committed
    age_s: float  # of the restored checkpoint at the end of the program
    num_terms: int  # that the program heard, at most


def run(quick: bool) -> Iterator[Line]:
    """Preempt ours, then the batch job."""
    del quick  # one sample each: 40 s
    with slurm_cluster(stop_grace_s=STOP_GRACE_S) as cluster:
        print("ours", file=sys.stderr)
        ours = _ours(cluster)
        cluster.wait_until_empty()
        print("the batch job", file=sys.stderr)
        theirs = _theirs(cluster)
    heard = {"sigterms": ours.num_terms, "sigterms_of_peer": theirs.num_terms}
    yield Line(
        case=f"share_of_grace,slurm,hosts={NUM_HOSTS},grace={GRACE_S}",
        metric="share",
        unit="",
        better="higher",
        ours=round(ours.share, 4),
        peers={PEER: round(theirs.share, 4)},
        peer_note="Slurm gives jobs that it queues again KillWait besides, and signals them more than once",
        bound=1.0,
        bound_note="all of the grace",
        goal=f">= {MIN_SHARE}",
        met=ours.share >= MIN_SHARE,
        verified=ours.num_terms == 1,
        details=heard,
    )
    yield Line(
        case=f"restored_age,slurm,hosts={NUM_HOSTS},grace={GRACE_S}",
        metric="age_at_the_programs_end",
        unit="s",
        better="lower",
        ours=round(ours.age_s, 3),
        peers={PEER: round(theirs.age_s, 3)},
        peer_note="its checkpoint lies in a folder that all nodes share; ours was stored after the program's end",
        bound=0.1,
        bound_note="one step",
        goal="no step lost that was committed",
        met=ours.lost_steps == 0,
        verified=ours.num_terms == 1,
        details={"lost_steps": ours.lost_steps, "lost_steps_of_peer": theirs.lost_steps},
    )


def _ours(cluster: SlurmCluster) -> Taken:
    jobs = BenchmarkJobs(cluster.service, PROGRAM, SCRIPT)
    name = "takeback"
    jobs.create(
        name,
        num_hosts=NUM_HOSTS,
        instance_type=INSTANCE_TYPE,
        HyperParameters=jobs.program,
        CheckpointConfig={"S3Uri": f"s3://clary/bench/{name}"},
        EnableManagedSpotTraining=True,
        StoppingCondition={"MaxRuntimeInSeconds": 600, "MaxWaitTimeInSeconds": 900},
        RetryStrategy={"MaximumRetryAttempts": 2},
    )
    taken = _take_back(cluster, lambda: "\n".join(jobs.log(name)))
    jobs.sagemaker.stop_training_job(TrainingJobName=name)
    jobs.wait(name, status="Stopped")
    return taken


def _theirs(cluster: SlurmCluster) -> Taken:
    program, folder, output = cluster.shared / PROGRAM, cluster.shared / "steps", cluster.shared / "takeback.out"
    program.write_text(SCRIPT)
    folder.mkdir()
    values = {"PYTHON": TRAIN_PYTHON, "PROGRAM": program, "FOLDER": folder}
    script = re.sub("@([A-Z]+)@", lambda found: str(values[found[1]]), BATCH)
    options = (f"--nodes={NUM_HOSTS}", "--ntasks-per-node=1", "--requeue", f"--partition={PARTITION_OF_PEERS}")
    cluster.sbatch(script, *options, f"--output={output}", "--open-mode=append")
    taken = _take_back(cluster, lambda: output.read_text(errors="replace") if output.exists() else "")
    cluster.cancel_all()
    cluster.wait_until_empty()
    return taken


def _take_back(cluster: SlurmCluster, said: Callable[[], str]) -> Taken:
    """Preempt the job that runs once it has taken STEPS_BEFORE steps; return its outcome."""
    wait_for(lambda: _count(said(), "STEP") >= NUM_HOSTS * STEPS_BEFORE, "the first steps are taken", limit_s=LIMIT_S)
    running = processes_of(PROGRAM)
    if len(running) != NUM_HOSTS:
        raise SystemExit(f"expected {NUM_HOSTS} processes of {PROGRAM}, found {running}")
    other = ("--nodes=3", "--partition=prod", "--output=/dev/null")
    cluster.sbatch(f"sleep {GRACE_S / 2:g}\n", *other)
    deadline_s = time.monotonic() + LIMIT_S
    ends: list[float] = []
    while running and time.monotonic() < deadline_s:
        alive = [process for process in running if process.is_alive()]
        ends += [time.time()] * (len(running) - len(alive))
        running = alive
        time.sleep(POLL_S)
    if running:
        raise SystemExit(f"{LIMIT_S:g} s after the preemption these still run: {running}")
    wait_for(lambda: _count(said(), "BEGIN") >= 2 * NUM_HOSTS, "the job begins again", limit_s=LIMIT_S)
    return _judge(said(), first_end=min(ends))


def _judge(said: str, *, first_end: float) -> Taken:
    """Return the worst of all hosts; ends of the two lie milliseconds apart, and the first counts for both."""
    rows = [(word, host, int(step), float(at)) for word, host, step, at in _WORDS.findall(said)]
    shares, losses, ages, num_terms = [], [], [], []
    for host in sorted({row[1] for row in rows}):
        own = [row for row in rows if row[1] == host]
        terms = [at for word, _, _, at in own if word == "TERM" and at < first_end]
        begins = [(step, at) for word, _, step, at in own if word == "BEGIN"]
        steps = {step: at for word, _, step, at in own if word == "STEP" and at < begins[1][1]}
        restored = begins[1][0]
        num_terms.append(len(terms))
        shares.append((first_end - terms[0]) / GRACE_S if terms else 0.0)
        losses.append(max(0, max(steps, default=0) - restored))
        ages.append(first_end - steps.get(restored, first_end))
    if len(shares) != NUM_HOSTS:
        raise SystemExit(f"expected words of {NUM_HOSTS} hosts, got {len(shares)}: {said[-1000:]}")
    return Taken(share=min(shares), lost_steps=max(losses), age_s=max(ages), num_terms=max(num_terms))


def _count(said: str, word: str) -> int:
    return said.count(f"{word} ")
