"""The order in which each rank runs the microbatches of a step through its levels.

Where: `plan` calls it on every rank; all ranks compute the same orders, since every rank knows the `Share` (levels and
messages) of every rank. Each rank then runs its own list, and waits for messages if needed.

All ranks are simulated in ticks; in each tick, a rank may run one level of one microbatch. `parallel.pipeline.policies`
chooses a rank's next task: with `interleaved`, backward passes first, with `simple`, forward passes first. The lists
are the orders of a complete simulated run, so ranks that follow them cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clary.train.parallel.pipeline.policies import Phase, Ready, choose
from clary.train.tf_parallel.graphs.work import Share


@dataclass(frozen=True)
class Task:
    """One level of one microbatch on one rank."""

    microbatch: int
    level: int


def plan_order(
    shares: Sequence[Share], num_microbatches: int, *, policy: str, last_forward: int, max_active: int
) -> list[tuple[Task, ...]]:
    """Return the tasks of every rank, in order.

    Args:
        shares: shares of one pipeline's ranks, by rank.
        policy: value of the configuration key `pipeline`.
        last_forward: levels up to it are forward passes, higher levels are backward passes.
        max_active: value of the key `active_microbatches`: the maximum number of microbatches that have begun but not
            ended on a rank.

    Raises: ValueError if the ranks would deadlock.
    """
    orders: list[list[Task]] = [[] for _ in shares]
    done: list[dict[int, int]] = [dict.fromkeys(share.levels, 0) for share in shares]  # level -> microbatches done
    sent: set[tuple[int, int]] = set()  # (message, microbatch)
    total = sum(len(share.levels) for share in shares) * num_microbatches
    while sum(map(len, orders)) < total:
        chosen = []
        for rank, share in enumerate(shares):
            ready = _ready(share, done[rank], sent, num_microbatches, last_forward)
            active = _num_active(share, done[rank])
            decision = choose(policy, [one for one, _ in ready], num_active=active, max_active=max_active)
            if decision.chosen is not None:
                chosen.append((rank, dict(ready)[decision.chosen]))
        if not chosen:
            raise ValueError(f"the ranks of a pipeline would wait for each other for ever, after these tasks: {orders}")
        for rank, task in chosen:
            orders[rank].append(task)
            done[rank][task.level] += 1
            sent.update((number, task.microbatch) for number in shares[rank].sends.get(task.level, ()))
    return [tuple(order) for order in orders]


def _ready(
    share: Share, done: dict[int, int], sent: set[tuple[int, int]], num_microbatches: int, last_forward: int
) -> list[tuple[Ready, Task]]:
    """Return a rank's runnable tasks: the next microbatch of every level whose earlier tasks have ended."""
    found = []
    for place, level in enumerate(share.levels):
        microbatch = done[level]
        if microbatch == num_microbatches or (place and done[share.levels[place - 1]] <= microbatch):
            continue
        if any(done[writes] < microbatch for reads, writes in share.waits if reads == level):
            continue
        if all((number, microbatch) in sent for number in share.receives[level]):
            phase = Phase.BACKWARD if level > last_forward else Phase.FORWARD if place else Phase.START
            found.append((Ready(phase, microbatch, number=level), Task(microbatch, level)))
    return found


def _num_active(share: Share, done: dict[int, int]) -> int:
    return done[share.levels[0]] - done[share.levels[-1]] if share.levels else 0
