"""One training process of `bench_observe`: trains a block of steps whenever it is told to.

Where: `bench_observe` starts `python -m benchmarks.sight.observe_rank JSON_OF_ORDERS`, writes `block N` or `profiled N`
on its input, and reads one line of JSON for each: what N steps took.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

from benchmarks.training.training_models import Workload

SEED = 11
WINDOW_STEPS = 5
_WRITTEN_S = 60.0


def main() -> None:
    """Serve until the input ends."""
    orders = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    work = Workload(orders["model"], seed=SEED, images=Path())
    optimizer = work.optimizer(work.model)
    step = 0
    print(json.dumps({"ready": True, "modules": sorted(name for name in sys.modules if "clary" in name)}), flush=True)
    for line in sys.stdin:
        kind, number = line.split()
        request = _ask() if kind == "profiled" else None
        began, cpu_began = time.perf_counter(), time.process_time()
        longest, loss = 0.0, torch.zeros(())
        for _ in range(int(number)):
            step_began = time.perf_counter()
            optimizer.zero_grad()
            loss = work.loss(work.model, step, 0)
            loss.backward()
            optimizer.step()
            step += 1
            longest = max(longest, time.perf_counter() - step_began)
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
        answer = {
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "longest_s": longest,
            "loss": loss.item(),
        }
        if request is not None:
            answer["profile"] = {"is_in_time": _state(request) == "done", **_written(request)}
        print(json.dumps(answer), flush=True)
    os._exit(0)


def _ask() -> int:
    """Leave a request as an agent does, and wait until it is seen: looking is no part of the window's cost."""
    folder = Path(os.environ["CLARY_PROFILES_FOLDER"])
    number = time.time_ns() // 1_000_000
    draft = folder / ".draft"
    draft.write_text(json.dumps({"number": number, "num_steps": WINDOW_STEPS, "give_up_at": time.time() + 100}))
    draft.replace(folder / f"request-{number}.json")
    _await(_place(number), ("waiting",))
    return number


def _written(number: int) -> dict[str, object]:
    found = _await(_place(number), ("done", "failed", "refused"))
    return {name: found[name] for name in ("state", "words", "bounds_ns", "trace_bytes")}


def _state(number: int) -> object:
    return json.loads(_place(number).read_text())["state"]


def _place(number: int) -> Path:
    return Path(os.environ["CLARY_PROFILES_FOLDER"]) / f"out/{number}/rank-0.json"


def _await(place: Path, states: tuple[str, ...]) -> dict[str, object]:
    end_s = time.monotonic() + _WRITTEN_S
    while time.monotonic() < end_s:
        if place.exists() and (found := json.loads(place.read_text()))["state"] in states:
            return dict(found)
        time.sleep(0.01)
    raise SystemExit(f"{place} did not become {' or '.join(states)} within {_WRITTEN_S:g} s")


if __name__ == "__main__":
    main()
