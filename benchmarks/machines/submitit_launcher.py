"""Submits one program by submitit to Slurm and waits for it: `python submitit_launcher.py ORDER`.

Where: `slurm_cluster.start_submitit` runs it in the environment `.venvs/submitit`, on the cluster's head. ORDER is
JSON: folder, program, arguments, num_nodes. It prints `SUBMIT seconds` just before it submits and `JOB number` after
that.
"""

from __future__ import annotations

import json
import os
import runpy
import socket
import subprocess
import sys
import time

import submitit  # type: ignore[import-not-found, unused-ignore]

PORT = 29502
POLL_S = 0.2


class Rank:
    """One rank: submitit pickles it and runs it on each node."""

    def __init__(self, program: str, arguments: list[str]) -> None:
        self.program = program
        self.arguments = arguments

    def __call__(self) -> None:
        place = submitit.JobEnvironment()
        first = subprocess.run(
            ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()[0]
        os.environ |= {
            "RANK": str(place.global_rank),
            "WORLD_SIZE": str(place.num_tasks),
            "LOCAL_RANK": str(place.local_rank),
            "GROUP_RANK": str(place.node),
            "MASTER_ADDR": socket.gethostbyname(first),
            "MASTER_PORT": str(PORT),
            "OMP_NUM_THREADS": "1",
        }
        sys.argv = [self.program, *self.arguments]
        runpy.run_path(self.program, run_name="__main__")


def main() -> None:
    """Submit, say so, and wait until Slurm lists the job no more."""
    order = json.loads(sys.argv[1])
    executor = submitit.AutoExecutor(folder=order["folder"], cluster="slurm")
    executor.update_parameters(
        nodes=order["num_nodes"],
        tasks_per_node=1,
        timeout_min=10,
        slurm_partition="train",
        slurm_additional_parameters={"exclusive": True},
    )
    print(f"SUBMIT {time.time():.6f}", flush=True)
    job = executor.submit(Rank(order["program"], order["arguments"]))
    print(f"JOB {job.job_id}", flush=True)
    while subprocess.run(["squeue", "-h", "-j", job.job_id], capture_output=True, check=False).stdout.strip():
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
