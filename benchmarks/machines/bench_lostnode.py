"""From the power-off of a node to the next step of its job, beside torchrun with restarts under srun.

Two hosts of a cluster of three nodes take steps of 0.1 s that end with an all_reduce over gloo, as in `recover`. The
second node is switched off: its processes and its network are gone at once, and nothing says so. Ours finds out, asks
Slurm for one more node and goes on from the checkpoint in the object store; the first host keeps its node. The peer is
a batch job with `--requeue` whose `srun torchrun --max-restarts=3` keeps checkpoints in a folder that all nodes share:
torchrun waits for a member that never comes, and Slurm queues the whole job again when it has found the node dead.
The bound is the start of the peer: submission to first step, with nothing to find out.

Slurm calls a node dead after SlurmdTimeout: 6 s on this cluster, 20 s in a second case, 300 s by default.
CLARY_BENCH_SLURMD_TIMEOUT names another value in place of both. Ours waits for whichever is shorter, that or
host_timeout_s (15).
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks.job_life.bench_recover import SCRIPT
from benchmarks.jobs import BenchmarkJobs
from benchmarks.lines import Line
from benchmarks.machines.slurm_cluster import INSTANCE_TYPE, SlurmCluster, slurm_cluster, wait_for
from clary.testing.slurm_bed import NODES

NUM_HOSTS = 2
STEPS_BEFORE, STEPS_KEPT = 40, 20  # a checkpoint is written every 20 steps
LIMIT_S = 60.0  # of a start
MARGIN_S = 60.0  # besides SlurmdTimeout, until the next step
TIMEOUTS_S = (6, 20)  # SlurmdTimeout
POLL_S = 0.05
LOST_NODE = NODES[1]
MOST_SHARE = 0.2
PEER = "srun torchrun --max-restarts=3, sbatch --requeue"
PROGRAM = "lostnode.py"
_STEP = re.compile(r"step (\d+) at ([0-9.]+)")


def run(quick: bool) -> Iterator[Line]:
    """Switch a node off under ours, then under torchrun."""
    named = os.environ.get("CLARY_BENCH_SLURMD_TIMEOUT")
    for timeout_s in (int(named),) if named else TIMEOUTS_S[:1] if quick else TIMEOUTS_S:
        yield _case(timeout_s)


def _case(timeout_s: int) -> Line:
    limit_s = timeout_s + MARGIN_S
    with slurm_cluster(options=f"SlurmdTimeout={timeout_s}\n") as cluster:
        print(f"ours, SlurmdTimeout {timeout_s} s", file=sys.stderr)
        ours_s, parts = _ours(cluster, limit_s)
        print("torchrun", file=sys.stderr)
        theirs_s, start_s = _theirs(cluster, limit_s)
    peer_s = limit_s if theirs_s is None else theirs_s
    return Line(
        case=f"power_off,slurm,hosts={NUM_HOSTS},nodes={len(NODES)},slurmd_timeout={timeout_s}",
        metric="death_to_next_step_s",
        unit="s",
        better="lower",
        ours=round(ours_s, 2),
        peers={PEER: round(peer_s, 2)},
        peer_note=f"no step within {limit_s:g} s" if theirs_s is None else "",
        bound=round(start_s, 2),
        bound_note="the peer's start on nodes that live: sbatch to first step",
        goal=f"<= {MOST_SHARE} of the peer's",
        met=ours_s <= MOST_SHARE * peer_s,
        verified=True,
        details={"parts": parts},
    )


def _ours(cluster: SlurmCluster, limit_s: float) -> tuple[float, dict[str, float]]:
    """Return the time to the next step, and the beginnings of statuses on the way."""
    jobs = BenchmarkJobs(cluster.service, PROGRAM, SCRIPT)
    name = "lostnode"
    jobs.create(
        name,
        num_hosts=NUM_HOSTS,
        instance_type=INSTANCE_TYPE,
        CheckpointConfig={"S3Uri": f"s3://clary/bench/{name}"},
        RetryStrategy={"MaximumRetryAttempts": 2},
    )

    def said() -> str:
        return "\n".join(jobs.log(name))

    _wait_for_first_steps(said)
    died_at = time.time()
    took_s = _lose_node(cluster, said, limit_s=limit_s)
    facts = jobs.sagemaker.describe_training_job(TrainingJobName=name)
    jobs.sagemaker.stop_training_job(TrainingJobName=name)
    jobs.wait(name, status="Stopped")
    cluster.wait_until_empty()
    if took_s is None:
        raise SystemExit(f"{name}: no step within {limit_s:g} s after the power-off: {said()[-2000:]}")
    begun = [(row["Status"], row["StartTime"].timestamp() - died_at) for row in facts["SecondaryStatusTransitions"]]
    parts: dict[str, float] = {}
    for status, group in itertools.groupby(((status, at_s) for status, at_s in begun if at_s > 0), lambda one: one[0]):
        parts.setdefault(f"{status.lower()}_from_s", round(next(group)[1], 2))
    return took_s, parts


def _theirs(cluster: SlurmCluster, limit_s: float) -> tuple[float | None, float]:
    """Return the time to the next step, None without one, and the time of the first start."""
    program, folder, output = cluster.shared / PROGRAM, cluster.shared / "steps", cluster.shared / "lostnode.out"
    program.write_text(SCRIPT)
    folder.mkdir()
    script = cluster.torchrun_script(program, str(folder), num_nodes=NUM_HOSTS, max_restarts=3)
    options = (f"--nodes={NUM_HOSTS}", "--ntasks-per-node=1", "--requeue", "--open-mode=append")
    submitted_s = time.monotonic()
    cluster.sbatch(script, *options, f"--output={output}")

    def said() -> str:
        return output.read_text(errors="replace") if output.exists() else ""

    first_s = _wait_for_step(said, 1, after_s=0.0, limit_s=LIMIT_S)
    _wait_for_first_steps(said)
    took_s = _lose_node(cluster, said, limit_s=limit_s)
    if took_s is None:
        print(f"the batch job: {cluster.queue()}: {said()[-1500:]}", file=sys.stderr)
    cluster.cancel_all()
    cluster.wait_until_empty()
    return took_s, (first_s or submitted_s) - submitted_s


def _lose_node(cluster: SlurmCluster, said: Callable[[], str], *, limit_s: float) -> float | None:
    """Switch the node off; return the time to the next step that was restored, None without one; switch it on again."""
    died_s = time.monotonic()
    cluster.bed.power_off(LOST_NODE)
    gone_s = time.monotonic()
    try:
        at_s = _wait_for_step(said, 1, after_s=gone_s + 1.0, limit_s=limit_s)
        if at_s is not None and _wait_for_step(said, STEPS_KEPT + 1, after_s=at_s - 0.001, limit_s=0.5) is None:
            raise SystemExit(f"no checkpoint was restored: {said()[-1000:]}")
    finally:
        cluster.bed.power_on(LOST_NODE, until_idle=False)
        wait_for(lambda: "down" not in cluster.bed.states()[LOST_NODE], "the node is back", limit_s=LIMIT_S)
    return None if at_s is None else at_s - died_s


def _wait_for_first_steps(said: Callable[[], str]) -> None:
    if _wait_for_step(said, STEPS_BEFORE, after_s=0.0, limit_s=LIMIT_S) is None:
        raise SystemExit(f"expected {STEPS_BEFORE} steps within {LIMIT_S:g} s: {said()[-1000:]}")


def _wait_for_step(said: Callable[[], str], at_least: int, *, after_s: float, limit_s: float) -> float | None:
    """Return when the first step from `at_least` on ended after a moment; None if no step did within the limit."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        for number, at_s in _STEP.findall(said()):
            if int(number) >= at_least and float(at_s) > after_s:
                return float(at_s)
        time.sleep(POLL_S)
    return None
