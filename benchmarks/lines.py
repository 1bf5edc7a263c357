"""One result as one JSON line, with the machine and the commit that it was measured on."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GIB = 1024**3


@dataclass(frozen=True, kw_only=True)
class Line:
    """A result line, as docs/benchmarks.md describes it; `ratio` is above 1 when ours is better."""

    case: str
    metric: str
    unit: str
    better: str  # higher or lower
    ours: float
    peers: dict[str, float] = field(default_factory=dict)
    peer_note: str = ""
    bound: float | None = None
    bound_note: str = ""
    goal: str = ""
    met: bool | None = None
    samples: int = 1
    spread: float | None = None  # interquartile range over median
    verified: bool = False
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Ours against the best peer."""
        if not self.peers or not self.ours:
            return None
        if self.better == "higher":
            return self.ours / max(self.peers.values())
        return min(self.peers.values()) / self.ours

    @property
    def bound_ratio(self) -> float | None:
        """How close to the bound, 1 is at it."""
        if not self.bound or not self.ours:
            return None
        return self.ours / self.bound if self.better == "higher" else self.bound / self.ours


def write(bench: str, line: Line, *, record: bool) -> None:
    """Print a line and, if asked, append it to the results."""
    document = {"bench": bench, **asdict(line), "ratio": line.ratio, "bound_ratio": line.bound_ratio}
    document |= {"host": _host(), "commit": _commit()}
    text = json.dumps(document)
    print(text, flush=True)
    if record:
        results = Path(__file__).parent / "results"
        results.mkdir(exist_ok=True)
        with (results / f"{bench}.jsonl").open("a") as stream:
            stream.write(text + "\n")


def median_and_spread(samples: list[float]) -> tuple[float, float | None]:
    """Return the median, and the interquartile range over it where there are enough samples."""
    middle = statistics.median(samples)
    if len(samples) < 4 or not middle:
        return middle, None
    first, _, third = statistics.quantiles(samples, n=4)
    return middle, (third - first) / middle


def percentile(samples: list[float], percent: float) -> float:
    """Return the smallest sample that at least `percent` of all are not above."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


@cache
def _host() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cores": os.cpu_count(), "memory_gib": round(memory / GIB), "kernel": platform.release()}


@cache
def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + (" dirty" if git("status", "--porcelain") else "")
