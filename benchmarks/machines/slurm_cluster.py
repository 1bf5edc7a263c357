"""A real Slurm of three nodes, a service on its head, and batch jobs that are submitted by hand beside it.

Where: the benchmarks of this folder make one a run. This process joins the head's network meanwhile. Needs root and
Debian's Slurm (`make .venvs/system.stamp`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lines import ROOT
from benchmarks.service import TRAIN_PYTHON, BenchmarkService, running_service
from clary.base.processes import ProcessId, read_process_list
from clary.testing.joined_network import network_of
from clary.testing.slurm_bed import GRACE_S, HEAD, HEAD_ADDRESS, NODES, SlurmBed

TLS_PORT = 4571
INSTANCE_TYPE = "ml.m5.large"
RENDEZVOUS_PORT = 29500
EMPTY_LIMIT_S = 40.0
POLL_S = 0.05
PARTITION_OF_PEERS = "again"  # as spot, but Slurm itself queues again what it has taken back
SUBMITIT = ROOT / ".venvs/submitit/bin/python"
SUBMITIT_NOTE = "submitit is not there: make .venvs/submitit.stamp"
_OPTIONS = (
    f"PartitionName={PARTITION_OF_PEERS} Nodes=node-[1-3] MaxTime=INFINITE State=UP PriorityTier=1 "
    f"PreemptMode=REQUEUE GraceTime={GRACE_S}\n"
)
_SETTINGS = """
engine = "slurm"
advertise_url = "https://@ADDRESS@:@PORT@"
node_scratch = "@SCRATCH@"
checkpoint_interval_s = 1.0
stop_grace_s = @STOP_GRACE@
slurm = { "*" = { partition = "train", spot_partition = "spot" } }
"""


@dataclass(frozen=True)
class SlurmCluster:
    """A cluster, the service on its head, and a folder that all machines see."""

    bed: SlurmBed
    service: BenchmarkService
    shared: Path

    def sbatch(self, script: str, *options: str) -> int:
        """Submit a batch script by hand; returns the job's number."""
        path = self.shared / f"script-{time.monotonic_ns()}.sh"
        path.write_text(f"#!/bin/bash\n{script}")
        return int(self.bed.run("sbatch", "--parsable", "--exclusive", *options, str(path)).partition(";")[0])

    def torchrun_script(self, program: Path, *arguments: str, num_nodes: int, max_restarts: int = 0) -> str:
        """Return the batch script that starts a program by torchrun, one rank a node.

        Args:
            program: path that all nodes see.
            arguments: of the program.
            num_nodes: of the job.
            max_restarts: torchrun's.
        """
        return (
            'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)\n'
            "export OMP_NUM_THREADS=1\n"
            f"srun {TRAIN_PYTHON} -m torch.distributed.run --nnodes={num_nodes} --nproc-per-node=1 "
            f'--max-restarts={max_restarts} --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d '
            f'--rdzv-endpoint="$first:{RENDEZVOUS_PORT}" {program} {" ".join(arguments)}\n'
        )

    def queue(self) -> list[str]:
        """Return the jobs that are not over, as NUMBER NAME STATE."""
        return self.bed.run("squeue", "--noheader", "--format=%A %j %T").splitlines()

    def cancel_all(self) -> None:
        """Cancel every job of Slurm."""
        for row in self.queue():
            self.bed.run("scancel", row.split()[0], check=False)

    def left(self, nodes: tuple[str, ...] = NODES) -> list[str]:
        """Return jobs in the queue and processes on nodes."""
        return [*self.queue(), *(f"{node}: {process}" for node in nodes for process in self.bed.processes(node))]

    def wait_until_empty(self) -> None:
        """Wait until no job and no process is left, and every node is idle; exits if they stay."""
        deadline_s = time.monotonic() + EMPTY_LIMIT_S
        while left := self.left():
            if time.monotonic() > deadline_s:
                raise SystemExit(f"after {EMPTY_LIMIT_S:g} s this is left on the cluster: {left}")
            time.sleep(4 * POLL_S)
        self.bed.wait_for_states(dict.fromkeys(NODES, "idle"))

    def kill_service(self) -> None:
        """Kill the service as by a crash."""
        record = json.loads((self.service.home / "run" / "service.json").read_text())
        os.kill(record["pid"], signal.SIGKILL)


@contextlib.contextmanager
def slurm_cluster(*, stop_grace_s: float = 8.0, options: str = "") -> Iterator[SlurmCluster]:
    """Make a cluster with a service; remove both.

    Args:
        stop_grace_s: setting of the service.
        options: appended to slurm.conf.
    Raises: SystemExit if this machine cannot make one; the words say why.
    """
    if os.geteuid() != 0 or shutil.which("slurmctld", path="/usr/sbin:/usr/bin") is None:
        raise SystemExit("a cluster needs root and Slurm: make .venvs/system.stamp")
    folder = Path(tempfile.mkdtemp(prefix="clary-bench-slurm-"))
    folder.chmod(0o755)
    bed = SlurmBed(folder, options=_OPTIONS + options, are_alike=True)
    shared = folder / "shared"
    try:
        bed.start()
        shared.mkdir()
        values = {"ADDRESS": HEAD_ADDRESS, "PORT": TLS_PORT, "SCRATCH": bed.scratch, "STOP_GRACE": stop_grace_s}
        settings = re.sub("@([A-Z_]+)@", lambda found: str(values[found[1]]), _SETTINGS)
        variables = {"CLARY_TLS_PORT": str(TLS_PORT), "PATH": f"{bed.environment['PATH']}:{os.environ['PATH']}"}
        with network_of(bed.first_process(HEAD)), running_service(settings, variables=variables) as service:
            yield SlurmCluster(bed, service, shared)
    finally:
        bed.stop()
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(look: Callable[[], bool], words: str, *, limit_s: float) -> None:
    """Wait until a look is true; exits with the words after the limit."""
    deadline_s = time.monotonic() + limit_s
    while not look():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{words}: not within {limit_s:g} s")
        time.sleep(POLL_S)


def processes_of(program: str) -> list[ProcessId]:
    """Return the processes of this machine, those in namespaces included, that run a program of this name."""
    found = []
    for pid in read_process_list():
        with contextlib.suppress(OSError):
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            is_one = any(part.rpartition(b"/")[2] == program.encode() for part in arguments[1:3])
            process = ProcessId.of(pid) if is_one and b"python" in arguments[0] else None
            if process is not None:
                found.append(process)
    return found


def start_submitit(cluster: SlurmCluster, order: Mapping[str, object]) -> subprocess.Popen[str]:
    """Start submitit's launcher on the head with an order of `submitit_launcher.py`; it says when it submits."""
    program = str(Path(__file__).with_name("submitit_launcher.py"))
    return subprocess.Popen(
        cluster.bed.argv_on(HEAD, str(SUBMITIT), program, json.dumps(order)),
        stdout=subprocess.PIPE,
        stderr=sys.stderr,
        text=True,
        env={**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
