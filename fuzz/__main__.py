"""`python -m fuzz [TARGET...] [--seconds N]`: fuzz each target, keep its new inputs, and report the outcome.

Where: `make fuzz`. Each target runs in a process of its own; its working files, and inputs that led to a finding, lie
in .cache/fuzz/TARGET. The kept corpus is the smallest that covers what the target has ever covered.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fuzz.corpus_files import pack, read_corpus, unpack, write_corpus
from fuzz.targets import TARGETS

CACHE = Path(".cache/fuzz")
MAX_INPUT_BYTES = 2048
INPUT_TIMEOUT_S = 30  # one input that takes longer is a hang
MEMORY_LIMIT_MB = 2048
START_ALLOWANCE_S = 120.0  # for a process that is held up by others; what it does by itself is bounded by libFuzzer
MERGE_TIMEOUT_S = 1200.0
MIN_EDGES = 20  # that the first inputs of any target cover
NUM_FIRST_INPUTS = 150  # of a target that has no corpus yet
_EDGES = re.compile(r" cov: (\d+) ft: (\d+)")
_RUNS = re.compile(r"stat::number_of_executed_units: *(\d+)")


@dataclass(frozen=True)
class Outcome:
    """How the run of one target went."""

    target: str
    num_runs: int
    elapsed_s: float
    num_edges: int
    num_features: int
    num_inputs: int  # kept
    findings: tuple[Path, ...]

    def __str__(self) -> str:
        verdict = "nothing found"
        if self.findings:
            verdict = f"FOUND: {', '.join(map(str, self.findings))}"
        return (
            f"{self.target:<12} {self.num_runs:>9} runs {self.num_runs / max(self.elapsed_s, 0.001):>7.0f}/s "
            f"{self.num_edges:>6} edges {self.num_features:>6} features {self.num_inputs:>4} inputs kept  {verdict}"
        )


def main() -> int:
    """Run the targets one after the other; 1 if one of them found something."""
    parser = argparse.ArgumentParser(prog="fuzz")
    parser.add_argument("targets", nargs="*", default=list(TARGETS), help=f"of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.targets) - set(TARGETS))
    if unknown:
        parser.error(f"there is no target {unknown[0]!r}; there are {', '.join(TARGETS)}")
    outcomes = []
    for target in arguments.targets:
        outcomes.append(_fuzz(target, seconds=arguments.seconds))
        print(outcomes[-1], flush=True)
    has_found = any(outcome.findings for outcome in outcomes)
    print("verdict: " + ("findings; run one again with `python -m fuzz.engine TARGET FILE`" if has_found else "clean"))
    return 1 if has_found else 0


def _fuzz(target: str, *, seconds: int) -> Outcome:
    folder = CACHE / target
    corpus = folder / "corpus"
    unpack(read_corpus(target) or _first_inputs(), corpus)
    before = _findings(folder)
    began_s = time.monotonic()
    output = _run_engine(
        target,
        [f"-max_total_time={seconds}", "-len_control=0", "-print_final_stats=1", f"-artifact_prefix={folder}/"],
        [corpus],
        timeout_s=seconds + INPUT_TIMEOUT_S + START_ALLOWANCE_S,
    )
    elapsed_s = time.monotonic() - began_s
    (folder / "log.txt").write_text(output)
    findings = sorted(_findings(folder) - before)
    edges = _EDGES.findall(output)
    runs = _RUNS.search(output)
    if runs is None and not findings:
        sys.exit(f"{target} did not run to its end; the last it said:\n{output[-2000:]}")
    if not findings and (not edges or int(edges[-1][0]) < MIN_EDGES):
        sys.exit(f"{target} covered nothing: the product is not instrumented, and bytes were thrown at it blindly")
    kept = write_corpus(target, _merged(target, corpus)) if not findings else len(read_corpus(target))
    num_edges, num_features = map(int, edges[-1]) if edges else (0, 0)
    return Outcome(target, int(runs[1]) if runs else 0, elapsed_s, num_edges, num_features, kept, tuple(findings))


def _findings(folder: Path) -> set[Path]:
    """Return the inputs that led to a finding; slow inputs do not count, they only show that the machine was busy."""
    return {path for kind in ("crash", "timeout", "oom", "leak") for path in folder.glob(f"{kind}-*")}


def _merged(target: str, corpus: Path) -> list[bytes]:
    """Return the smallest part of a corpus with the same coverage as the whole."""
    merged = CACHE / target / "merged"
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir(parents=True)
    output = _run_engine(target, ["-set_cover_merge=1"], [merged, corpus], timeout_s=MERGE_TIMEOUT_S)
    (CACHE / target / "merge.txt").write_text(output)
    inputs = pack(merged)
    if not inputs:
        sys.exit(f"the corpus of {target} could not be minimised; .cache/fuzz/{target}/merge.txt says why")
    return inputs


def _run_engine(target: str, options: list[str], folders: list[Path], *, timeout_s: float) -> str:
    command = [sys.executable, "-m", "fuzz.engine", target, *options]
    command += [f"-max_len={MAX_INPUT_BYTES}", f"-timeout={INPUT_TIMEOUT_S}", f"-rss_limit_mb={MEMORY_LIMIT_MB}"]
    ended = subprocess.run(
        [*command, *map(str, folders)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
    return ended.stdout


def _first_inputs() -> list[bytes]:
    """Return bytes of several lengths, the same every time: from single bytes structures take long to grow."""
    source = random.Random(0)
    return [source.randbytes(source.choice((16, 60, 200, 600))) for _ in range(NUM_FIRST_INPUTS)]


if __name__ == "__main__":
    sys.exit(main())
