"""Steps of a program, counted by the steps of its optimizers."""

from __future__ import annotations


class StepCounter:
    """Counts rounds of optimizers: a step ends when an optimizer steps for the second time in a round.

    With one optimizer, each of its steps counts; with several per step, the first one that steps again begins the next
    round, so that no step counts twice. An optimizer within another (ZeroRedundancyOptimizer) is one of several.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self._round: set[int] = set()

    def is_boundary(self, optimizer: object) -> bool:
        """Count an optimizer's step; return whether a step of the program has ended with it."""
        key = id(optimizer)
        if self._round and key not in self._round:
            self._round.add(key)
            return False
        self._round = {key}
        self.num_steps += 1
        return True
