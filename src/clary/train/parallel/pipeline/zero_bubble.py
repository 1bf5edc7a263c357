"""ZBV: two stages a rank, laid out as a V, and backwards in halves; almost no rank is ever idle.

Rank r has stage r on the way down and stage 2p - 1 - r on the way up, so the last rank hands on to itself and the first
rank has the loss. The list is not written by a formula but found: a clock ticks, and at each tick every rank does the
first thing in a fixed order that it can do. [Note: order] says which and why.

[Note: order] 1. A forward of the upper stage: it brings a microbatch closer to its loss. 2. The input half of the lower
stage, then its weight half: the lower stage holds its activations longest, and what they occupy is the room for new
microbatches. 3. The input half of the upper stage. 4. A forward of the lower stage, if fewer than 2p activations live:
the limit that 1F1B has too, whose p activations are of stages twice as deep. 5. The weight half of the upper
stage, which fills what would be idle. Of all orders of the six that never were idle where all last alike, this one lost
least where they do not, or where tensors are under way for a while.

Source: arXiv 2401.10241, ZB-V: placement, limit of memory, and what it must reach. The order is our own.
"""

from __future__ import annotations

from clary.train.parallel.pipeline.schedule import Action, Kind, Schedule


def zbv(num_ranks: int, num_microbatches: int) -> Schedule:
    """Write ZBV: 2p stages, rank r has r and 2p - 1 - r.

    Where F, I and W last alike and there are p microbatches or more, the length is 6m + p - 1, and idle
    (p - 1) / (6m + p - 1): no list is shorter, for the last rank cannot begin before p - 1 forwards are done. At most
    2p activations live on a rank, each of half a 1F1B stage. With fewer microbatches it is idle longer.

    The paper counts otherwise, from a rank's first action to its last, so that a rank may begin its next step before
    others have ended; there it is never idle. This list is, from 2p - 1 microbatches on, for p - 2 - 2r actions on
    rank r, where that is above 0: nothing for steps that end together, up to p - 2 actions a step for others.

    Raises: ValueError if there are no ranks or no microbatches.
    """
    if num_ranks < 1 or num_microbatches < 1:
        raise ValueError(f"{num_ranks} ranks and {num_microbatches} microbatches: expected 1 or more of both")
    return Schedule("zbv", 2 * num_ranks, num_microbatches, _Clock(num_ranks, num_microbatches).run())


class _Clock:
    """Lets every rank do one action a tick until all is done."""

    def __init__(self, num_ranks: int, num_microbatches: int) -> None:
        self._num_ranks = num_ranks
        self._num_microbatches = num_microbatches
        # Of every stage and kind how often it was done: microbatches pass in their order, so that says which.
        self._done = {(stage, kind): 0 for stage in range(2 * num_ranks) for kind in Kind}

    def run(self) -> tuple[tuple[Action, ...], ...]:
        ranks: list[list[Action]] = [[] for _ in range(self._num_ranks)]
        total = 6 * self._num_microbatches
        while any(len(actions) < total for actions in ranks):
            # All choose by what had ended before the tick.
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
        """Tell whether a stage has the inputs of this action for its next microbatch."""
        if kind is Kind.FORWARD:
            available = self._done[stage - 1, kind] if stage else self._num_microbatches
        elif kind is Kind.WEIGHT:
            available = self._done[stage, Kind.INPUT]
        else:
            is_last = stage + 1 == 2 * self._num_ranks
            available = self._done[stage, Kind.FORWARD] if is_last else self._done[stage + 1, kind]
        return self._done[stage, kind] < available
