"""Dumps of invented jobs: ranks that compute, ranks that wait, and the ranks that the waiting ones wait for."""

from __future__ import annotations

from datetime import UTC, datetime

from clary.contract.stack_dumps import Frame, HostDump, ProcessDump, ThreadStack
from clary.control.analysis.autopsy import Weight, examine

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ALL_REDUCE = (
    ("all_reduce", "torch/distributed/distributed_c10d.py", 3252),
    ("_exception_logger.<locals>.wrapper", "torch/distributed/c10d_logger.py", 83),
    ("step", "train.py", 35),
    ("<module>", "train.py", 38),
)
BARRIER = (
    ("barrier", "torch/distributed/distributed_c10d.py", 5356),
    ("step", "train.py", 34),
    ("<module>", "train.py", 38),
)
LOADING = (
    ("wait", "multiprocessing/connection.py", 947),
    ("_try_get_data", "torch/utils/data/dataloader.py", 1291),
    ("step", "train.py", 16),
    ("<module>", "train.py", 38),
)
COMPUTING = (("busy", "train.py", 28), ("step", "train.py", 34), ("<module>", "train.py", 38))


def process(
    rank, calls, *, pid=None, state="S", waits=0, cpu=0.0, moved=0, channel="futex", parent=1, sockets=(), runnable=0.0
):
    frames = tuple(Frame(function=function, file=file, line=line) for function, file, line in calls)
    threads = (ThreadStack(thread=1, name="MainThread", is_main=True, frames=frames),) if frames else ()
    return ProcessDump(
        pid=100 + rank if pid is None else pid,
        parent=parent,
        rank=rank,
        command="python train.py",
        state=state,
        wait_channel=channel,
        cpu_s=1.0,
        num_waits=waits,
        cpu_used_s=cpu,
        bytes_moved=moved,
        runnable_s=runnable,
        threads=threads,
        sockets=tuple(sockets),
        error="" if frames else "py-spy: Permission denied",
    )


def host(name, *processes, address="10.0.0.1", error=""):
    return HostDump(
        number=1,
        reason="",
        host=name,
        taken_at=NOW,
        addresses=(address,),
        processes=processes,
        watched_s=0.7,
        error=error,
    )


def gang(*processes):
    """Return dumps of two hosts, with the ranks alternately on one and the other."""
    return {
        "algo-1": host("algo-1", *processes[0::2]),
        "algo-2": host("algo-2", *processes[1::2], address="10.0.0.2"),
    }


def suspects(dumps, num_ranks=4, weights=(Weight.SUSPECT,)):
    found = examine(dumps, hosts=("algo-1", "algo-2"), num_ranks=num_ranks).suspicions
    return [(suspicion.who.partition(" (")[0], suspicion.why) for suspicion in found if suspicion.weight in weights]


def waiting(*others):
    """Return dumps of four ranks: ranks that wait in all_reduce, then these other ranks."""
    ranks = [process(rank, ALL_REDUCE) for rank in range(4 - len(others))]
    return gang(*ranks, *others)
