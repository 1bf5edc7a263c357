"""The schedules, as functions that write lists of actions. One stage per rank, except in `interleaved`.

    gpipe       all forwards, then all backwards; activations of all microbatches in memory at once
    one_f_one_b each backward as early as possible; at most p - s microbatches' activations on stage s of p
    interleaved 1F1B with several stages per rank: less idle time, more messages
    zb1p        1F1B with backward passes in halves: gradients of weights fill idle time

Source: GPipe, arXiv 1811.06965; PipeDream-flush, arXiv 2006.09503; interleaved, arXiv 2104.04473, section 2.2; zero
bubble (ZB-H1), arXiv 2401.10241.
"""

from __future__ import annotations

from clary.train.parallel.pipeline.schedule import Action, Kind, Schedule


def gpipe(num_stages: int, num_microbatches: int) -> Schedule:
    """Write GPipe, with the idle share (p - 1) / (m + p - 1) for p stages and m microbatches."""
    _check(num_stages, num_microbatches)
    order = range(num_microbatches)
    ranks = tuple(
        tuple(Action(stage, kind, one) for kind in (Kind.FORWARD, Kind.BACKWARD) for one in order)
        for stage in range(num_stages)
    )
    return Schedule("gpipe", num_stages, num_microbatches, ranks)


def one_f_one_b(num_stages: int, num_microbatches: int) -> Schedule:
    """Write 1F1B; idle time as GPipe, activations of at most p - s microbatches on stage s."""
    _check(num_stages, num_microbatches)
    ranks = []
    for stage in range(num_stages):
        ahead = min(num_stages - stage - 1, num_microbatches)
        actions = [Action(stage, Kind.FORWARD, one) for one in range(ahead)]
        for one in range(num_microbatches):
            if one + ahead < num_microbatches:
                actions.append(Action(stage, Kind.FORWARD, one + ahead))
            actions.append(Action(stage, Kind.BACKWARD, one))
        ranks.append(tuple(actions))
    return Schedule("1f1b", num_stages, num_microbatches, tuple(ranks))


def interleaved(num_ranks: int, num_microbatches: int, *, stages_a_rank: int) -> Schedule:
    """Write interleaved 1F1B: rank r has the stages r, r + p, r + 2p...; idle share (p - 1) / (vm + p - 1).

    Args:
        num_microbatches: m, a multiple of the number of ranks p: p microbatches at a time pass from stage to stage.
        stages_a_rank: v, number of stages per rank.

    Raises: ValueError if ranks do not divide the microbatches, or for less than 1 stage per rank.
    """
    _check(num_ranks, num_microbatches)
    if stages_a_rank < 1 or num_microbatches % num_ranks:
        raise ValueError(
            f"interleaved: {num_microbatches} microbatches, {num_ranks} ranks and {stages_a_rank} stages a rank; "
            "expected 1 or more stages, and microbatches a multiple of ranks"
        )
    total, round_length = num_microbatches * stages_a_rank, num_ranks * stages_a_rank
    ranks = []
    for rank in range(num_ranks):
        ahead = min(2 * (num_ranks - rank - 1) + (stages_a_rank - 1) * num_ranks, total)

        def action(step: int, kind: Kind, rank: int = rank) -> Action:
            within = step % round_length
            turn = within // num_ranks  # index among the stages of this rank
            chunk = turn if kind is Kind.FORWARD else stages_a_rank - 1 - turn
            microbatch = step // round_length * num_ranks + within % num_ranks
            return Action(chunk * num_ranks + rank, kind, microbatch)

        actions = [action(step, Kind.FORWARD) for step in range(ahead)]
        for step in range(total):
            if step + ahead < total:
                actions.append(action(step + ahead, Kind.FORWARD))
            actions.append(action(step, Kind.BACKWARD))
        ranks.append(tuple(actions))
    return Schedule("interleaved", num_ranks * stages_a_rank, num_microbatches, tuple(ranks))


def zb1p(num_stages: int, num_microbatches: int) -> Schedule:
    """Write ZB1P: a third of 1F1B's idle time if F, I and W take equal time; at most p microbatches' activations.

    Stage s delays the weight gradients of s microbatches, to fill its idle time at the end.
    """
    _check(num_stages, num_microbatches)
    ranks = []
    for stage in range(num_stages):
        ahead = min(num_stages - stage - 1, num_microbatches)
        actions = [Action(stage, Kind.FORWARD, one) for one in range(ahead)]
        num_weights = 0
        for one in range(num_microbatches):
            if one + ahead < num_microbatches:
                actions.append(Action(stage, Kind.FORWARD, one + ahead))
            actions.append(Action(stage, Kind.INPUT, one))
            if one >= stage:
                actions.append(Action(stage, Kind.WEIGHT, num_weights))
                num_weights += 1
        actions.extend(Action(stage, Kind.WEIGHT, one) for one in range(num_weights, num_microbatches))
        ranks.append(tuple(actions))
    return Schedule("zb1p", num_stages, num_microbatches, tuple(ranks))


def _check(num_stages: int, num_microbatches: int) -> None:
    if num_stages < 1 or num_microbatches < 1:
        raise ValueError(f"{num_stages} stages and {num_microbatches} microbatches: expected 1 or more of both")
