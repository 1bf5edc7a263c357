"""Steps of a program, counted by the steps of its optimizers."""

from __future__ import annotations


class StepCounter:
    """Counts rounds of optimizers: a step ends when an optimizer steps that has stepped in this round before.

    With one optimizer that is each of its steps; with several in a step, the first one that comes again begins the
    next round, so that none counts twice. An optimizer within another (ZeroRedundancyOptimizer) is one of several.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self._round: set[int] = set()

    def is_boundary(self, optimizer: object) -> bool:
        """Take note that an optimizer has stepped; return whether a step has ended with it."""
        key = id(optimizer)
        if self._round and key not in self._round:
            self._round.add(key)
            return False
        self._round = {key}
        self.num_steps += 1
        return True
