"""Cuts a sequence of gradients into buckets, so that communication ends as early as possible.

Pure: no clock, no framework. `adapters.torch.overlap` measures the inputs and rebuilds a reducer from the plan.
Equal inputs give equal plans, so ranks that agree on their measurements agree on their buckets.

Gradients become ready one after the other during the backward pass; a bucket is sent when its last gradient is ready
and the previous bucket has been sent. On an idle link, the bucket takes `latency_s + bytes / bytes_per_s`. Behind
another bucket, its latency passes while that other bucket is still on the link. With r(i) the time at which the first i
gradients are ready, and S(k, i) the seconds on the wire of gradients k + 1 to i, the earliest end of the first i
gradients is

    f(0) = 0,  f(i) = min over k < i of  max(r(i) + latency + S(k, i), f(k) + max(latency, S(k, i)))

because an earlier end of a prefix never delays the following buckets. A reduced bucket is copied back into its
gradients. Later reductions hide all of these copies except the last bucket's, so the time of that copy is added to the
last bucket. Many plans come close to the earliest end. `plan_buckets` cuts from the back: each bucket is as large as
possible while the gradients before each cut are reduced at most `slack` after their earliest end. So a plan has few
buckets, because each bucket has a cost outside this model. The last bucket gets no slack: its copy delays every step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

MAX_PIECES = 1024  # maximum number of pieces in the search, whose time is quadratic; more gradients are joined first
DEFAULT_SLACK = 0.0025  # share of the earliest end; in benchmark `overlap`, 0.01 made steps 1 % longer
_ROUNDING = 1e-12  # as a share: ends that differ by less are equal
_MILLISECONDS = 1e3  # per second


@dataclass(frozen=True)
class Gradient:
    """One gradient.

    Args:
        ready_s: from the beginning of the backward pass until the gradient is ready.
    """

    num_bytes: int
    ready_s: float


@dataclass(frozen=True)
class CommunicationCost:
    """The time to reduce a bucket: `latency_s + bytes / bytes_per_s` on an idle link.

    Args:
        latency_s: also the least time between the ends of two buckets.
        copy_bytes_per_s: rate at which a reduced bucket is copied back into its gradients.
    """

    latency_s: float
    bytes_per_s: float
    copy_bytes_per_s: float = math.inf

    def end_s(self, num_bytes: float, ready_s: float, previous_end_s: float) -> float:
        """Return when the reduction of a bucket ends.

        Args:
            ready_s: when its last gradient is ready.
            previous_end_s: when the reduction before it ends; 0 for the first.
        """
        wire_s = num_bytes / self.bytes_per_s
        return max(ready_s + self.latency_s + wire_s, previous_end_s + max(self.latency_s, wire_s))

    def copy_s(self, num_bytes: float) -> float:
        """Return the seconds of a bucket's copy."""
        return num_bytes / self.copy_bytes_per_s


@dataclass(frozen=True)
class BucketPlan:
    """The decision on buckets.

    Args:
        sizes: bytes of each bucket, in the order in which gradients become ready.
        ends: for each bucket, the number of gradients in it and in the buckets before it.
        end_s: predicted end of the last bucket's reduction and copy, from the beginning of the backward pass.
        earliest_s: predicted earliest end that any cut could have.
        reason: one sentence, with numbers.
    """

    sizes: tuple[int, ...]
    ends: tuple[int, ...]
    end_s: float
    earliest_s: float
    reason: str


def plan_buckets(gradients: Sequence[Gradient], cost: CommunicationCost, *, slack: float = DEFAULT_SLACK) -> BucketPlan:
    """Cut gradients into buckets.

    Args:
        gradients: in the order in which they become ready; a time below the predecessor's counts as the predecessor's.
        slack: allowed delay of a bucket after its earliest end, as a share of the earliest end of the last bucket.
    Raises: ValueError if there are no gradients, for a negative number or NaN, an infinite time or `bytes_per_s`, or a
        rate of 0.
    """
    _check(gradients, cost, slack)
    pieces = _pieces(gradients)
    ready = list(accumulate((piece.ready_s for piece in pieces), max))
    sent = [0, *accumulate(piece.num_bytes for piece in pieces)]
    earliest = _earliest_ends(ready, sent, cost)
    earliest_s = min(_end(ready, sent, cost, earliest[first], first, len(ready)) for first in range(len(ready)))
    cuts = _cuts_from_the_back(ready, sent, cost, earliest, earliest_s, slack * earliest_s)
    last_of = list(accumulate(piece.num_gradients for piece in pieces))
    end_s = 0.0
    for first, last in zip([0, *cuts], cuts, strict=False):
        end_s = _end(ready, sent, cost, end_s, first, last)
    sizes = tuple(sent[last] - sent[first] for first, last in zip([0, *cuts], cuts, strict=False))
    return BucketPlan(sizes, tuple(last_of[cut - 1] for cut in cuts), end_s, earliest_s, _reason(sizes, ready, cost))


def end_of(gradients: Sequence[Gradient], cost: CommunicationCost, first_bytes: int, next_bytes: int) -> float:
    """Predict the end of communication and of the last copy, in seconds, for buckets that close at given sizes.

    Buckets are reduced one after another, each once its last gradient is ready.

    Args:
        gradients: in the order in which they become ready.
        cost: cost of reducing a bucket.
        first_bytes: size at which the first bucket closes.
        next_bytes: size at which each later bucket closes.
    """
    end_s = ready_s = 0.0
    num_bytes, last_bytes, cap = 0, 0, first_bytes
    for gradient in gradients:
        num_bytes += gradient.num_bytes
        ready_s = max(ready_s, gradient.ready_s)
        if num_bytes >= cap:
            end_s = cost.end_s(num_bytes, ready_s, end_s)
            num_bytes, last_bytes, cap = 0, num_bytes, next_bytes
    if num_bytes:
        return cost.end_s(num_bytes, ready_s, end_s) + cost.copy_s(num_bytes)
    return end_s + cost.copy_s(last_bytes)


