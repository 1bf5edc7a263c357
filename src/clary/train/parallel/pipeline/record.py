"""When every action of a step began and ended, on one rank or on all.

Where: `executor` writes what was, `simulated_run` what would be; `picture` draws either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clary.train.parallel.pipeline.schedule import Action, Schedule, Simulation


@dataclass(frozen=True)
class ActionRun:
    """The run of one action, without the wait for its inputs and the sending of its results.

    Args:
        begin_s: since the step began.
        end_s: likewise.
    """

    action: Action
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Run:
    """One step on all ranks.

    Args:
        name: of the schedule.
        ranks: by rank, what it did, in its order; times count from one moment for all.
    """

    name: str
    ranks: tuple[tuple[ActionRun, ...], ...]

    @property
    def begin_s(self) -> float:
        """When the first action of all began."""
        return min((one.begin_s for actions in self.ranks for one in actions), default=0.0)

    @property
    def length_s(self) -> float:
        """From the first begin to the last end."""
        return max((one.end_s for actions in self.ranks for one in actions), default=0.0) - self.begin_s

    @property
    def idle(self) -> tuple[float, ...]:
        """By rank, the part of `length_s` in which it did nothing; 1 where there is no length."""
        length_s = self.length_s
        return tuple(
            1 - sum(one.end_s - one.begin_s for one in actions) / length_s if length_s else 1.0
            for actions in self.ranks
        )


def simulated_run(schedule: Schedule, simulation: Simulation, seconds_of: Callable[[Action], float]) -> Run:
    """Return the run that a simulation foresaw; `seconds_of` as it was given to `simulate`.

    Args:
        schedule: that was simulated.
        simulation: of it, as `simulate` returned it.
        seconds_of: how long an action takes, as it was given to `simulate`.
    """
    return Run(
        schedule.name,
        tuple(
            tuple(
                ActionRun(action, begin_s, begin_s + seconds_of(action))
                for action, begin_s in zip(actions, begins, strict=True)
            )
            for actions, begins in zip(schedule.ranks, simulation.begins, strict=True)
        ),
    )
