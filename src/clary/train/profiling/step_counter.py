"""Steps of a program, counted by the steps of its optimizers."""

from __future__ import annotations


class StepCounter:
    """Counts rounds of optimizers: a program's step ends when an optimizer steps again within a round.

    With one optimizer, each of its steps counts. With several per step, the first optimizer that steps again begins the
    next round, so that no step counts twice. A nested optimizer (ZeroRedundancyOptimizer) counts as one of several.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self._round: set[int] = set()

    def is_boundary(self, optimizer: object) -> bool:
        """Count an optimizer's step; return whether it ends a step of the program."""
        key = id(optimizer)
        if self._round and key not in self._round:
            self._round.add(key)
            return False
        self._round = {key}
        self.num_steps += 1
        return True