def plan_caps(gradients: Sequence[Gradient], cost: CommunicationCost) -> tuple[int, int]:
    """Choose the caps of the first bucket and of all others, for a framework that accepts no list of sizes.

    The candidates are powers of two, and the sizes of the first and the median bucket of `plan_buckets`; among equal
    ends the larger caps win.
    """
    plan = plan_buckets(gradients, cost)
    total = sum(gradient.num_bytes for gradient in gradients)
    powers = {1 << bits for bits in range(max(total - 1, 1).bit_length() + 1)}
    planned = {plan.sizes[0], sorted(plan.sizes)[len(plan.sizes) // 2]} - {0}
    pairs = ((first, rest) for rest in powers | planned for first in powers | planned if first <= rest)
    return min(pairs, key=lambda pair: (end_of(gradients, cost, *pair), -pair[1], -pair[0]))


@dataclass(frozen=True)
class _Piece:
    """Neighbouring gradients that are not cut apart."""

    num_bytes: int
    ready_s: float
    num_gradients: int


def _check(gradients: Sequence[Gradient], cost: CommunicationCost, slack: float) -> None:
    if not gradients:
        raise ValueError("no gradients to plan buckets for: expected one or more")
    numbers = [cost.latency_s, slack, *(gradient.ready_s for gradient in gradients)]
    has_rates = 0 < cost.bytes_per_s < math.inf and cost.copy_bytes_per_s > 0
    if not all(0 <= number < math.inf for number in numbers) or not has_rates:
        raise ValueError(f"expected finite times of 0 or more and a rate above 0, got {cost}, slack {slack}")
    if any(gradient.num_bytes < 0 for gradient in gradients):
        raise ValueError("expected gradients of 0 bytes or more")


def _pieces(gradients: Sequence[Gradient]) -> list[_Piece]:
    """Join neighbouring gradients into at most MAX_PIECES pieces of similar size."""
    share = 0 if len(gradients) <= MAX_PIECES else 2 * sum(g.num_bytes for g in gradients) // MAX_PIECES + 1
    pieces: list[_Piece] = []
    num_bytes = num_gradients = 0
    ready_s = 0.0
    for index, gradient in enumerate(gradients):
        num_bytes += gradient.num_bytes
        num_gradients += 1
        ready_s = max(ready_s, gradient.ready_s)
        if num_bytes >= share or index == len(gradients) - 1:
            pieces.append(_Piece(num_bytes, ready_s, num_gradients))
            num_bytes = num_gradients = 0
    return pieces


def _earliest_ends(ready: list[float], sent: list[int], cost: CommunicationCost) -> list[float]:
    """Return f of the module's docstring, for 0 to n pieces."""
    earliest = [0.0]
    for last in range(1, len(sent)):
        earliest.append(
            min(cost.end_s(sent[last] - sent[first], ready[last - 1], earliest[first]) for first in range(last))
        )
    return earliest


def _cuts_from_the_back(
    ready: list[float],
    sent: list[int],
    cost: CommunicationCost,
    earliest: list[float],
    earliest_s: float,
    slack_s: float,
) -> list[int]:
    """Return the number of pieces before each cut; the last cut is after all pieces."""
    cuts = [len(ready)]
    deadline_s = earliest_s + slack_s
    while (last := cuts[-1]) > 0:
        ends = [_end(ready, sent, cost, earliest[first], first, last) for first in range(last)]
        latest_s = deadline_s if len(cuts) > 1 else earliest_s * (1 + _ROUNDING)
        in_time = (first for first, end_s in enumerate(ends) if end_s <= latest_s)
        first = next(in_time, None)
        if first is None:  # only through rounding: the cut with the earliest end is in time
            first = ends.index(min(ends))
        num_bytes = sent[last] - sent[first]
        queued_s = cost.end_s(num_bytes, -math.inf, 0.0) + _copy_s(sent, cost, first, last)
        deadline_s = min(deadline_s - queued_s, earliest[first] + slack_s)
        cuts.append(first)
    return cuts[-2::-1]


def _end(
    ready: list[float], sent: list[int], cost: CommunicationCost, previous_end_s: float, first: int, last: int
) -> float:
    """Return the end of the bucket with the pieces after `first` up to `last`."""
    end_s = cost.end_s(sent[last] - sent[first], ready[last - 1], previous_end_s)
    return end_s + _copy_s(sent, cost, first, last)


def _copy_s(sent: list[int], cost: CommunicationCost, first: int, last: int) -> float:
    """Return the seconds of a bucket's copy if it is the last bucket, else 0: others' copies are hidden."""
    return cost.copy_s(sent[last] - sent[first]) if last == len(sent) - 1 else 0.0


def _reason(sizes: tuple[int, ...], ready: list[float], cost: CommunicationCost) -> str:
    backward_s, wire_s = ready[-1], sum(sizes) / cost.bytes_per_s
    limit = "the backward pass" if wire_s <= backward_s else "communication"
    return (
        f"{limit} sets the pace: gradients take {backward_s * _MILLISECONDS:.1f} ms, their {sum(sizes)} bytes "
        f"{wire_s * _MILLISECONDS:.1f} ms at {cost.bytes_per_s / 1e6:.0f} MB/s with "
        f"{cost.latency_s * _MILLISECONDS:.2f} ms a bucket; {len(sizes)} buckets, first {sizes[0]} bytes, "
        f"last {sizes[-1]}"
    )
