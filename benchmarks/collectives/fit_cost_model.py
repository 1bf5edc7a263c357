"""Fit the host's constants of the native cost model to measurements of `select`: the least regret over all cases.

Run: `python -m benchmarks select > lines.jsonl`, then `python -m benchmarks.collectives.fit_cost_model lines.jsonl
...`. Prints the constants of native/src/topology/cost_model.cc. An algorithm's time is modelled as there:

    what hops and wire cost by the link's constants
    + ranks x steps of a host x step_s + messages x message_s + bytes read on one host x byte_s

Constants come from a grid; of those with equal regret the ones in the middle are taken. Cases are left out where a
token bucket lets the whole message pass at once: on no real link is the wire free.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SLOT_BYTES = 1 << 20
LATENCY_S = 50e-6  # that a lab's groups are told for a link without delay
LINK_BYTES_PER_S = 125e6
FREE_BYTES = 1 << 18  # of a token bucket at this rate
SMALL_BYTES = 4096  # so little that the wire hardly counts
STEP_S = tuple(0.4e-6 * 1.3**i for i in range(12))
MESSAGE_S = tuple(0.5e-6 * 1.6**i for i in range(9))
BYTES_PER_S = tuple(2e9 * 1.35**i for i in range(11))


class Modelled(NamedTuple):
    """One algorithm in one case: its measured time, and the quantities that the model counts."""

    seconds: float
    link_s: float
    steps: float  # ranks x steps of a host
    messages: float
    bytes_read: float

    def predicted_s(self, step_s: float, message_s: float, bytes_per_s: float) -> float:
        """Return the time that the model predicts with these constants."""
        return self.link_s + self.steps * step_s + self.messages * message_s + self.bytes_read / bytes_per_s


def main(arguments: list[str]) -> int:
    """Fit and print."""
    cases = [case for path in arguments for case in _read(Path(path))]
    regrets = {
        constants: statistics.mean(_regret(case, constants) for case in cases)
        for constants in itertools.product(STEP_S, MESSAGE_S, BYTES_PER_S)
    }
    least = min(regrets.values())
    best = [constants for constants, regret in regrets.items() if regret <= least * 1.001]
    middle = [statistics.median(constants[place] for constants in best) for place in range(3)]
    names = ("kStepSecondsPerRank", "kMessageSeconds", "kHostBytesPerSecond")
    for name, value, place in zip(names, middle, range(3), strict=True):
        span = [constants[place] for constants in best]
        print(f"{name}: {value:.2g} ({min(span):.2g} to {max(span):.2g} are equally good)")
    print(f"{len(cases)} cases; mean regret {least:.1%}, at most {max(_regret(c, tuple(middle)) for c in cases):.1%}")
    return 0


def _regret(case: list[Modelled], constants: tuple[float, ...]) -> float:
    chosen = min(case, key=lambda one: one.predicted_s(*constants))
    return chosen.seconds / min(one.seconds for one in case) - 1


def _read(path: Path) -> Iterator[list[Modelled]]:
    for text in path.read_text(encoding="utf-8").splitlines():
        if not text.startswith("{"):
            continue
        line = json.loads(text)
        words = dict(re.findall(r"(\w+)=([\w.]+)", line["case"]))
        hosts, ranks, num_bytes = int(words["hosts"]), int(words["ranks"]), int(words["bytes"])
        delay_s = float(words.get("delay_ms", 0)) / 1000
        if hosts > 1 and not delay_s and SMALL_BYTES < num_bytes <= 4 * FREE_BYTES:
            continue
        yield [
            _model(algorithm, float(seconds), num_bytes, hosts, ranks // hosts, LATENCY_S + delay_s)
            for algorithm, seconds in line["details"]["medians_s"].items()
        ]


def _model(algorithm: str, seconds: float, num_bytes: int, hosts: int, local: int, latency_s: float) -> Modelled:
    """Count as `cost_model.cc` does."""
    if algorithm == "shm-oneshot":
        return Modelled(seconds, 0.0, local, 0.0, num_bytes * float(local))
    others_here = (local - 1) / local
    steps = local * (max(1, math.ceil(num_bytes * others_here / SLOT_BYTES)) + 1) if local > 1 else 0
    read_here = num_bytes * (2 * others_here + 1) if local > 1 else 0.0
    if hosts == 1:
        return Modelled(seconds, 0.0, steps, 0.0, read_here)
    others = hosts - 1
    hops, messages, wires, reads = {
        "oneshot": (1.0, float(others), float(others), float(hosts)),
        "direct": (2.0, 2.0 * others, 2 * others / hosts, 1.0),
        "ring": (2.0 * others, 2.0 * others, 2 * others / hosts, 1.0),
        "halving-doubling": (2 * math.log2(hosts), 2 * math.log2(hosts), 2 * others / hosts, 1.0),
    }[algorithm]
    link_s = hops * latency_s + wires * num_bytes / LINK_BYTES_PER_S
    return Modelled(seconds, link_s, steps, messages, read_here + reads * num_bytes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
