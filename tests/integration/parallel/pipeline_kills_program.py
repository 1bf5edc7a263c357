"""Program that kills a rank of a pipeline at every action of its schedule, and reports the ends of the others.

Run as a script with a backend and a schedule's name. One process imports torch; each case forks its ranks from it.
Prints one JSON object per case: the killed rank, the action, and by rank the error, None if the step succeeded.
"""

import json
import os
import signal
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from clary.train.collective.adapters.torch.registration import register
from clary.train.parallel.pipeline.executor import Pipeline
from clary.train.parallel.pipeline.schedules import one_f_one_b
from clary.train.parallel.pipeline.zero_bubble import zbv

SCHEDULES = {"1f1b": one_f_one_b(3, 2), "1f1b of two": one_f_one_b(2, 2), "zbv": zbv(2, 2)}
LIMIT_S = 20.0


class Deadly(Pipeline):
    """Kills its process at the action `kill_at`."""

    kill_at = None

    def _perform(self, action, received):
        if action == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._perform(action, received)


def be_rank(rank, schedule, backend, folder, kill_at):
    size = len(schedule.ranks)
    dist.init_process_group(
        backend,
        store=dist.FileStore(str(folder / "store"), size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=LIMIT_S),
    )
    stages = {stage: nn.Linear(4, 4) for stage in schedule.stages_of(rank)}
    pipeline = Deadly(stages, schedule, dist.group.WORLD, lambda given, _: given.mean(), timeout_s=LIMIT_S)
    inputs = torch.ones(4, 4)
    pipeline.step(inputs)  # afterwards shapes are known and receives are posted early
    pipeline.kill_at = kill_at
    failure = None
    try:
        pipeline.step(inputs)
    except Exception as error:  # noqa: BLE001 - told to the test
        failure = [type(error).__name__, str(error)]
    (folder / f"told-{rank}").write_text(json.dumps(failure), encoding="utf-8")
    # The process keeps running, like a program that catches the error: other ranks must learn of the failure without
    # its end.
    deadline_s = time.monotonic() + 2 * LIMIT_S
    while len(list(folder.glob("told-*"))) < size - 1 and time.monotonic() < deadline_s:
        time.sleep(0.01)


def run_case(schedule, backend, kill_at):
    with tempfile.TemporaryDirectory(prefix="clary-pipeline-kills-") as name:
        folder = Path(name)
        ranks = {}
        for rank in range(len(schedule.ranks)):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    be_rank(rank, schedule, backend, folder, kill_at)
                    code = 0
                finally:
                    os._exit(code)
            ranks[pid] = rank
        codes = {}
        while ranks:
            pid, status = os.wait()
            codes[ranks.pop(pid)] = os.waitstatus_to_exitcode(status)
        told = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("told-*")}
    by_rank = [told.get(f"told-{rank}") for rank in range(len(schedule.ranks))]
    print(json.dumps({"killed_at": str(kill_at), "codes": [codes[rank] for rank in sorted(codes)], "by_rank": by_rank}))


def main(backend, name):
    torch.set_num_threads(1)
    register()
    # Import torch's lazy modules once before the forks, because this takes longer than a case.
    torch.autograd.backward([nn.Linear(4, 4)(torch.ones(4, 4))], [torch.ones(4, 4)])
    schedule = SCHEDULES[name]
    for actions in schedule.ranks:
        for action in actions:
            run_case(schedule, backend, action)
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)
