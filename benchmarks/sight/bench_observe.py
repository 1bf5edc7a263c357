"""Cost of observing a training: everything at its defaults against nothing, and deep profiles.

Two processes train the same model in blocks that take turns, one at a time. One runs as a job's program does (our
folder on its PYTHONPATH, so that torch calls `clary_autoload`; steps recorded, profiles looked for), with its host
measured beside it twice a second as an agent does; the other with nothing of ours. Losses are compared bit by bit.

    step       (seconds of a block as in a job / seconds of the same block with nothing), the median over a pair of
               processes, and of those the median; blocks are short, so that both of a pair meet the same machine, and
               pairs of processes many, because where a process happens to lie in memory costs or saves it a percent
    host       processor time that measuring takes, as a share of one core
    profile    (seconds of a block with a window of 5 steps in it / seconds of the same block without), the median over
               pairs; what a window costs is then spread over 500 steps. Blocks are short for the same reason, and a
               window whose trace is not written when its block ends does not count as shown
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lines import ROOT, Line, median_and_spread
from clary.agent.environments.config_files import profiles_folder, steps_folder
from clary.agent.environments.train_library import library_folder, write_train_library
from clary.agent.metrics.program_source import ProgramSource
from clary.agent.metrics.sources import AgentSource, DiskSource, MachineSource, Source
from clary.agent.metrics.step_source import StepSource
from clary.contract import deep_profiles, step_records
from clary.contract.ml_tree import MlTree

TRAIN_PYTHON = ROOT / ".venvs/train/bin/python"
MODEL, QUICK_MODEL = "transformer", "small-transformer"
STEPS_A_BLOCK = 2
PROCESS_PAIRS, QUICK_PROCESS_PAIRS = 16, 2
PAIRS, QUICK_PAIRS = 20, 30  # of blocks, by each pair of processes
PROFILED_MODEL = QUICK_MODEL  # its steps are short: the worse case for a window
PROFILED_STEPS = 40  # of which `observe_rank.WINDOW_STEPS` are profiled
PROFILED_PAIRS, QUICK_PROFILED_PAIRS = 50, 4
WARM_UP = 2  # blocks of each that do not count
ROW_S = 0.5
GOAL_STEP, GOAL_HOST, GOAL_PROFILE = 1.005, 0.02, 1.01
AMORTISED_STEPS = 500  # that the goal gives a window


class Rank:
    """A training process that does as it is told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.facts = self._answer()

    def do(self, kind: str, number: int) -> dict[str, Any]:
        """Train a block and return its measurements."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{kind} {number}\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the training process has ended with {self.process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found


def run(quick: bool) -> Iterator[Line]:
    """Measure steps, the host, and windows."""
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="clary-observe-", dir=ROOT / "build") as name:
        model = QUICK_MODEL if quick else MODEL
        tree = MlTree(Path(name) / "ml")
        variables = _job_variables(tree)
        pairs: list[list[_Pair]] = []
        load = {"cpu_s": 0.0, "seconds": 0.0, "num_rows": 0.0}
        for _ in range(QUICK_PROCESS_PAIRS if quick else PROCESS_PAIRS):
            with ExitStack() as stack:
                ours = stack.enter_context(_rank(model, variables))
                bare = stack.enter_context(_rank(model, {}))
                stack.enter_context(_measured(ours.process.pid, steps_folder(tree), load))
                pairs.append(_blocks(ours, bare, QUICK_PAIRS if quick else PAIRS))
        yield _steps_line(pairs, model)
        yield _host_line(load)
        with _rank(PROFILED_MODEL, variables) as ours:
            yield _profiles(ours, PROFILED_MODEL, quick=quick)


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A block as in a job over the same block with nothing."""

    seconds: float
    cpu_seconds: float
    is_same: bool  # the same loss, with our code in the one process alone


def _blocks(ours: Rank, bare: Rank, num_pairs: int) -> list[_Pair]:
    pairs = []
    is_ours_alone = "clary.train.profiling" in ours.facts["modules"] and not bare.facts["modules"]
    for number in range(WARM_UP + num_pairs):
        order = (ours, bare) if number % 2 else (bare, ours)
        found = {rank: rank.do("block", STEPS_A_BLOCK) for rank in order}
        mine, other = found[ours], found[bare]
        if number >= WARM_UP:
            pair = _Pair(
                seconds=mine["seconds"] / other["seconds"],
                cpu_seconds=mine["cpu_seconds"] / other["cpu_seconds"],
                is_same=mine["loss"] == other["loss"] and is_ours_alone,
            )
            pairs.append(pair)
    return pairs


def _steps_line(pairs: Sequence[Sequence[_Pair]], model: str) -> Line:
    flat = [pair for of_processes in pairs for pair in of_processes]
    by_processes = [median_and_spread([pair.seconds for pair in items])[0] for items in pairs]
    middle, spread = median_and_spread(by_processes)
    return Line(
        case=f"{model}, {STEPS_A_BLOCK} steps a block",
        metric="step time, all defaults against nothing",
        unit="times",
        better="lower",
        ours=middle,
        goal=f"<= {GOAL_STEP:g}",
        met=middle <= GOAL_STEP,
        samples=len(flat),
        spread=spread,
        verified=all(pair.is_same for pair in flat),
        details={
            "by_processes": by_processes,
            "of_all_blocks": median_and_spread([pair.seconds for pair in flat])[0],
            "processor_time_ratio": median_and_spread([pair.cpu_seconds for pair in flat])[0],
        },
    )


