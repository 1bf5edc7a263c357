"""Ranks in separate processes whose operations are recorded; for programs that run with torch installed."""

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from datetime import UTC, datetime
from pathlib import Path

from clary.agent.autopsy.call_records import groups_of, left_calls, read_records
from clary.contract.collective_records import DTYPES, OPERATIONS, STATES
from clary.contract.stack_dumps import HostDump, ProcessDump
from clary.contract.step_records import FOLDER_VARIABLE
from clary.control.analysis.last_collectives import count_collectives

LIMIT_S = 90.0

RANK = """
    import os, sys, time
    import torch, torch.distributed as dist
    from clary.train.steps import torch_hooks
    torch_hooks.install()
    torch.set_num_threads(1)
    rank, size = int(sys.argv[2]), int(sys.argv[3])
    if sys.argv[4] == "smddp":
        from clary.train.collective.adapters.torch import registration
        registration.autoload()
    dist.init_process_group(sys.argv[4], init_method="file://" + sys.argv[1], rank=rank, world_size=size)
"""


class Ranks:
    """Ranks that run one script, each in its own process."""

    def __init__(self, script, num_ranks, backend="gloo"):
        self.at = tempfile.TemporaryDirectory(prefix="clary-ranks-")
        self.folder = Path(self.at.name)
        environment = {**os.environ, FOLDER_VARIABLE: self.at.name}
        program = textwrap.dedent(RANK) + textwrap.dedent(script)
        command = [sys.executable, "-c", program, f"{self.at.name}/meet"]
        self.all = [
            subprocess.Popen([*command, str(rank), str(num_ranks), backend], env=environment)
            for rank in range(num_ranks)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.at.cleanup()

    def kill(self):
        for rank in self.all:
            rank.kill()
            rank.wait()

    def calls(self, kind="gloo"):
        """Return rank -> its calls in the group of all ranks, newest first."""
        now_ns = time.monotonic_ns()
        records = {record.rank: groups_of(record, now_ns) for record in read_records(self.folder).records}
        found = {}
        for rank, groups in records.items():
            for group in groups:
                if group.kind == kind and not group.is_point_to_point:
                    found[rank] = group.calls
        return found

    def until(self, condition, kind="gloo"):
        end_s = time.monotonic() + LIMIT_S
        while not condition(self.calls(kind)):
            assert time.monotonic() < end_s, self.calls(kind)
            assert None in [rank.poll() for rank in self.all], "all ranks have ended"
            time.sleep(0.05)

    def counted(self, is_over=False):
        """Compare the ranks' records, in the form that a dump of their host has."""
        records, now_ns = read_records(self.folder).records, time.monotonic_ns()
        facts = {"parent": 1, "command": "", "state": "S", "wait_channel": "", "cpu_s": 0.0, "num_waits": 0}
        facts |= {"cpu_used_s": 0.0, "bytes_moved": 0, "threads": (), "sockets": ()}
        processes = [
            ProcessDump(pid=record.process, rank=record.rank, collectives=groups_of(record, now_ns), **facts)
            for record in records
        ]
        dump = HostDump(
            number=1,
            reason="",
            host="algo-1",
            taken_at=datetime.now(UTC),
            addresses=(),
            processes=() if is_over else tuple(processes),
            left=left_calls(records, now_ns) if is_over else (),
        )
        return count_collectives({"algo-1": dump}, num_ranks=len(self.all))


def has(number, state=None):
    """Return a condition: whether a rank's newest call has this number and state."""
    return lambda calls: bool(calls) and calls[0].number == number and state in (None, calls[0].state)


def rows_of_process(folder):
    """Return the rows of this process for the group of all ranks, newest first."""
    (record,) = (record for record in read_records(folder).records if record.process == os.getpid())
    return next(
        group.rows for group in record.groups if group.facts.kind == "gloo" and not group.facts.is_point_to_point
    )


def shown(row):
    """Return operation, number of elements, type and state as text."""
    return OPERATIONS[row.operation], row.num_elements, DTYPES[row.dtype], STATES[row.state]
