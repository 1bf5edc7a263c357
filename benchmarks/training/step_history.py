"""The steps of a job over all its attempts: which count in the end, which were lost, and whether each is right. Pure.

Where: `goodput` and `spot` read the lines of `stepping_program` and ask here. Committed is what the last attempt goes
on from, and what it did itself; a step that an earlier attempt took behind that was lost.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

FIRST_STATE = "0" * 64
MAX_PROBLEMS = 20
_LINE = re.compile(r"step (\d+) ([0-9a-f]{64}) at ([0-9.]+) by (\d+) of ([0-9a-f]+) after ([0-9.]+)")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One line of the program, or of all its ranks together."""

    number: int
    state: str  # after it
    at_s: float  # of the monotonic clock, when it was done
    rank: int
    attempt: str  # its token
    save_s: float  # how long its save took, or the last one before it


@dataclass(frozen=True, kw_only=True)
class History:
    """The outcome of all steps of a job."""

    committed: int
    executed: int
    wall_s: float  # first to last line
    num_attempts: int  # that took a step
    losses: tuple[int, ...]  # steps that each interruption cost, oldest first
    pauses_s: tuple[float, ...]  # last step of an attempt to the first of the next
    step_s: float  # from one step to the next of the same attempt, median, saves included
    save_s: float  # of one save, median
    problems: tuple[str, ...]  # at most MAX_PROBLEMS; empty where every step is right

    @property
    def lost(self) -> int:
        """Steps that were taken and do not count."""
        return self.executed - self.committed


def parse(lines: Sequence[str]) -> list[Step]:
    """Return the steps of a log in its order; other lines are passed over."""
    found = [_LINE.fullmatch(line.strip()) for line in lines]
    return [
        Step(
            number=int(match[1]),
            state=match[2],
            at_s=float(match[3]),
            rank=int(match[4]),
            attempt=match[5],
            save_s=float(match[6]),
        )
        for match in found
        if match
    ]


def states(num_steps: int, num_hosts: int) -> list[str]:
    """Return the state after each step from 0 on, as a job that nothing ever strikes has it."""
    chain = [FIRST_STATE]
    for step in range(1, num_steps + 1):
        given = "".join(hashlib.sha256(f"{step}:{rank}".encode()).hexdigest() for rank in range(num_hosts))
        chain.append(hashlib.sha256((chain[-1] + given).encode()).hexdigest())
    return chain


def taken(lines: Sequence[Step]) -> list[Step]:
    """Return each step once, in the order of its time, when the first rank told of it."""
    first: dict[tuple[str, int], Step] = {}
    for line in sorted(lines, key=lambda line: line.at_s):
        first.setdefault((line.attempt, line.number), line)
    return list(first.values())


def history(lines: Sequence[Step], *, num_hosts: int) -> History:
    """Add up the steps of a job, and check each of them.

    Args:
        lines: of all ranks, in any order.
        num_hosts: that the job has.
    Raises: ValueError without two steps, of which nothing can be said.
    """
    steps = taken(lines)
    if len(steps) < 2:
        raise ValueError(f"expected the lines of at least 2 steps, got {len(steps)}")
    attempts = [list(group) for _, group in itertools.groupby(steps, key=lambda step: step.attempt)]
    between = list(itertools.pairwise(attempts))
    within = [
        later.at_s - earlier.at_s
        for attempt in attempts
        for earlier, later in itertools.pairwise(attempt)
        if later.number == earlier.number + 1
    ]
    return History(
        committed=attempts[-1][-1].number,
        executed=len(steps),
        wall_s=steps[-1].at_s - steps[0].at_s,
        num_attempts=len(attempts),
        losses=tuple(earlier[-1].number + 1 - later[0].number for earlier, later in between),
        pauses_s=tuple(later[0].at_s - earlier[-1].at_s for earlier, later in between),
        step_s=_median(within),
        save_s=_median([line.save_s for line in lines]),
        problems=tuple([*_wrong_lines(lines, num_hosts), *_wrong_order(attempts)][:MAX_PROBLEMS]),
    )


def _wrong_lines(lines: Sequence[Step], num_hosts: int) -> list[str]:
    """Say which ranks had another state than the chain's, or took a step of an attempt twice."""
    problems = []
    right = states(max(line.number for line in lines), num_hosts)
    seen: set[tuple[str, int, int]] = set()
    for line in sorted(lines, key=lambda line: line.at_s):
        who = f"attempt {line.attempt}, rank {line.rank}, step {line.number}"
        if line.state != right[line.number]:
            problems.append(f"{who}: expected state {right[line.number][:12]}, got {line.state[:12]}")
        key = (line.attempt, line.rank, line.number)
        if key in seen:
            problems.append(f"{who}: taken twice")
        seen.add(key)
    return problems


def _wrong_order(attempts: list[list[Step]]) -> list[str]:
    """Say which steps count and were never taken, and which attempts ran at the same time."""
    tokens = [attempt[0].attempt for attempt in attempts]
    again = sorted({token for token in tokens if tokens.count(token) > 1})
    problems = [f"attempt {token} comes back after another one" for token in again]
    farthest = 0
    for attempt in attempts:
        token = attempt[0].attempt
        if attempt[0].number > farthest + 1:
            problems.append(f"attempt {token} begins with step {attempt[0].number}: expected at most {farthest + 1}")
        for earlier, later in itertools.pairwise(attempt):
            if later.number != earlier.number + 1:
                problems.append(f"attempt {token}: step {later.number} follows on step {earlier.number}")
        farthest = max(farthest, *(step.number for step in attempt))
    return problems


def _median(numbers: list[float]) -> float:
    ordered = sorted(numbers)
    return ordered[len(ordered) // 2] if ordered else 0.0
