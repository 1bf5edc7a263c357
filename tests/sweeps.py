"""Sweeps: tests that run whole programs once for each value of a parameter, such as the number of ranks.

A plugin that tests/conftest.py names. `@pytest.mark.sweep("size")` says which parameters a test sweeps over. `make
test` gives a seed in CLARY_TEST_SEED: of each sweep one value runs, chosen by the seed, and the others are skipped with
that seed. Without it, as under `make test-all` and plain pytest, all values run.
"""

import os
import random
from typing import Any

import pytest

SEED = "CLARY_TEST_SEED"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what the seed leaves out of each sweep."""
    seed = os.environ.get(SEED)
    if not seed:
        return
    sweeps: dict[str, list[tuple[tuple[Any, ...], pytest.Item]]] = {}
    for item in items:
        mark = item.get_closest_marker("sweep")
        if mark is not None:
            function = item.nodeid.partition("[")[0]
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
    """Return one of the values of a sweep; every worker of a run gets the same, whatever the order of its tests."""
    return random.Random(f"{seed}:{function}").choice(sorted(set(values), key=repr))
