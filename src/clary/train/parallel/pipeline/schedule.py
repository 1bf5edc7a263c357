"""A schedule as one list of actions for each rank, with checks and a simulation before it runs.

Where: `schedules` and `zero_bubble` write lists, `executor` runs them; before that, `simulate` refuses schedules that
would deadlock.

[Note: actions] `2F0` is the forward pass of stage 2 on microbatch 0, `2B0` its whole backward pass; `2I0` and `2W0` are
its two halves: the gradient of the stage's input, for which the previous stage waits, and the gradients of the stage's
weights, for which no stage waits. A stage's activations of a microbatch stay in memory from F to B, or to W.
Source: the notation follows torch.distributed.pipelining.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property


class Kind(Enum):
    """The kind of an action; see [Note: actions]."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT = "I"
    WEIGHT = "W"


_WORDS = {
    Kind.FORWARD: "forward pass",
    Kind.BACKWARD: "backward pass",
    Kind.INPUT: "gradient of the input",
    Kind.WEIGHT: "gradients of the weights",
}


class ScheduleError(ValueError):
    """A schedule that cannot be run; the text names the missing action or the cycle of waits."""


@dataclass(frozen=True)
class Action:
    """One action of one stage for one microbatch."""

    stage: int
    kind: Kind
    microbatch: int

    @property
    def words(self) -> str:
        """The action in words, for error texts."""
        return f"{self} ({_WORDS[self.kind]} of stage {self.stage}, microbatch {self.microbatch})"

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{self.microbatch}"


def parse_action(text: str) -> Action:
    """Parse an action from the text that `str(action)` returns.

    Raises: ValueError if the text is not an action.
    """
    match = re.fullmatch(r"(\d+)([FBIW])(\d+)", text)
    if match is None:
        raise ValueError(f"{text!r} is no action; expected stage, one of F B I W, microbatch, such as 2F0")
    return Action(int(match[1]), Kind(match[2]), int(match[3]))


@dataclass(frozen=True)
class Schedule:
    """The actions of every rank, each in its order.

    Args:
        name: name for error texts.
    """

    name: str
    num_stages: int
    num_microbatches: int
    ranks: tuple[tuple[Action, ...], ...]

    def rank_of(self) -> dict[int, int]:
        """Return the rank of every stage.

        Raises: ScheduleError if two ranks have actions of one stage.
        """
        found: dict[int, int] = {}
        for rank, actions in enumerate(self.ranks):
            for action in actions:
                if found.setdefault(action.stage, rank) != rank:
                    raise ScheduleError(
                        f"{self.name}: ranks {found[action.stage]} and {rank} both act for stage {action}"
                    )
        return found

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages of which a rank has actions, ascending."""
        return tuple(sorted({action.stage for action in self.ranks[rank]}))

    @cached_property
    def split_stages(self) -> frozenset[int]:
        """The stages whose backward passes are split into halves."""
        return frozenset(action.stage for actions in self.ranks for action in actions if action.kind is Kind.INPUT)

    def __str__(self) -> str:
        lines = [f"rank {rank}: {' '.join(map(str, actions))}" for rank, actions in enumerate(self.ranks)]
        return "\n".join([f"{self.name}, {self.num_stages} stages, {self.num_microbatches} microbatches", *lines])


@dataclass(frozen=True)
class Simulation:
    """The course of a schedule in which every action takes its expected time.

    Args:
        begins: start of each action, in seconds, by rank.
        length_s: time from the first start to the last end.
        idle: each rank's idle share of `length_s`.
        peak_activations: for each rank, the largest number of activations (per stage and microbatch) in memory at once.
    """

    begins: tuple[tuple[float, ...], ...]
    length_s: float
    idle: tuple[float, ...]
    peak_activations: tuple[int, ...]


def simulate(
    schedule: Schedule, seconds_of: Callable[[Action], float] = lambda _: 1.0, *, transfer_s: float = 0.0
) -> Simulation:
    """Simulate a schedule.

    Args:
        seconds_of: the duration of an action.
        transfer_s: the duration of a transfer between ranks.

    Raises:
        ScheduleError: an action is missing or duplicate, or the ranks would deadlock; the text names the waiting action
            of each rank and its missing input.
    """
    _check_complete(schedule)
    rank_of = schedule.rank_of()
    ends: dict[Action, float] = {}
    begins: list[list[float]] = [[] for _ in schedule.ranks]
    free_s = [0.0] * len(schedule.ranks)
    has_moved = True
    while has_moved:
        has_moved = False
        for rank, actions in enumerate(schedule.ranks):
            for action in actions[len(begins[rank]) :]:
                needed = needs(action, schedule)
                if any(one not in ends for one in needed):
                    break
                ready_s = [ends[one] + (transfer_s if rank_of[one.stage] != rank else 0.0) for one in needed]
                begin_s = max([free_s[rank], *ready_s])
                begins[rank].append(begin_s)
                ends[action] = free_s[rank] = begin_s + seconds_of(action)
                has_moved = True
    stuck = [
        f"rank {rank} at {action} waits for {', '.join(str(one) for one in needs(action, schedule) if one not in ends)}"
        for rank, actions in enumerate(schedule.ranks)
        for action in actions[len(begins[rank]) :][:1]
    ]
    if stuck:
        raise ScheduleError(f"{schedule.name} would never end: {'; '.join(stuck)}")
    length_s = max(free_s)
    busy_s = [sum(map(seconds_of, actions)) for actions in schedule.ranks]
    return Simulation(
        tuple(map(tuple, begins)),
        length_s,
        tuple(1 - busy / length_s for busy in busy_s),
        tuple(map(_peak_activations, schedule.ranks)),
    )


def needs(action: Action, schedule: Schedule) -> list[Action]:
    """Return the actions that must have ended before this one begins."""
    stage, microbatch = action.stage, action.microbatch
    if action.kind is Kind.FORWARD:
        return [Action(stage - 1, Kind.FORWARD, microbatch)] if stage else []
    if action.kind is Kind.WEIGHT:
        return [Action(stage, Kind.INPUT, microbatch)]
    needed = [Action(stage, Kind.FORWARD, microbatch)]
    if stage + 1 < schedule.num_stages:
        kind = Kind.INPUT if stage + 1 in schedule.split_stages else Kind.BACKWARD
        needed.append(Action(stage + 1, kind, microbatch))
    return needed


def _check_complete(schedule: Schedule) -> None:
    """Refuse a schedule in which a stage lacks or repeats an action of a microbatch."""
    done: dict[tuple[int, int], list[str]] = {}
    for actions in schedule.ranks:
        for action in actions:
            done.setdefault((action.stage, action.microbatch), []).append(action.kind.value)
    expected = {(stage, one) for stage in range(schedule.num_stages) for one in range(schedule.num_microbatches)}
    for stage, microbatch in sorted(expected | set(done)):
        kinds = "".join(sorted(done.get((stage, microbatch), [])))
        if (stage, microbatch) not in expected or kinds not in ("BF", "FIW"):
            raise ScheduleError(
                f"{schedule.name}: stage {stage} does {kinds or 'nothing'} for microbatch {microbatch}; expected F and "
                f"B, or F, I and W, once each, in {schedule.num_stages} stages and {schedule.num_microbatches} "
                "microbatches"
            )


def _peak_activations(actions: Sequence[Action]) -> int:
    alive = peak = 0
    for action in actions:
        if action.kind is Kind.FORWARD:
            alive += 1
            peak = max(peak, alive)
        elif action.kind is not Kind.INPUT:
            alive -= 1
    return peak
