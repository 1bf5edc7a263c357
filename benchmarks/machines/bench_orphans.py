"""A launcher that is killed in the midst of a launch: allocations and processes that nobody knows of afterwards.

The service is killed with SIGKILL at several moments after CreateTrainingJob of two hosts whose program never ends, and
started again. Then its one job is stopped by the one who runs it. The same for a launcher by hand (sbatch, whose number
it writes down) and for submitit's: both are killed at the same moments and started again, look for what they have
written down, and submit anew without that; then the job that they know is cancelled. LEFT_AFTER_S later everything
that Slurm lists and every process on nodes counts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.jobs import BenchmarkJobs
from benchmarks.lines import Line
from benchmarks.machines.slurm_cluster import (
    INSTANCE_TYPE,
    SUBMITIT,
    SUBMITIT_NOTE,
    SlurmCluster,
    slurm_cluster,
    start_submitit,
)
from clary.testing.slurm_bed import HEAD

NUM_HOSTS = 2
MOMENTS_S = (0.02, 0.15, 0.5, 1.0, 2.0)  # after the submission was begun (by hand, submitit) or accepted (ours)
QUICK_MOMENTS_S = (0.02, 0.5, 2.0)
LEFT_AFTER_S = 60.0
LIMIT_S = 40.0
SETTLE_S = 3.0  # what follows a restart begins
POLL_S = 0.25
BY_HAND, SUBMITIT_NAME = "sbatch by hand", "submitit"
PROGRAM = "orphans.py"
SCRIPT = """import time
time.sleep(3600)
"""
# Submits once: what it has written down is looked at before.
LAUNCHER = """
[ -s "$1" ] || {
    sbatch --parsable --exclusive --nodes=@NODES@ --output=/dev/null --wrap='srun sleep 3600' >"$1.new"
    mv "$1.new" "$1"
}
while squeue -h -j "$(cat "$1")" | grep -q .; do sleep 1; done
"""


@dataclass(frozen=True, kw_only=True)
class Left:
    """Allocations and processes that nobody knew of."""

    things: int
    examples: tuple[str, ...] = ()
    empty_after_s: float | None = None  # since the last stop; None if it never was


def run(quick: bool) -> Iterator[Line]:
    """Kill each launcher at each moment."""
    moments_s = QUICK_MOMENTS_S if quick else MOMENTS_S
    with slurm_cluster() as cluster:
        print("ours", file=sys.stderr)
        ours = _ours(cluster, moments_s)
        cluster.wait_until_empty()
        peers = {}
        print(BY_HAND, file=sys.stderr)
        peers[BY_HAND] = _theirs(cluster, moments_s, _ByHand)
        if SUBMITIT.exists():
            print(SUBMITIT_NAME, file=sys.stderr)
            peers[SUBMITIT_NAME] = _theirs(cluster, moments_s, _BySubmitit)
    yield Line(
        case=f"killed,slurm,hosts={NUM_HOSTS},moments={len(moments_s)}",
        metric="allocations_and_processes_left",
        unit="",
        better="lower",
        ours=ours.things,
        peers={name: left.things for name, left in peers.items()},
        peer_note="" if SUBMITIT.exists() else SUBMITIT_NOTE,
        bound=0,
        bound_note="nothing",
        goal="0",
        met=ours.things == 0,
        samples=len(moments_s),
        verified=True,
        details={
            "moments_s": moments_s,
            "empty_after_s": ours.empty_after_s,
            "examples": ours.examples,
            "examples_of_peers": {name: left.examples for name, left in peers.items()},
        },
    )


def _ours(cluster: SlurmCluster, moments_s: tuple[float, ...]) -> Left:
    jobs = BenchmarkJobs(cluster.service, PROGRAM, SCRIPT)
    for index, moment_s in enumerate(moments_s):
        name = f"orphans-{index}"
        jobs.create(name, num_hosts=NUM_HOSTS, instance_type=INSTANCE_TYPE, HyperParameters=jobs.program)
        time.sleep(moment_s)
        cluster.kill_service()
        cluster.service.start_again()
        time.sleep(SETTLE_S)
        jobs.sagemaker.stop_training_job(TrainingJobName=name)
        jobs.wait(name, status="Stopped")
    return _look(cluster)


class _ByHand:
    """A launcher of a few lines of shell."""

    def __init__(self, cluster: SlurmCluster, index: int) -> None:
        self._cluster = cluster
        self._place = cluster.shared / f"launcher-{index}"

    def start(self) -> subprocess.Popen[str]:
        """Start it; it submits at once."""
        script = LAUNCHER.replace("@NODES@", str(NUM_HOSTS))
        command = self._cluster.bed.argv_on(HEAD, "bash", "-c", script, "bash", str(self._place))
        return subprocess.Popen(command, text=True, start_new_session=True, env={"PATH": "/usr/bin:/bin"})

    def number(self) -> str:
        """Return the number of the job that it knows; empty without one."""
        return self._place.read_text().strip() if self._place.exists() else ""


class _BySubmitit:
    """submitit's launcher; it knows the job that it has submitted last."""

    def __init__(self, cluster: SlurmCluster, index: int) -> None:
        self._cluster = cluster
        self._folder = cluster.shared / f"submitit-{index}"
        self._program = cluster.shared / PROGRAM
        self._program.write_text(SCRIPT)
        self._launcher: subprocess.Popen[str] | None = None

    def start(self) -> subprocess.Popen[str]:
        """Start it; returns when it is about to submit."""
        order = {
            "folder": str(self._folder),
            "program": str(self._program),
            "arguments": [],
            "num_nodes": NUM_HOSTS,
        }
        self._launcher = launcher = start_submitit(self._cluster, order)
        assert launcher.stdout is not None
        if not launcher.stdout.readline().startswith("SUBMIT"):
            raise SystemExit("submitit's launcher did not come to submit")
        return launcher

    def number(self) -> str:
        """Return the number of the job that it knows."""
        assert self._launcher is not None
        assert self._launcher.stdout is not None
        line = self._launcher.stdout.readline()
        return line.split()[1] if line.startswith("JOB ") else ""


