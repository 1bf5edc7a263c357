"""Contenders take turns at the same collective: their speed, its spread, and whether every result was right.

Where: the benchmarks of collectives build gangs, name contenders, and get `Series` of samples back. A sample is the
longest time that any rank took for one call, ranks having started together; of quick calls a sample has as many as
make it long enough to be measured. Turns are blocks of samples, A B C, B C A, and so on, so that what slows the machine
down for a while slows down all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.collectives.collective_gang import Gang
from benchmarks.lines import median_and_spread, percentile

BLOCK_S = 0.004  # timed calls of one sample should last that long: clocks and wake-ups do not count then
MAX_CALLS = 60  # of one sample; sums grow by the number of ranks with each
WARM_UP_SAMPLES = 3
MAX_GROWTH_BITS = 90  # by all calls of a sample: float32 overflows at 127


@dataclass(frozen=True)
class Contender:
    """One way to do it: a door of a gang."""

    name: str
    gang: Gang
    door: str


@dataclass
class Series:
    """Samples of one contender."""

    times_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    link_bytes: list[float] = field(default_factory=list)  # sent by the host that sent most, a call; one value a turn

    @property
    def median_s(self) -> float:
        """Of one call."""
        return median_and_spread(self.times_s)[0]

    @property
    def fast_s(self) -> float:
        """The tenth percentile, which other work on the machine disturbs little."""
        return percentile(self.times_s, 10)

    @property
    def spread(self) -> float | None:
        """Interquartile range over median."""
        return median_and_spread(self.times_s)[1]


@dataclass(frozen=True)
class Effort:
    """How much is measured: `rounds` turns of every contender, with `samples` samples in a turn."""

    rounds: int
    samples: int


def alternate(
    contenders: Sequence[Contender],
    collective: str,
    num_bytes: int,
    effort: Effort,
    *,
    seed: int,
    read_sent_bytes: Callable[[], list[int]] | None = None,
    after_round: Callable[[], None] | None = None,
) -> dict[str, Series]:
    """Measure all contenders in turns.

    Args:
        read_sent_bytes: counters of the hosts' links, in any order that stays the same.
        after_round: what else is measured in the same turns, once all contenders had theirs.
    Raises: GangError if a rank failed; wrong results are told in `problems` instead.
    """
    for gang in {id(contender.gang): contender.gang for contender in contenders}.values():
        gang.ask({"do": "size", "collective": collective, "num_bytes": num_bytes})
    series = {contender.name: Series() for contender in contenders}
    numbers = itertools.count()

    def take(contender: Contender, num_samples: int, calls: int) -> tuple[list[float], list[str]]:
        order = {"do": "take", "door": contender.door, "seed": seed, "num_samples": num_samples, "num_calls": calls}
        first = next(numbers) * max(effort.samples, WARM_UP_SAMPLES)
        answers = contender.gang.ask(order | {"first": first})
        slowest = [max(times) for times in zip(*(answer["times_s"] for answer in answers), strict=True)]
        return slowest, [problem for answer in answers for problem in answer["problems"]]

    num_calls: dict[str, int] = {}
    for contender in contenders:
        times_s, problems = take(contender, WARM_UP_SAMPLES, 1)  # connections, pages, caches
        num_calls[contender.name] = calls_a_sample(min(times_s), contender.gang.num_ranks)
        series[contender.name].problems += problems
    for turn in range(effort.rounds):
        for index in range(len(contenders)):
            contender = contenders[(turn + index) % len(contenders)]
            before = read_sent_bytes() if read_sent_bytes else []
            calls = num_calls[contender.name]
            times_s, problems = take(contender, effort.samples, calls)
            after = read_sent_bytes() if read_sent_bytes else []
            result = series[contender.name]
            result.times_s += times_s
            result.problems += problems
            if read_sent_bytes:
                most = max(late - early for late, early in zip(after, before, strict=True))
                result.link_bytes.append(most / (effort.samples * calls))
        if after_round is not None:
            after_round()
    return series


def calls_a_sample(call_s: float, num_ranks: int) -> int:
    """Return how many calls make a sample of BLOCK_S without the sums growing out of float32."""
    by_growth = MAX_GROWTH_BITS // max(1, num_ranks.bit_length() - 1 + (num_ranks & (num_ranks - 1) != 0))
    return max(1, min(MAX_CALLS, by_growth, int(BLOCK_S / call_s)))
