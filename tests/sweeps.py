"""Selection of a sample of the longest tests for one `make test`.

A plugin that tests/conftest.py names. `make test` passes a seed in CLARY_TEST_SEED; tests that the seed leaves out are
skipped, with the seed in the reason. Without a seed, as under `make test-all` and plain pytest, all tests run.

`@pytest.mark.sweep("size")` says which parameters a test sweeps over, such as the number of ranks: one value runs.
`@pytest.mark.long` marks a test function that takes more than 8 s on two quiet cores, `@pytest.mark.long(90)` one that
takes so many seconds, all values of its parameters together; in `pytestmark` it marks a module whose tests share a long
setup. Marked functions and modules are chosen whole until they fill LONG_BUDGET_S, so `make test` takes no longer when
tests are added.
"""

import os
import random
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

SEED = "CLARY_TEST_SEED"
LONG_BUDGET_S = 780.0  # as if one worker ran all chosen tests
LONG_S = 25.0  # for a mark without a number: the mean of the measured durations


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that the seed leaves out."""
    seed = os.environ.get(SEED)
    if not seed:
        return
    _sample_sweeps(seed, items)
    long = {item: unit for item in items if (unit := _long_unit(item)) is not None}
    chosen = choose_long(seed, dict(long.values()))
    for item, (name, _) in long.items():
        if name not in chosen:
            reason = f"seed {seed} chose other long tests, {LONG_BUDGET_S:g} s of them; make test-all runs all"
            item.add_marker(pytest.mark.skip(reason=reason))


def _long_unit(item: pytest.Item) -> tuple[str, float] | None:
    """Return the name and the seconds of the item's function or module if it is marked as long, else None."""
    for node, mark in item.iter_markers_with_node("long"):
        is_module = isinstance(node, pytest.Module)
        return node.nodeid if is_module else _function_of(item), float(mark.args[0]) if mark.args else LONG_S
    return None


def _function_of(item: pytest.Item) -> str:
    """Return the path and the name of a test's function, without the values of its parameters."""
    return item.nodeid.partition("[")[0]


def _sample_sweeps(seed: str, items: Iterable[pytest.Item]) -> None:
    sweeps: dict[str, list[tuple[tuple[Any, ...], pytest.Item]]] = {}
    for item in items:
        mark = item.get_closest_marker("sweep")
        if mark is not None:
            function = _function_of(item)
            parameters = item.callspec.params  # type: ignore[attr-defined] - of parametrized functions
            sweeps.setdefault(function, []).append((tuple(parameters[name] for name in mark.args), item))
    for function, entries in sweeps.items():
        chosen = choose(seed, function, [values for values, _ in entries])
        for values, item in entries:
            if values != chosen:
                item.add_marker(
                    pytest.mark.skip(reason=f"seed {seed} chose {chosen} of this sweep; make test-all runs all")
                )


def choose(seed: str, function: str, values: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return one of the values of a sweep; every worker of a run gets the same value, in any order of its tests."""
    return random.Random(f"{seed}:{function}").choice(sorted(set(values), key=repr))


def choose_long(seed: str, seconds: Mapping[str, float]) -> set[str]:
    """Return names whose seconds fill LONG_BUDGET_S; every worker gets the same names, in any order of input.

    The last name may exceed the budget, so that the longest test is chosen sometimes.

    Args:
        seed: the seed of the run.
        seconds: the duration of each name.
    """
    ordered = sorted(seconds)
    random.Random(seed).shuffle(ordered)
    chosen: set[str] = set()
    left_s = LONG_BUDGET_S
    for name in ordered:
        if left_s <= 0:
            break
        chosen.add(name)
        left_s -= seconds[name]
    return chosen
