"""From CreateTrainingJob on a cluster to the first line of the last rank and to the first all_reduce, cold and warm.

Three hosts with one rank each run a script that prints the time in its first statement, imports torch, joins its group
and prints the time of its first all_reduce. Cold: Slurm, or the boxes, grant nodes that hold nothing of the service but
what earlier jobs have left on their disks. Warm: the job takes the hosts that the cold one has kept
(KeepAlivePeriodInSeconds), and DescribeTrainingJob says so, or the line is not verified. Beside it, on the same nodes,
in turns: `sbatch` of a script with `srun torchrun`, and submitit; on boxes torchrun by ssh in a loop. The bound is the
script itself by `srun`, or by ssh, with ranks told by hand. Ours reduces by smddp, the others by gloo.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.jobs import BenchmarkJobs
from benchmarks.lines import Line, median_and_spread
from benchmarks.machines.box_cluster import BARE as BARE_BY_SSH
from benchmarks.machines.box_cluster import TORCHRUN as TORCHRUN_BY_SSH
from benchmarks.machines.box_cluster import box_cluster
from benchmarks.machines.slurm_cluster import (
    EMPTY_LIMIT_S,
    INSTANCE_TYPE,
    SUBMITIT,
    SUBMITIT_NOTE,
    SlurmCluster,
    slurm_cluster,
    start_submitit,
    wait_for,
)
from benchmarks.service import TRAIN_PYTHON, BenchmarkService

NUM_HOSTS = 3
NUM_SAMPLES = 3
KEEP_ALIVE_S = 600
SETTLE_S = 6.0  # hosts that were kept make themselves ready for the next job while nobody waits
COLD_ALLOWANCE_S = 1.0
LIMIT_S = 60.0
PROGRAM = "cluster.py"
SCRIPT = """import os, time
os.write(1, f"FIRST {time.time():.6f}\\n".encode())  # one write: lines of two ranks must not mix
import torch
import torch.distributed as dist
torch.set_num_threads(1)
backend = "gloo"
if "SM_CURRENT_HOST" in os.environ:
    import smdistributed.dataparallel.torch.torch_smddp
    backend = "smddp"
dist.init_process_group(backend)
ones = torch.ones(1)
dist.all_reduce(ones)
took = f"REDUCED {time.time():.6f} {int(ones)}\\n"
os.write(1, took.encode())
dist.barrier()
os._exit(0)  # nothing is left to do; gloo's threads would be waited for
"""
BARE = """
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)
export OMP_NUM_THREADS=1 MASTER_ADDR=$first MASTER_PORT=29501 WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=0
srun sh -c 'RANK=$SLURM_PROCID exec @PYTHON@ @PROGRAM@'
"""
METRICS = ("first_line", "first_allreduce")
_FIRST, _REDUCED = re.compile(r"FIRST ([0-9.]+)"), re.compile(r"REDUCED ([0-9.]+) (\d+)")  # launchers put words before


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of all ranks, in seconds since the submission."""

    first_line: float
    first_allreduce: float
    problem: str = ""


@dataclass(frozen=True)
class Site:
    """One kind of cluster: how the script is started there by hand, and how to wait for all nodes to be free."""

    name: str
    service: BenchmarkService
    peers: Mapping[str, Callable[[], Start]]  # the first is the way by hand
    bare: Callable[[], Start]
    bare_note: str
    wait_until_empty: Callable[[], None]
    peer_note: str = ""


@dataclass
class Samples:
    """Starts by way."""

    cold: list[Start] = field(default_factory=list)
    warm: list[Start] = field(default_factory=list)
    bare: list[Start] = field(default_factory=list)
    peers: dict[str, list[Start]] = field(default_factory=dict)


def run(quick: bool) -> Iterator[Line]:
    """Start the same script in each way in turns, on Slurm and on boxes."""
    num_samples = 1 if quick else NUM_SAMPLES
    for made in (_slurm, _boxes):
        with made() as site:
            samples = _measure(site, num_samples)
        yield from _lines(site, samples)


