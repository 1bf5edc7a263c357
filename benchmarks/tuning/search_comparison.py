"""Several searches on one problem, one run of each for each seed, and the line that says how they compare.

Where: `tuning_quality` compares them on functions, `tuning_tasks` on real trainings.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.lines import Line
from benchmarks.tuning.json_process import JsonProcess
from benchmarks.tuning.tuning_searches import GP_NOTE, Function, best_of_optuna, best_of_ours, best_of_peer
from clary.control.tuning.parameter_space import Space

OURS, RANDOM, OPTUNA, GAUSSIAN = "ours", "random", "Optuna alone", "Gaussian process (Optuna)"
AMT_NOTE = "AMT's search is published as a paper, not as a program; a Gaussian process stands in place of it"
GOAL = "<= Optuna's third quartile, below random"


@dataclass(frozen=True)
class Found:
    """The least values that searches have found, one for each seed."""

    least: Mapping[str, Sequence[float]]
    is_repeatable: bool  # whether the first point of all gave the same value at the end

    def is_within_optunas(self) -> bool:
        """Whether our median is not above Optuna's third quartile."""
        return statistics.median(self.least[OURS]) <= statistics.quantiles(self.least[OPTUNA], n=4)[-1]

    def is_below_random(self) -> bool:
        """Whether our median is below random search's."""
        return statistics.median(self.least[OURS]) < statistics.median(self.least[RANDOM])


def search(
    space: Space, function: Function, peer: JsonProcess | None, *, num_seeds: int, num_points: int, name: str
) -> Found:
    """Have each search minimize a function once for each seed.

    Args:
        space: of the points.
        function: of a point; the first point is asked for once more at the end.
        peer: a search in another interpreter; None if it is missing.
        num_seeds: of each search.
        num_points: that each may try.
        name: in the messages of progress.
    """
    first: list[tuple[Mapping[str, str], float]] = []

    def noted(point: Mapping[str, str]) -> float:
        value = function(point)
        if not first:
            first.append((dict(point), value))
        return value

    least: dict[str, list[float]] = {OURS: [], RANDOM: [], OPTUNA: []}
    for seed in range(num_seeds):
        print(f"{name}: seed {seed} of {num_seeds}", file=sys.stderr)
        for searcher, strategy in ((OURS, "Bayesian"), (RANDOM, "Random")):
            least[searcher].append(best_of_ours(space, noted, strategy=strategy, seed=seed, num_points=num_points))
        least[OPTUNA].append(best_of_optuna(space, noted, seed=seed, num_points=num_points))
        if peer is not None:
            found = best_of_peer(peer, space, noted, seed=seed, num_points=num_points)
            least.setdefault(GAUSSIAN, []).append(found)
    point, value = first[0]
    return Found(least, is_repeatable=function(point) == value)


def line_of(case: str, metric: str, found: Found, *, num_seeds: int) -> Line:
    """Return the line of a problem: medians, quartiles, and whether each half of the goal is met.

    Args:
        case: of the line.
        metric: of the line; the least is the best.
        found: by the searches.
        num_seeds: that each search should have had.
    """
    medians = {name: statistics.median(values) for name, values in found.least.items()}
    missing = "" if GAUSSIAN in medians else f"; {GP_NOTE}"
    is_within, is_below = found.is_within_optunas(), found.is_below_random()
    return Line(
        case=case,
        metric=metric,
        unit="",
        better="lower",
        ours=round(medians[OURS], 5),
        peers={name: round(value, 5) for name, value in medians.items() if name != OURS},
        peer_note=AMT_NOTE + missing,
        goal=GOAL,
        met=is_within and is_below,
        samples=len(found.least[OURS]),
        verified=found.is_repeatable and all(len(values) == num_seeds for values in found.least.values()),
        details={
            "within_optunas": is_within,
            "below_random": is_below,
            "quartiles": {name: _quartiles(values) for name, values in found.least.items()},
        },
    )


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(values, n=4)
    return round(low, 5), round(high, 5)
