"""Ranks that save as fast as they can and are killed at random moments; run as `program FOLDER NUM_KILLS SEED`.

The parent imports torch once and forks the ranks of every round. A rank restores the step of the round before, checks
every value and reports it; then it saves until it is killed. The kill follows a number of saves, not a time, because a
disk under load takes a hundred times as long for a save. Prints one line of JSON: the step that each round restored.
Every kill is reported on stderr.
"""

import ctypes
import faulthandler
import itertools
import json
import logging
import os
import random
import signal
import statistics
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from clary.train import checkpoint
from clary.train.checkpoint import keeper as loaded  # loaded before the forks, which makes every round faster

NUM_RANKS = 2
LIMIT_S = 60.0  # limit for waits between the ranks, and for waits of the parent for them
STUCK_S = 50.0  # a round that takes longer has its threads' stacks on stderr
MOST_SAVES = 4  # highest number of saves of a rank in a round before the kill
SAVE_S = 0.1  # assumed seconds of a save until one is measured
PR_SET_PDEATHSIG = 1  # prctl(2)
assert loaded.Keeper is checkpoint.Keeper


def be_rank(rank, folder, number):
    logging.basicConfig(format=f"round {number}, rank {rank}: %(message)s", force=True)
    faulthandler.dump_traceback_later(STUCK_S)
    store = dist.FileStore(str(folder / f"store-{number}"), NUM_RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NUM_RANKS, timeout=timedelta(seconds=LIMIT_S))
    model = torch.nn.ParameterList(torch.zeros(300_000) for _ in range(6))
    state = {"model": model, "step": -1}
    keeper = checkpoint.Keeper(folder / f"host-{rank}", limit_s=LIMIT_S)
    step = keeper.restore(state)
    if step is not None:
        assert state["step"] == step, (state["step"], step)
        for parameter in model:
            assert parameter.eq(step).all(), (step, parameter.unique())
    with log_path(folder, rank, number).open("a") as log:

        def tell(**words):
            print(json.dumps({"at_s": round(time.monotonic(), 4), **words}), file=log, flush=True)

        tell(restored=step)
        step = -1 if step is None else step
        while True:
            step += 1
            state["step"] = step
            with torch.no_grad():
                for parameter in model:
                    parameter.fill_(step)
            try:
                keeper.save(step, state)  # returns after the previous step is on all disks
            except checkpoint.CheckpointError as error:  # the other rank was killed
                tell(told=str(error))
                return
            tell(whole=step - 1)


def fork(rank, folder, number):
    parent = os.getpid()
    process = os.fork()
    if process:
        return process
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
        if os.getppid() == parent:  # the parent may have ended before the call
            be_rank(rank, folder, number)
    except BaseException:  # noqa: BLE001 - told to the parent; a child that lived on would fork too
        with (folder / "failures").open("a") as file:
            file.write(f"round {number}, rank {rank}: {traceback.format_exc()}")
    finally:
        os._exit(0)


def log_path(folder, rank, number):
    return folder / f"log-{number:02d}-{rank}"


def told(folder, rank, number, what):
    """Return the lines of a rank in a round that have the key `what`; a line cut by a kill does not count."""
    path = log_path(folder, rank, number)
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [one for one in map(json.loads, lines) if what in one]


def wait_until(is_so, folder, what):
    """Return once `is_so` holds or a rank has failed; the end of the run prints the failure."""
    deadline_s = time.monotonic() + LIMIT_S
    while not is_so():
        if (folder / "failures").exists():
            return
        assert time.monotonic() < deadline_s, f"{what}: not so after {LIMIT_S:g} s"
        time.sleep(0.005)


def last_words(folder, rank, number):
    """Return the error that a rank has reported for the loss of the other rank."""
    wait_until(lambda: told(folder, rank, number, "told"), folder, f"round {number}: rank {rank} tells of its loss")
    return [one["told"] for one in told(folder, rank, number, "told")]


def save_seconds(folder, number):
    """Return the median seconds of a save, over this round and all earlier ones."""
    ends = [
        [one["at_s"] for one in told(folder, rank, before, "whole")]
        for rank in range(NUM_RANKS)
        for before in range(number + 1)
    ]
    took = [end_s - start_s for one in ends for start_s, end_s in itertools.pairwise(one)]
    return statistics.median(took) if took else SAVE_S


def be_round(folder, number, num_saves, dice):
    """Fork ranks that restore and save, kill one or both after `num_saves` saves, and return the survivor's errors."""
    processes = [fork(rank, folder, number) for rank in range(NUM_RANKS)]
    victims = dice.choice([[0], [1], [0, 1], [1, 0]])
    ranks = range(NUM_RANKS)
    try:
        wait_until(
            lambda: all(told(folder, rank, number, "restored") for rank in ranks), folder, f"round {number}: restored"
        )
        wait_until(
            lambda: any(len(told(folder, rank, number, "whole")) >= num_saves for rank in ranks),
            folder,
            f"round {number}: {num_saves} saves",
        )
        delay_s = dice.uniform(0, 1.5 * save_seconds(folder, number))  # up to 1.5 saves later
        time.sleep(delay_s)
        for victim in victims:
            os.kill(processes[victim], signal.SIGKILL)
        words = f"SIGKILL to {victims} {delay_s:.4f} s after {num_saves} saves, at {time.monotonic():.4f}"
        print(f"round {number}: {words}", file=sys.stderr, flush=True)
        return last_words(folder, 1 - victims[0], number) if len(victims) == 1 else []
    finally:
        for process in processes:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def run(folder, num_kills, seed):
    dice = random.Random(seed)
    saves = [number % (MOST_SAVES + 1) for number in range(num_kills + 1)]
    dice.shuffle(saves)
    restored, words, whole = [], [], -1
    failures = folder / "failures"
    for number, num_saves in enumerate(saves):
        words += be_round(folder, number, num_saves, dice)
        if failures.exists():
            break
        found = {one["restored"] for rank in range(NUM_RANKS) for one in told(folder, rank, number, "restored")}
        assert len(found) == 1, f"round {number}: ranks restored {found}"
        restored.append(found.pop())
        assert (-1 if restored[-1] is None else restored[-1]) >= whole, (number, restored[-1], whole)
        said = [one["whole"] for rank in range(NUM_RANKS) for one in told(folder, rank, number, "whole")]
        whole = max(said, default=whole)
    return {"restored": restored, "words": words, "failures": failures.read_text() if failures.exists() else ""}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))), flush=True)
