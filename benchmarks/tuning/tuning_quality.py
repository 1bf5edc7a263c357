"""Distance of searches from known minima of functions: ours, Optuna alone, a Gaussian process, random search.

Where: `bench_tuning` prints the lines.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from benchmarks.lines import Line
from benchmarks.tuning.json_process import JsonProcess
from benchmarks.tuning.search_comparison import GOAL, Found, line_of, search
from benchmarks.tuning.tuning_functions import FUNCTIONS
from benchmarks.tuning.tuning_searches import gaussian_process

NUM_POINTS = 50
AT_A_TIME = 2  # functions: the Gaussian process of each computes in an interpreter of its own
ROUNDING = 1e-4  # that known minima are told with


def quality(num_seeds: int) -> Iterator[Line]:
    """Search each function with as many seeds, and count the functions on which the goal is met."""
    found: dict[str, Found] = {}
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(AT_A_TIME) as pool:
        peers: queue.Queue[JsonProcess | None] = queue.Queue()
        for _ in range(AT_A_TIME):
            peers.put(stack.enter_context(gaussian_process()))

        def searched(name: str) -> Found:
            peer = peers.get()
            try:
                return regrets(name, peer, num_seeds)
            finally:
                peers.put(peer)

        for name, one in zip(FUNCTIONS, pool.map(searched, FUNCTIONS), strict=True):
            found[name] = one
            yield line_of_function(name, one, num_seeds)
    yield summary(found, num_seeds)


def regrets(name: str, peer: JsonProcess | None, num_seeds: int) -> Found:
    """Search a function, and return distances from its minimum in place of values.

    Args:
        name: of the function.
        peer: a search in another interpreter; None if it is missing.
        num_seeds: of each search.
    """
    space, function, least = FUNCTIONS[name]
    found = search(space, function, peer, num_seeds=num_seeds, num_points=NUM_POINTS, name=name)
    return replace(found, least={who: [value - least for value in values] for who, values in found.least.items()})


def line_of_function(name: str, found: Found, num_seeds: int) -> Line:
    """Return the line of a function; nobody may have found less than its minimum.

    Args:
        name: of the function.
        found: distances.
        num_seeds: of each search.
    """
    line = line_of(f"{name},points={NUM_POINTS},seeds={num_seeds}", "regret_median", found, num_seeds=num_seeds)
    is_possible = all(value >= -ROUNDING for values in found.least.values() for value in values)
    return replace(line, verified=line.verified and is_possible)


def summary(found: dict[str, Found], num_seeds: int) -> Line:
    """Return a line that counts the functions on which the goal is met, and names the others.

    Args:
        found: distances by function.
        num_seeds: of each search.
    """
    outside = [name for name, one in found.items() if not one.is_within_optunas()]
    not_below = [name for name, one in found.items() if not one.is_below_random()]
    num_met = len(set(found) - set(outside) - set(not_below))
    return Line(
        case=f"functions={len(found)},points={NUM_POINTS},seeds={num_seeds}",
        metric="functions_with_goal_met",
        unit="",
        better="higher",
        ours=num_met,
        goal=f"all: {GOAL}",
        met=num_met == len(found),
        samples=num_seeds,
        verified=bool(found) and all(one.is_repeatable for one in found.values()),
        details={"above_optunas_third_quartile": outside, "not_below_random": not_below},
    )
