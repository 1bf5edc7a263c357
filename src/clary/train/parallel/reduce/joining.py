"""Replicas with different numbers of batches: an ended one contributes nothing until all have ended.

Source: torch's documentation, "Distributed Training with Uneven Inputs Using the Join Context Manager".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from clary.train.parallel.reduce.reducer import GradientReducer


@contextmanager
def joining(
    reducer: GradientReducer, *, divides_by_active: bool, throws: bool, take_from: Callable[[int], None]
) -> Iterator[None]:
    """Reduce without ranks that have left the block; at its end take part in the others' reductions.

    Args:
        take_from: gives all ranks the parameters of one, by rank in the group; called where ranks have ended apart.

    Raises: as `GradientReducer.end_join`; what the block raises goes on at once.
    """
    reducer.begin_join(divides_by_active=divides_by_active, throws=throws)
    try:
        yield
        num_missed = reducer.end_join()
        if max(num_missed) > 0:
            take_from(num_missed.index(min(num_missed)))  # the last to end has seen all steps
    finally:
        reducer.leave_join()
