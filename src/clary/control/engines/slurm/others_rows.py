"""Reads squeue's lines on waiting jobs of all users, for which the service gives up unused hosts. Pure.

Where: `scheduler.wanted` requests the format below while the service keeps unused hosts. A cluster with PrivateData
shows only the service's own jobs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clary.control.engines.slurm.host_lists import expand
from clary.control.engines.slurm.node_rows import NodeRow, num_gpus

WAITING_FORMAT = "%A|%u|%P|%n|%b|%r|%f"
_NUM_FIRST = 6  # fields before the features, which may contain the separator
_FOR_NODES = ("Resources", "Priority")  # reasons for waiting that free nodes would remove
_NOTHING = ("", "(null)", "N/A")
_GPU = re.compile(r"(?:^|[,:/])gpu\b")
_PLAIN = re.compile(r"[A-Za-z0-9_.=@/+-]+(?:([&|])[A-Za-z0-9_.=@/+-]+(?:\1[A-Za-z0-9_.=@/+-]+)*)?")


@dataclass(frozen=True, kw_only=True)
class WaitingRow:
    """A job, or a component of a job, that waits for nodes."""

    job_id: int
    user: str
    partitions: tuple[str, ...]
    named_nodes: tuple[str, ...]  # nodes that the job requires; may be empty
    wants_gpus: bool
    features: str  # as the job wrote them; may be empty

    @property
    def words(self) -> str:
        """Name of the job for people."""
        return f"Slurm job {self.job_id} of {self.user} waits for nodes"


def read_waiting(text: str) -> tuple[WaitingRow, ...]:
    """Return the jobs that free nodes would help; other jobs and broken lines are skipped.

    Args:
        text: output of squeue with WAITING_FORMAT.
    """
    found = []
    for line in text.split("\n"):
        fields = line.split("|", _NUM_FIRST)
        if len(fields) != _NUM_FIRST + 1 or not fields[0].isdigit() or fields[5] not in _FOR_NODES:
            continue
        row = WaitingRow(
            job_id=int(fields[0]),
            user=fields[1],
            partitions=tuple(fields[2].split(",")),
            named_nodes=() if fields[3] in _NOTHING else expand(fields[3]),
            wants_gpus=_GPU.search(fields[4]) is not None,
            features="" if fields[6].strip() in _NOTHING else fields[6].strip(),
        )
        found.append(row)
    return tuple(found)


def wanted_by(waiting: Iterable[WaitingRow], nodes: Iterable[str], by_name: Mapping[str, NodeRow]) -> WaitingRow | None:
    """Return the first waiting job that one of these nodes could serve, or None.

    Args:
        waiting: jobs, in the order in which Slurm lists them.
        nodes: names of nodes that would be free.
        by_name: all nodes of the cluster.
    """
    rows = [by_name[node] for node in nodes if node in by_name]
    return next((job for job in waiting if any(_could_serve(row, job) for row in rows)), None)


def _could_serve(node: NodeRow, job: WaitingRow) -> bool:
    if not set(node.partitions) & set(job.partitions):
        return False
    if job.named_nodes and node.name not in job.named_nodes:
        return False
    if job.wants_gpus and not num_gpus(node.gres):
        return False
    plain = _PLAIN.fullmatch(job.features)
    if plain is None:
        return True  # no features, or a form that only Slurm understands
    names = re.split(r"[&|]", job.features)
    return any(name in node.features for name in names) if plain[1] == "|" else set(names) <= set(node.features)
