"""The times at which a step's actions began and ended, on one rank or on all ranks.

Where: `executor` records real runs, `simulated_run` simulated ones; `picture` draws both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clary.train.parallel.pipeline.schedule import Action, Schedule, Simulation


@dataclass(frozen=True)
class ActionRun:
    """The run of one action, excluding the wait for its inputs and the sending of its results.

    Args:
        begin_s: start of the action, in seconds since the step began.
        end_s: end, in seconds since the step began.
    """

    action: Action
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Run:
    """One step on all ranks.

    Args:
        name: name of the schedule.
        ranks: each rank's actions in order; times have the same origin on all ranks.
    """

    name: str
    ranks: tuple[tuple[ActionRun, ...], ...]

    @property
    def begin_s(self) -> float:
        """The time when the first action began."""
        return min((one.begin_s for actions in self.ranks for one in actions), default=0.0)

    @property
    def length_s(self) -> float:
        """The time from the first start to the last end."""
        return max((one.end_s for actions in self.ranks for one in actions), default=0.0) - self.begin_s

    @property
    def idle(self) -> tuple[float, ...]:
        """Each rank's idle share of `length_s`; 1 if the length is 0."""
        length_s = self.length_s
        return tuple(
            1 - sum(one.end_s - one.begin_s for one in actions) / length_s if length_s else 1.0
            for actions in self.ranks
        )


def simulated_run(schedule: Schedule, simulation: Simulation, seconds_of: Callable[[Action], float]) -> Run:
    """Return the run that a simulation predicts.

    Args:
        schedule: the simulated schedule.
        simulation: the result of `simulate` for it.
        seconds_of: the duration of an action, as passed to `simulate`.
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