def _measure(site: Site, num_samples: int) -> Samples:
    samples = Samples()
    jobs = BenchmarkJobs(site.service, PROGRAM, SCRIPT)
    for index in range(num_samples):
        print(f"{site.name}: {index + 1} of {num_samples}", file=sys.stderr)
        for way, start in site.peers.items():
            samples.peers.setdefault(way, []).append(start())
        samples.bare.append(site.bare())
        samples.cold.append(_ours(jobs, f"cold-{index}", KeepAlivePeriodInSeconds=KEEP_ALIVE_S))
        _wait_for_pool(jobs, f"cold-{index}")
        samples.warm.append(_ours(jobs, f"warm-{index}", reused=f"cold-{index}"))
        site.wait_until_empty()
    return samples


@contextlib.contextmanager
def _slurm() -> Iterator[Site]:
    with slurm_cluster() as cluster:
        program = cluster.shared / PROGRAM
        program.write_text(SCRIPT)
        script = cluster.torchrun_script(program, num_nodes=NUM_HOSTS)
        bare = BARE.replace("@PYTHON@", str(TRAIN_PYTHON)).replace("@PROGRAM@", str(program))
        peers = {"sbatch, srun torchrun": lambda: _by_hand(cluster, script)}
        if SUBMITIT.exists():
            peers["submitit"] = lambda: _by_submitit(cluster, program)
        yield Site(
            name="slurm",
            service=cluster.service,
            peers=peers,
            bare=lambda: _by_hand(cluster, bare),
            bare_note="srun of the script itself, ranks by SLURM_PROCID",
            wait_until_empty=cluster.wait_until_empty,
            peer_note="" if SUBMITIT.exists() else SUBMITIT_NOTE,
        )


@contextlib.contextmanager
def _boxes() -> Iterator[Site]:
    with box_cluster() as cluster:
        program = cluster.shared / PROGRAM
        program.write_text(SCRIPT)

        def by_ssh(command: str) -> Start:
            submitted_at = time.time()
            return _start(cluster.by_ssh(command, program), submitted_at)

        yield Site(
            name="boxes",
            service=cluster.service,
            peers={"torchrun by ssh": lambda: by_ssh(TORCHRUN_BY_SSH)},
            bare=lambda: by_ssh(BARE_BY_SSH),
            bare_note="ssh with the script itself, ranks by hand",
            wait_until_empty=cluster.wait_until_empty,
        )


def _ours(jobs: BenchmarkJobs, name: str, *, reused: str = "", **resources: Any) -> Start:
    """Run one job to its end; `reused` names the job whose hosts it has to get."""
    wanted = {"InstanceCount": NUM_HOSTS, "InstanceType": INSTANCE_TYPE, "VolumeSizeInGB": 10, **resources}
    parameters = {**jobs.program, "sagemaker_distributed_dataparallel_enabled": "true"}
    submitted_at = time.time()
    jobs.create(name, ResourceConfig=wanted, HyperParameters=parameters)
    jobs.wait(name, status="Completed")
    problem = ""
    if reused and (status := _pool_status(jobs, reused)).get("ReusedByJob") != name:
        problem = f"{name} was not warm: WarmPoolStatus of {reused} is {status}"
    return _start(jobs.log(name), submitted_at, problem=problem)


def _wait_for_pool(jobs: BenchmarkJobs, name: str) -> None:
    words = f"{name}: expected WarmPoolStatus Available"
    wait_for(lambda: _pool_status(jobs, name).get("Status") == "Available", words, limit_s=LIMIT_S)
    time.sleep(SETTLE_S)


def _pool_status(jobs: BenchmarkJobs, name: str) -> dict[str, Any]:
    facts: dict[str, Any] = jobs.sagemaker.describe_training_job(TrainingJobName=name)
    status: dict[str, Any] = facts.get("WarmPoolStatus", {})
    return status


