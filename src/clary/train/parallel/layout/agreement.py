"""Comparison of values that must be equal on all ranks; imports no framework.

Where: `runtime.initialize` compares keys before ranks wait for each other; `mistakes` compares models and inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from clary.train.parallel.layout.mesh import Along


class Gathers(Protocol):
    """Protocol of groups that gather objects."""

    def allgather(self, obj: Any, along: Along) -> list[Any]:
        """Return the objects of all members, by group rank. All members call it."""


def first_difference(values: Sequence[Mapping[str, Any]]) -> tuple[int, str] | None:
    """Return the first rank whose values differ from rank 0's, and the key that differs; None if all are equal.

    Args:
        values: one mapping per rank.
    """
    for rank, one in enumerate(values):
        for key in [*values[0], *one]:
            if values[0].get(key) != one.get(key):
                return rank, key
    return None


def check_keys(keys: Mapping[str, Any], groups: Gathers) -> None:
    """Check that all ranks were given the same keys. All ranks call it.

    Raises: ValueError naming the first key that differs.
    """
    told = groups.allgather(dict(keys), Along.WORLD)
    if (found := first_difference(told)) is not None:
        rank, key = found
        raise ValueError(
            f"smp.init: {key} is {told[rank].get(key)!r} on rank {rank} and {told[0].get(key)!r} on rank 0: give all "
            "ranks the same keys"
        )
