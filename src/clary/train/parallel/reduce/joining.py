"""Training with different numbers of batches: a replica that has ended contributes zeros until all have ended.

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
    """Reduce without ranks that have left the block; at its end, join the reductions of the remaining ranks.

    Args:
        take_from: copies the parameters of one rank, given by group rank, to all ranks; called if ranks ended at
            different steps.

    Raises: as `GradientReducer.end_join`; errors of the block propagate at once.
    """
    reducer.begin_join(divides_by_active=divides_by_active, throws=throws)
    try:
        yield
        num_missed = reducer.end_join()
        if max(num_missed) > 0:
            take_from(num_missed.index(min(num_missed)))  # the last rank to end has taken all steps
    finally:
        reducer.leave_join()