def _theirs(
    cluster: SlurmCluster,
    moments_s: tuple[float, ...],
    kind: Callable[[SlurmCluster, int], _ByHand | _BySubmitit],
) -> Left:
    try:
        for index, moment_s in enumerate(moments_s):
            launcher = kind(cluster, index)
            process = launcher.start()
            time.sleep(moment_s)
            _kill(process)
            process = launcher.start()
            try:
                deadline_s = time.monotonic() + LIMIT_S
                while not (number := launcher.number()):
                    if time.monotonic() > deadline_s:
                        raise SystemExit(f"the launcher has not submitted anything within {LIMIT_S:g} s")
                    time.sleep(POLL_S)
                time.sleep(SETTLE_S)
                cluster.bed.run("scancel", number)
            finally:
                _kill(process)
        return _look(cluster)
    finally:
        cluster.cancel_all()
        cluster.wait_until_empty()


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a launcher and its children; jobs that Slurm has accepted are Slurm's."""
    for child in (f"/proc/{process.pid}/task/{process.pid}/children",):
        with open(child, encoding="ascii") as file:
            for pid in file.read().split():
                os.kill(int(pid), signal.SIGKILL)
    process.kill()
    process.wait(LIMIT_S)
    if process.stdout is not None:
        process.stdout.close()


def _look(cluster: SlurmCluster) -> Left:
    """Return everything that is left after LEFT_AFTER_S; ends at once when the cluster is empty."""
    began_s = time.monotonic()
    while time.monotonic() < began_s + LEFT_AFTER_S:
        if not cluster.left():
            time.sleep(SETTLE_S)
            if not cluster.left():
                return Left(things=0, empty_after_s=round(time.monotonic() - began_s - SETTLE_S, 1))
        time.sleep(POLL_S)
    left = cluster.left()
    return Left(things=len(left), examples=tuple(left[:6]))