def _by_hand(cluster: SlurmCluster, script: str) -> Start:
    output = cluster.shared / "by-hand.out"
    output.unlink(missing_ok=True)
    options = (f"--nodes={NUM_HOSTS}", "--ntasks-per-node=1", f"--output={output}", "--time=5")
    submitted_at = time.time()
    cluster.sbatch(script, *options)
    wait_for(lambda: not cluster.queue(), "the job that was submitted by hand ends", limit_s=LIMIT_S)
    cluster.wait_until_empty()
    return _start(output.read_text(errors="replace").splitlines(), submitted_at)


def _by_submitit(cluster: SlurmCluster, program: Path) -> Start:
    folder = cluster.shared / f"submitit-{time.monotonic_ns()}"
    order = {"folder": str(folder), "program": str(program), "arguments": [], "num_nodes": NUM_HOSTS}
    with start_submitit(cluster, order) as launcher:
        try:
            said, _ = launcher.communicate(timeout=LIMIT_S + EMPTY_LIMIT_S)
        finally:
            launcher.kill()
    submitted_at = float(next(line for line in said.splitlines() if line.startswith("SUBMIT")).split()[1])
    cluster.wait_until_empty()
    lines = [line for path in folder.glob("*.out") for line in path.read_text(errors="replace").splitlines()]
    return _start(lines, submitted_at)


def _start(lines: Sequence[str], submitted_at: float, *, problem: str = "") -> Start:
    firsts = [float(found[1]) for line in lines if (found := _FIRST.search(line))]
    reduced = [found.groups() for line in lines if (found := _REDUCED.search(line))]
    sums = [int(total) for _, total in reduced]
    if len(firsts) != NUM_HOSTS or sums != [NUM_HOSTS] * NUM_HOSTS:
        words = " | ".join(lines)[-1500:]
        problem = f"expected {NUM_HOSTS} first lines and sums of {NUM_HOSTS}, got {len(firsts)} and {sums}: {words}"
    return Start(
        first_line=max(firsts, default=submitted_at) - submitted_at,
        first_allreduce=max((float(at) for at, _ in reduced), default=submitted_at) - submitted_at,
        problem=problem,
    )


def _lines(site: Site, samples: Samples) -> Iterator[Line]:
    everything = [
        *samples.cold,
        *samples.warm,
        *samples.bare,
        *(one for ways in samples.peers.values() for one in ways),
    ]
    problems = [start.problem for start in everything if start.problem]
    for problem in problems:
        print(f"wrong: {problem}", file=sys.stderr)
    for metric in METRICS:
        peers = {way: _median(starts, metric) for way, starts in samples.peers.items()}
        by_hand = next(iter(peers))
        for kind, starts, allowance_s in (("cold", samples.cold, COLD_ALLOWANCE_S), ("warm", samples.warm, 0.0)):
            ours_s, spread = median_and_spread([getattr(start, metric) for start in starts])
            yield Line(
                case=f"{metric},{site.name},{kind},hosts={NUM_HOSTS}",
                metric="seconds",
                unit="s",
                better="lower",
                ours=ours_s,
                peers=peers,
                peer_note=site.peer_note,
                bound=_median(samples.bare, metric),
                bound_note=site.bare_note,
                goal=f"within {allowance_s:g} s of {by_hand}" if allowance_s else f"ahead of {by_hand}",
                met=ours_s <= peers[by_hand] + allowance_s,
                samples=len(starts),
                spread=spread,
                verified=not problems,
                details={
                    "samples_s": _rounded(starts, metric),
                    "samples_of_bound_s": _rounded(samples.bare, metric),
                    "samples_of_peers_s": {way: _rounded(ones, metric) for way, ones in samples.peers.items()},
                },
            )


def _median(starts: Sequence[Start], metric: str) -> float:
    return median_and_spread([getattr(start, metric) for start in starts])[0]


def _rounded(starts: Sequence[Start], metric: str) -> list[float]:
    return [round(getattr(start, metric), 3) for start in starts]
