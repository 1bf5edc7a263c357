"""Traces of spot capacity: made from a seed, or public ones, and how long there is enough of it. Pure but for `load`.

Where: `spot` plays them; docs/spot.md describes the form, which is that of github.com/skypilot-org/spot-traces.

A trace that is made alternates stretches with all hosts and stretches with fewer. Their lengths are log-normal with the
means and medians of us-west-2a_v100_1.json there, below availability/1-node/aws-10-26-2022 (3895 steps of 600 s): most
stretches are short and a few very long, so that an interruption often follows soon after the last.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

GAP_S = 600
SECONDS_PER_HOUR = 3600
# Hours, read off that trace: available in 0.79 of all time, 127 stretches with capacity and 126 without.
MEAN_ON_H, MEDIAN_ON_H = 4.1, 0.5
MEAN_OFF_H, MEDIAN_OFF_H = 1.1, 0.5


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Hosts in each step of time."""

    gap_s: float
    hosts: tuple[int, ...]

    @property
    def length_s(self) -> float:
        """Seconds, in time of the trace."""
        return self.gap_s * len(self.hosts)

    def cut(self, hours: float) -> Trace:
        """Return its first hours."""
        count = max(1, math.ceil(hours * SECONDS_PER_HOUR / self.gap_s))
        return Trace(gap_s=self.gap_s, hosts=self.hosts[:count])

    def available_s(self, num_hosts: int, begin_s: float, end_s: float) -> float:
        """Return the seconds between two moments of the trace in which there are enough hosts."""
        return sum(
            max(0.0, min(end_s, (index + 1) * self.gap_s) - max(begin_s, index * self.gap_s))
            for index, hosts in enumerate(self.hosts)
            if hosts >= num_hosts
        )

    def num_interruptions(self, num_hosts: int) -> int:
        """Return how often enough hosts become too few."""
        pairs = zip(self.hosts, self.hosts[1:], strict=False)
        return sum(earlier >= num_hosts > later for earlier, later in pairs)

    def next_change_s(self, at_s: float) -> float | None:
        """Return the first moment after `at_s` with another number of hosts."""
        changes = (index * self.gap_s for index in _changes(self.hosts) if index * self.gap_s > at_s)
        return next(changes, None)

    def as_json(self) -> str:
        """Return it in the form of public traces."""
        return json.dumps({"metadata": {"gap_seconds": self.gap_s}, "data": list(self.hosts)})


def generate(*, hours: float, num_hosts: int, seed: int) -> Trace:
    """Return a trace that begins with all hosts; see the top."""
    draws = random.Random(seed)
    hosts: list[int] = []
    count = math.ceil(hours * SECONDS_PER_HOUR / GAP_S)
    while len(hosts) < count:
        hosts += [num_hosts] * _steps(draws, MEAN_ON_H, MEDIAN_ON_H)
        hosts += [draws.randrange(num_hosts)] * _steps(draws, MEAN_OFF_H, MEDIAN_OFF_H)
    return Trace(gap_s=GAP_S, hosts=tuple(hosts[:count]))


def load(path: Path) -> Trace:
    """Read a public trace.

    Raises: SystemExit naming the file, if it has not the form of docs/spot.md.
    """
    try:
        document = json.loads(path.read_text())
        return Trace(gap_s=float(document["metadata"]["gap_seconds"]), hosts=tuple(map(int, document["data"])))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{path}: expected a trace as in docs/spot.md: {type(error).__name__}: {error}") from error


def _steps(draws: random.Random, mean_h: float, median_h: float) -> int:
    length_h = draws.lognormvariate(math.log(median_h), math.sqrt(2 * math.log(mean_h / median_h)))
    return max(1, round(length_h * SECONDS_PER_HOUR / GAP_S))


def _changes(hosts: Sequence[int]) -> list[int]:
    return [index for index in range(1, len(hosts)) if hosts[index] != hosts[index - 1]]
