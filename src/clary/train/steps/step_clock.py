"""Division of a thread's time among the parts of training steps. Pure except for the given clock.

Where: `torch_hooks` calls it at the beginning and end of each part, in the training thread.

[Note: what is forward]
Modules get no hooks, since hooks would cost time in each module, and would be compiled and pickled with the model. So
time outside of all parts stays unassigned until the next part begins. If this part is a backward pass, the time counts
as forward pass; else as other work, such as evaluation or logging. The start of communication leaves the time
unassigned, since forward passes communicate too.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from clary.contract.step_records import StepRow

# Parts, as plain numbers: they serve as list indices some ten times per step.
OTHER, DATA, FORWARD, BACKWARD, COMMUNICATION, OPTIMIZER = range(6)
_NUM_PARTS = 6
_NS_PER_S = 1e9
MOST_STEPS_OF_ANOTHER = 16  # consecutive steps of another optimizer after which it becomes the counting optimizer

_Open = tuple[int, object]  # part, owner


class StepClock:
    """Measures one thread. A training step ends when the counting optimizer ends its step.

    The first optimizer to step counts. Another optimizer counts once it has stepped MOST_STEPS_OF_ANOTHER times since
    the counting optimizer's last step.

    Args:
        now_ns: monotonic clock, in nanoseconds.
        now_s: time of day, in seconds.
    """

    def __init__(
        self, now_ns: Callable[[], int] = time.perf_counter_ns, now_s: Callable[[], float] = time.time
    ) -> None:
        self._now_ns = now_ns
        self._now_s = now_s
        self._spent = [0] * _NUM_PARTS
        self._stack: list[_Open] = []
        self._open = 0  # unassigned time, outside of parts or inside of an optimizer, that may be a forward pass
        self._began_ns = self._last_ns = now_ns()
        self._number = 0
        self._counting: object = None  # the optimizer whose steps count
        self._others: dict[object, int] = {}

    def enter(self, part: int, owner: object = None) -> int:
        """Begin a part; return the depth to pass to `leave`."""
        self._take_time()
        if part == BACKWARD:
            self._spent[FORWARD] += self._open
            self._open = 0
        elif part != COMMUNICATION:
            self._close()
        depth = len(self._stack)
        self._stack.append((part, owner))
        return depth

    def leave(self, depth: int) -> None:
        """End a part, and all unfinished parts within it."""
        self._take_time()
        if self._stack[depth:] and self._stack[depth][0] == OPTIMIZER:
            self._close()
        del self._stack[depth:]

    @property
    def is_in_optimizer(self) -> bool:
        """Whether an optimizer's step has begun and not ended normally."""
        return any(part == OPTIMIZER for part, _ in self._stack)

    def enter_optimizer(self, owner: object, num_outer: int = 0) -> None:
        """Begin an optimizer's step.

        Args:
            num_outer: number of enclosing steps, which are steps of wrappers and base classes; any further open steps
                have ended with an error.
        """
        open_steps = [depth for depth, item in enumerate(self._stack) if item[0] == OPTIMIZER]
        if len(open_steps) > num_outer:
            self.leave(open_steps[num_outer])
        self.enter(OPTIMIZER, owner)

    def leave_optimizer(self, owner: object) -> StepRow | None:
        """End an optimizer's step; return the row of the training step if it ends too."""
        depths = [depth for depth, item in enumerate(self._stack) if item == (OPTIMIZER, owner)]
        if not depths:
            return None  # its begin was not recorded
        self.leave(depths[-1])
        return self._end_step() if len(depths) == 1 and self._counts(owner) else None

    def _end_step(self) -> StepRow:
        self._number += 1
        spent, self._spent = self._spent, [0] * _NUM_PARTS
        began_ns, self._began_ns = self._began_ns, self._last_ns
        return StepRow(
            number=self._number,
            ended_s=self._now_s(),
            step_s=(self._last_ns - began_ns) / _NS_PER_S,
            data_wait_s=spent[DATA] / _NS_PER_S,
            forward_s=spent[FORWARD] / _NS_PER_S,
            backward_s=spent[BACKWARD] / _NS_PER_S,
            communication_s=spent[COMMUNICATION] / _NS_PER_S,
            optimizer_s=spent[OPTIMIZER] / _NS_PER_S,
        )

    def _take_time(self) -> None:
        now_ns = self._now_ns()
        part = self._stack[-1][0] if self._stack else OTHER
        if part in (OTHER, OPTIMIZER):
            self._open += now_ns - self._last_ns
        else:
            self._spent[part] += now_ns - self._last_ns
        self._last_ns = now_ns

    def _close(self) -> None:
        """Assign the open time to the optimizer or to other work."""
        self._spent[OPTIMIZER if self.is_in_optimizer else OTHER] += self._open
        self._open = 0

    def _counts(self, owner: object) -> bool:
        if owner == self._counting:
            if self._others:
                self._others.clear()
            return True
        if self._counting is not None:
            self._others[owner] = self._others.get(owner, 0) + 1
            if self._others[owner] < MOST_STEPS_OF_ANOTHER:
                return False
        # The first optimizer, or an optimizer that still steps long after the counting optimizer has stopped.
        self._counting = owner
        self._others.clear()
        return True
