"""The ZBV schedule: two stages per rank, laid out as a V, and backward passes in halves; ranks are almost never idle.

Rank r has stage r on the way down and stage 2p - 1 - r on the way up, so the last rank passes activations to itself and
the first rank has the loss. No formula gives the list; a simulation does: at each tick of a clock, every rank runs the
first ready action of a fixed order. [Note: order] lists the order and its reasons.

[Note: order] 1. A forward of the upper stage: it brings a microbatch closer to its loss. 2. The input half of the lower
stage, then its weight half: the lower stage holds its activations longest, and new microbatches need this memory. 3.
The input half of the upper stage. 4. A forward of the lower stage, if fewer than 2p activations are in memory, which is
also 1F1B's limit: p activations of stages twice as deep. 5. The weight half of the upper stage, which fills idle time.
Some orders of the six actions cause no idle time for actions of equal duration. Among these orders, this one loses
least if durations differ, or if transfers take time.

Source: arXiv 2401.10241, ZB-V: for placement, memory limit and expected idle time. The order is ours.
"""

from __future__ import annotations

from clary.train.parallel.pipeline.schedule import Action, Kind, Schedule


def zbv(num_ranks: int, num_microbatches: int) -> Schedule:
    """Write ZBV for p ranks and 2p stages: rank r has the stages r and 2p - 1 - r.

    If F, I and W take equal time and there are m >= p microbatches, the length is 6m + p - 1 and the idle share is (p -
    1) / (6m + p - 1): no list is shorter, since the last rank cannot begin before p - 1 forwards have ended. A rank
    holds at most 2p activations, each of half a 1F1B stage. With fewer microbatches, ranks are idle longer.

    The paper counts from a rank's first action to its last, as if a rank began its next step before other ranks have
    ended; by that count ranks are never idle. Here, with 2p - 1 or more microbatches, rank r is idle for p - 2 - 2r
    actions if this number is above 0. This costs no time if steps end together, else up to p - 2 actions per step.

    Raises: ValueError if there are no ranks or no microbatches.
    """
    if num_ranks < 1 or num_microbatches < 1:
        raise ValueError(f"{num_ranks} ranks and {num_microbatches} microbatches: expected 1 or more of both")
    return Schedule("zbv", 2 * num_ranks, num_microbatches, _Clock(num_ranks, num_microbatches).run())


class _Clock:
    """Runs every rank one action per tick until all actions are done."""

    def __init__(self, num_ranks: int, num_microbatches: int) -> None:
        self._num_ranks = num_ranks
        self._num_microbatches = num_microbatches
        # Number of finished actions by stage and kind; microbatches pass in order, so this is also the next microbatch.
        self._done = {(stage, kind): 0 for stage in range(2 * num_ranks) for kind in Kind}

    def run(self) -> tuple[tuple[Action, ...], ...]:
        ranks: list[list[Action]] = [[] for _ in range(self._num_ranks)]
        total = 6 * self._num_microbatches
        while any(len(actions) < total for actions in ranks):
            # All ranks choose by the actions that have ended before this tick.
            chosen = [self._choose(rank) for rank in range(self._num_ranks)]
            for rank, action in enumerate(chosen):
                if action is not None:
                    ranks[rank].append(action)
                    self._done[action.stage, action.kind] += 1
        return tuple(map(tuple, ranks))

    def _choose(self, rank: int) -> Action | None:
        """Return the action of a rank at this tick, or None; see [Note: order]."""
        lower, upper = rank, 2 * self._num_ranks - 1 - rank
        order = (
            (upper, Kind.FORWARD),
            (lower, Kind.INPUT),
            (lower, Kind.WEIGHT),
            (upper, Kind.INPUT),
            (lower, Kind.FORWARD),
            (upper, Kind.WEIGHT),
        )
        is_full = self._num_alive(lower) + self._num_alive(upper) == 2 * self._num_ranks
        for stage, kind in order:
            if self._is_ready(stage, kind) and not (kind is Kind.FORWARD and is_full):
                return Action(stage, kind, self._done[stage, kind])
        return None

    def _num_alive(self, stage: int) -> int:
        return self._done[stage, Kind.FORWARD] - self._done[stage, Kind.WEIGHT]

    def _is_ready(self, stage: int, kind: Kind) -> bool:
        """Return whether a stage has the inputs of this action for its next microbatch."""
        if kind is Kind.FORWARD:
            available = self._done[stage - 1, kind] if stage else self._num_microbatches
        elif kind is Kind.WEIGHT:
            available = self._done[stage, Kind.INPUT]
        else:
            is_last = stage + 1 == 2 * self._num_ranks
            available = self._done[stage, Kind.FORWARD] if is_last else self._done[stage + 1, kind]
        return self._done[stage, kind] < available
