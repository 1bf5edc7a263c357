"""Boxes that answer to SSH, a service on a head beside them, and programs that are started on boxes by ssh.

Where: `bench_cluster` makes one. This process joins the head's network meanwhile. Needs root and Debian's
openssh-server (`make .venvs/system.stamp`).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machines.slurm_cluster import EMPTY_LIMIT_S, RENDEZVOUS_PORT, wait_for
from benchmarks.service import TRAIN_PYTHON, BenchmarkService
from clary.testing.box_bed import HEAD, HEAD_ADDRESS, PORT, BoxBed
from clary.testing.joined_network import network_of

NUM_BOXES = 3
LIMIT_S = 120.0
TORCHRUN = (
    "OMP_NUM_THREADS=1 @PYTHON@ -m torch.distributed.run --nnodes=@BOXES@ --nproc-per-node=1 --node-rank=@RANK@ "
    "--master-addr=@FIRST@ --master-port=@PORT@ @PROGRAM@"
)
BARE = (
    "OMP_NUM_THREADS=1 RANK=@RANK@ WORLD_SIZE=@BOXES@ LOCAL_RANK=0 MASTER_ADDR=@FIRST@ MASTER_PORT=@PORT@ "
    "@PYTHON@ @PROGRAM@"
)
_SETTINGS = f"""
engine = "boxes"
advertise_url = "https://{HEAD_ADDRESS}:{PORT}"
"""


@dataclass(frozen=True)
class BoxCluster:
    """Boxes that the service on the head knows, and a folder that all of them see."""

    bed: BoxBed
    service: BenchmarkService
    shared: Path

    def by_ssh(self, command: str, program: Path) -> list[str]:
        """Run a command on all boxes at once by ssh, and return the lines that it has said; exits after LIMIT_S.

        Args:
            command: TORCHRUN or BARE.
            program: path that all boxes see.
        """
        calls = []
        for rank, box in enumerate(self.bed.boxes):
            text = command
            for word, value in (
                ("PYTHON", TRAIN_PYTHON),
                ("BOXES", len(self.bed.boxes)),
                ("RANK", rank),
                ("FIRST", self.bed.boxes[0]),
                ("PORT", RENDEZVOUS_PORT),
                ("PROGRAM", program),
            ):
                text = text.replace(f"@{word}@", str(value))
            calls.append(f"ssh {box} {shlex.quote(text)} &")
        done = self.bed.run(HEAD, "bash", "-c", "\n".join([*calls, "wait"]), check=False, timeout_s=LIMIT_S)
        return [*done.stdout.splitlines(), *done.stderr.splitlines()]

    def wait_until_empty(self) -> None:
        """Wait until every box is ready for a job; exits if they stay busy."""
        wait_for(
            lambda: all(row["state"] == "ready" for row in self.bed.rows().values()),
            "boxes are ready",
            limit_s=EMPTY_LIMIT_S,
        )


@contextlib.contextmanager
def box_cluster() -> Iterator[BoxCluster]:
    """Make boxes with a service; remove both.

    Raises: SystemExit if this machine cannot make them; the words say why.
    """
    if os.geteuid() != 0 or shutil.which("sshd", path="/usr/sbin:/usr/bin") is None:
        raise SystemExit("boxes need root and sshd: make .venvs/system.stamp")
    folder = Path(tempfile.mkdtemp(prefix="clary-bench-boxes-", dir="/var/tmp"))
    folder.chmod(0o755)
    bed = BoxBed(folder, num_boxes=NUM_BOXES)
    shared = folder / "shared"
    try:
        bed.start()
        shared.mkdir()
        bed.home.mkdir()
        (bed.home / "settings.toml").write_text(_SETTINGS)
        with network_of(bed.first_process(HEAD)):
            variables: dict[str, Any] = {
                "CLARY_PORT": "0",
                "CLARY_TLS_PORT": str(PORT),
                "CLARY_DEFAULT_PYTHON": str(TRAIN_PYTHON),
                "PATH": os.environ["PATH"],
            }
            bed.clary("up", **variables)
            try:
                bed.clary("hosts", "add", *(f"root@{box}" for box in bed.boxes), **variables)
                words = bed.clary("env", **variables).stdout.splitlines()
                environment = {**_without_aws(), **_exports(words)}
                yield BoxCluster(bed, BenchmarkService(bed.home, environment, variables), shared)
            finally:
                bed.clary("down", check=False, **variables)
    finally:
        bed.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _without_aws() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}


def _exports(lines: Sequence[str]) -> dict[str, str]:
    found = (line.removeprefix("export ").partition("=") for line in lines if line.startswith("export "))
    return {name: shlex.split(value)[0] for name, _, value in found}