def _host_line(load: dict[str, float]) -> Line:
    share = load["cpu_s"] / load["seconds"]
    return Line(
        case=f"one rank, a row every {ROW_S:g} s",
        metric="processor time of measuring a host",
        unit="share of a core",
        better="lower",
        ours=share,
        goal=f"<= {GOAL_HOST:g}",
        met=share <= GOAL_HOST,
        samples=int(load["num_rows"]),
        verified=load["num_rows"] > 0,
        details=dict(load),
    )


def _profiles(ours: Rank, model: str, *, quick: bool) -> Line:
    num_steps = PROFILED_STEPS
    ratios: list[float] = []
    cpu_ratios: list[float] = []
    stalls: list[float] = []
    slowdowns: list[float] = []
    windows: list[Any] = []
    for pair in range(1 + (QUICK_PROFILED_PAIRS if quick else PROFILED_PAIRS)):
        found: dict[str, dict[str, Any]] = {}
        # A process that has not stepped yet would be recorded by time: the first of all is a block without a window.
        for kind in ("profiled", "block") if pair % 2 else ("block", "profiled"):
            found[kind] = ours.do(kind, num_steps)
        if not pair:
            continue  # the first window of a process loads what the profiler needs
        plain, profiled = found["block"], found["profiled"]
        bounds = profiled["profile"]["bounds_ns"]
        step_s = plain["seconds"] / num_steps
        windows.append(profiled["profile"])
        ratios.append(profiled["seconds"] / plain["seconds"])
        cpu_ratios.append(profiled["cpu_seconds"] / plain["cpu_seconds"])
        stalls.append(profiled["longest_s"] - plain["longest_s"])
        if len(bounds) > 1:
            slowdowns.append((bounds[-1] - bounds[0]) / 1e9 / (len(bounds) - 1) / step_s)
    amortised, spread = median_and_spread([1 + (ratio - 1) * num_steps / AMORTISED_STEPS for ratio in ratios])
    return Line(
        case=f"{model}, a window of 5 steps in 500",
        metric="step time with deep profiles, amortised",
        unit="times",
        better="lower",
        ours=amortised,
        goal=f"<= {GOAL_PROFILE:g}",
        met=amortised <= GOAL_PROFILE,
        samples=len(ratios),
        spread=spread,
        verified=all(window["is_in_time"] and window["trace_bytes"] for window in windows),
        details={
            "measured_steps": num_steps,
            "ratios": ratios,
            "processor_time_ratio": median_and_spread(cpu_ratios)[0],
            "slowdown_within_the_window": median_and_spread(slowdowns)[0] if slowdowns else None,
            "longest_step_longer_by_s": median_and_spread(stalls)[0],
            "trace_bytes": [window["trace_bytes"] for window in windows],
        },
    )


def _job_variables(tree: MlTree) -> dict[str, str]:
    """Return the variables by which our library observes a job's program."""
    write_train_library(tree)
    for folder in (profiles_folder(tree), steps_folder(tree)):
        folder.mkdir(parents=True)
    return {
        "PYTHONPATH": str(library_folder(tree)),
        deep_profiles.FOLDER_VARIABLE: str(profiles_folder(tree)),
        step_records.FOLDER_VARIABLE: str(steps_folder(tree)),
    }


@contextmanager
def _rank(model: str, variables: dict[str, str]) -> Iterator[Rank]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("CLARY_", "PYTHONPATH"))}
    process = subprocess.Popen(
        [str(TRAIN_PYTHON), "-m", "benchmarks.sight.observe_rank", json.dumps({"model": model})],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # Kineto says there when a window begins
        text=True,
        env={**clean, "OMP_NUM_THREADS": "1", **variables},
    )
    try:
        yield Rank(process)
    finally:
        process.kill()
        process.communicate()


@contextmanager
def _measured(pid: int, steps: Path, load: dict[str, float]) -> Iterator[None]:
    """Measure a host beside its program, as an agent does; add the rows, processor time and seconds to `load`."""
    sources: list[Source] = [
        AgentSource(),
        MachineSource(),
        DiskSource((Path.cwd(),)),
        ProgramSource(pid, ranks={pid: 0}, has_own_network=False),
        StepSource(steps),
    ]
    ending = threading.Event()

    def measure() -> None:
        began_s = time.monotonic()
        while not ending.wait(ROW_S):
            for source in sources:
                source.read(time.monotonic())
            load["num_rows"] += 1
        load["cpu_s"] += time.thread_time()
        load["seconds"] += time.monotonic() - began_s

    thread = threading.Thread(target=measure, name="measuring", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
        for source in sources:
            source.close()
