"""Ranks that save as fast as they can and are killed at random moments; run as `program FOLDER NUM_KILLS SEED`.

The parent imports torch once and forks the ranks of every round. A rank restores what the round before has left, checks
all of it and says so; then it saves until it is killed. Prints one line of JSON: what each round restored.
"""

import json
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
from clary.train.checkpoint import keeper as loaded  # before the forks, so that every round needs less time

NUM_RANKS = 2
LIMIT_S = 20.0
LONGEST_MS = 150  # from the first save of a round to the kill: several saves
LONGEST_SAVES = 6  # the same on a disk that takes longer for them
MOST_S = 2.0  # however slow it is
assert loaded.Keeper is checkpoint.Keeper


def be_rank(rank, folder, number):
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
    with (folder / f"log-{rank}").open("a") as log:
        print(json.dumps({"round": number, "restored": step}), file=log, flush=True)
        step = -1 if step is None else step
        while True:
            step += 1
            state["step"] = step
            with torch.no_grad():
                for parameter in model:
                    parameter.fill_(step)
            began_s = time.monotonic()
            try:
                keeper.save(step, state)  # the step before is on all disks now
            except checkpoint.CheckpointError as error:  # the other rank was killed
                print(json.dumps({"round": number, "told": str(error)}), file=log, flush=True)
                return
            took_s = time.monotonic() - began_s
            print(json.dumps({"round": number, "whole": step - 1, "took_s": took_s}), file=log, flush=True)


def fork(rank, folder, number):
    process = os.fork()
    if process:
        return process
    try:
        be_rank(rank, folder, number)
    except BaseException:  # noqa: BLE001 - told to the parent; a child that lived on would fork too
        with (folder / "failures").open("a") as file:
            file.write(f"round {number}, rank {rank}: {traceback.format_exc()}")
    finally:
        os._exit(0)


def told(folder, rank):
    path = folder / f"log-{rank}"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def last_words(folder, rank, number):
    """Return what a rank says of the loss of the other, which it learns of by itself."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        words = [one["told"] for one in told(folder, rank) if one["round"] == number and "told" in one]
        if words:
            return words[0]
        time.sleep(0.005)
    return f"rank {rank} said nothing in {LIMIT_S:g} s"


def longest_s(folder):
    """Return how long after the first save of a round a kill may come: several saves, as long as they take here."""
    took = [one["took_s"] for rank in range(NUM_RANKS) for one in told(folder, rank) if "took_s" in one]
    return min(MOST_S, max(LONGEST_MS / 1000, LONGEST_SAVES * statistics.median(took))) if took else LONGEST_MS / 1000


def run(folder, num_kills, seed):
    dice = random.Random(seed)
    restored, words, whole = [], [], None
    for number in range(num_kills + 1):
        processes = [fork(rank, folder, number) for rank in range(NUM_RANKS)]
        victims = dice.choice([[0], [1], [0, 1], [1, 0]])
        try:
            deadline_s = time.monotonic() + LIMIT_S
            while time.monotonic() < deadline_s and not (folder / "failures").exists():
                here = [one for rank in range(NUM_RANKS) for one in told(folder, rank) if one["round"] == number]
                if sum("restored" in one for one in here) == NUM_RANKS:
                    break
                time.sleep(0.005)
            else:
                break
            time.sleep(dice.uniform(0, longest_s(folder)))
            for victim in victims:
                os.kill(processes[victim], signal.SIGKILL)
            if len(victims) == 1:
                words.append(last_words(folder, 1 - victims[0], number))
        finally:
            for process in processes:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
        found = {
            one["restored"]
            for rank in range(NUM_RANKS)
            for one in told(folder, rank)[-10000:]
            if one["round"] == number and "restored" in one
        }
        assert len(found) == 1, f"round {number}: ranks restored {found}"
        restored.append(found.pop())
        assert whole is None or (restored[-1] is not None and restored[-1] >= whole), (number, restored[-1], whole)
        saved = [one["whole"] for rank in range(NUM_RANKS) for one in told(folder, rank) if one.get("whole", -1) >= 0]
        whole = max(saved, default=None)
    failures = folder / "failures"
    return {"restored": restored, "words": words, "failures": failures.read_text() if failures.exists() else ""}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))), flush=True)
