"""Grouping of a sequence's children that are recomputed together.

Where: `checkpointing` calls `cut` in each call of a sequence, and to check a strategy. This module does not import
torch.

[Note: strategies] `each`: every child alone. `contiguous`: all neighbours on one rank together. `group_N`: N neighbours
together, fewer at a change of rank or at the end. A group keeps one input instead of many, but its recomputation needs
the memory of all its children at once.
Source: SageMaker developer guide, "Activation Checkpointing"; sagemaker-python-sdk
`doc/api/training/smp_versions/latest/smd_model_parallel_pytorch.rst`, `smp.set_activation_checkpointing`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

STRATEGIES = "each, contiguous or group_N (N from 1)"


@dataclass(frozen=True)
class Owners:
    """The pipeline ranks that hold a module and its descendants; empty if unknown or irrelevant."""

    ranks: frozenset[int] = frozenset()

    @property
    def is_split(self) -> bool:
        """Whether the module lies on several ranks, so that it cannot be recomputed as one."""
        return len(self.ranks) > 1


@dataclass(frozen=True)
class Segment:
    """Children from `start` up to `stop`, exclusive.

    Args:
        owner: rank that holds them; None if unknown, or if several ranks do.
        is_checkpointed: False for a child that lies on several ranks.
    """

    start: int
    stop: int
    owner: int | None
    is_checkpointed: bool = True


def cut(owners: Sequence[Owners], strategy: str) -> list[Segment]:
    """Cut a sequence; see [Note: strategies].

    Args:
        owners: owners of every child, in order.

    Raises: ValueError for an unknown strategy.
    """
    most = _most_together(strategy)
    segments = []
    start = 0
    for owner, run in itertools.groupby(owners):
        stop = start + len(list(run))
        size = 1 if owner.is_split else most or stop - start
        rank = None if owner.is_split else next(iter(owner.ranks), None)
        segments += [
            Segment(first, min(first + size, stop), rank, not owner.is_split) for first in range(start, stop, size)
        ]
        start = stop
    return segments


def _most_together(strategy: str) -> int | None:
    """Return the number of children that are recomputed together; None for all neighbours."""
    if strategy == "each":
        return 1
    if strategy == "contiguous":
        return None
    match = re.fullmatch(r"group_([1-9]\d*)", strategy) if isinstance(strategy, str) else None
    if match is None:
        raise ValueError(f"strategy is {strategy!r}; expected {STRATEGIES}")
    return int(match[1])
