"""Compares a rehearsal's samples and losses with its twin's. Pure.

Where: `certificate` derives the verdict from these results.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from clary.control.rehearsal.history import ENOUGH_AGREE, History, SampleHistory, Scale
from clary.control.rehearsal.readings import Reading

MAX_NOISE = 0.05  # relative; if the runs differ by more without a fault, a resume cannot be judged
NOISE_FACTOR = 4.0  # losses count as equal up to this multiple of the noise
MAX_EXAMPLES = 10


@dataclass(frozen=True, kw_only=True)
class SampleCheck:
    """Samples that the rehearsal saw more or less often than the twin."""

    is_known: bool
    num_twice: int = 0
    num_never: int = 0
    examples_twice: tuple[str, ...] = ()
    examples_never: tuple[str, ...] = ()
    num_compared: int = 0  # number of the twin's samples
    first_other_step: int | None = None  # the twin's first optimizer step with different samples, counted from 1
    is_order_repeatable: bool = True  # whether both runs drew the same samples before the first resume
    agreement: float = 0.0
    words: str = ""  # how certain the result is, or why there is no result

    @property
    def is_whole(self) -> bool:
        """Whether the rehearsal saw each sample as often as the twin."""
        return self.is_known and not self.num_twice and not self.num_never

    @property
    def is_sure(self) -> bool:
        """Whether a difference is certainly the program's, because steps and batches could be aligned."""
        return self.is_known and self.agreement >= ENOUGH_AGREE


@dataclass(frozen=True, kw_only=True)
class LossCheck:
    """Comparison of printed losses, step by step."""

    num_compared: int
    num_equal: int
    noise: float  # largest relative difference in the first attempt; 0 without a resume
    largest: float = 0.0  # largest relative difference of all steps
    parts_at: str | None = None  # first step at which losses differ by more than noise
    parts_after_resume: int | None = None  # number of that step, counted from 1 at the last resume before it
    there: str = ""  # loss of the rehearsal at that step, as printed
    twin_there: str = ""

    @property
    def is_comparable(self) -> bool:
        """Whether the noise is small enough to recognize the effect of a fault."""
        return self.num_compared > 0 and self.noise <= MAX_NOISE


def check_samples(twin: SampleHistory, rehearsal: SampleHistory) -> SampleCheck:
    """Compare how often each sample was seen, and find the first step with other samples."""
    why_not = twin.why_not or rehearsal.why_not
    if why_not:
        return SampleCheck(is_known=False, words=why_not)
    seen = Counter(sample for samples in rehearsal.taken.values() for sample in samples)
    expected = Counter(sample for samples in twin.taken.values() for sample in samples)
    twice, never = seen - expected, expected - seen
    others = sorted(
        step for rank, step in twin.taken.keys() | rehearsal.taken.keys() if _differs(twin, rehearsal, rank, step)
    )
    resumed_at = [offset for attempt, offset in rehearsal.offsets.items() if attempt > min(rehearsal.offsets)]
    before_faults = min(resumed_at, default=math.inf)
    is_repeatable = not others or others[0] >= before_faults
    # If the order is not repeatable, the expected counts are known only for whole passes over the data.
    is_comparable = is_repeatable or len(set(expected.values())) == 1
    agreement = min(twin.agreement, rehearsal.agreement)
    words = f"{agreement:.0%} of printed steps agree on where they belong"
    if not is_repeatable:
        words += "; the order is another in each run, only how often each sample was seen is compared"
    if not is_comparable:
        words = "not comparable: the order is another in each run, and the run does not end with a whole pass"
    return SampleCheck(
        is_known=is_comparable,
        num_twice=twice.total(),
        num_never=never.total(),
        examples_twice=_examples(twice),
        examples_never=_examples(never),
        num_compared=expected.total(),
        first_other_step=others[0] + 1 if others else None,
        is_order_repeatable=is_repeatable,
        agreement=agreement,
        words=words,
    )


def check_losses(twin: History, rehearsal: History, scale: Scale) -> LossCheck:
    """Compare the printed losses of each step; differences in an interrupted first attempt are the noise.

    In a run with noise, a single step outside the noise counts as noise, too, unless it is the last step.

    Args:
        twin: losses to compare with.
        rehearsal: losses of the rehearsal; those of the first attempt determine the noise if the job resumed.
        scale: scale of the twin, which names the step at which losses begin to differ.
    """
    before = {
        place: reading
        for place, reading in rehearsal.first_losses.items()
        if rehearsal.resumes and reading.loss is not None
    }
    noise = max((_difference(twin.losses, place, reading) for place, reading in before.items()), default=0.0)
    num_equal = num_compared = 0
    largest, parts_at, outside = 0.0, None, 0
    places = sorted(place for place in rehearsal.losses.keys() & twin.losses.keys())
    for place in places:
        mine, other = rehearsal.losses[place], twin.losses[place]
        if mine.loss is None or other.loss is None:
            continue
        num_compared += 1
        num_equal += mine.loss_text == other.loss_text or mine.loss == other.loss
        difference = _difference(twin.losses, place, mine)
        largest = max(largest, difference)
        if difference > max(noise * NOISE_FACTOR, _last_digit(other)):
            outside += 1
            parts_at = place if parts_at is None else parts_at
    # In a run with noise, a single step outside the noise is noise too; in a run without noise, it is a real
    # difference.
    if noise > 0 and outside == 1 and num_compared > 2 and parts_at != places[-1]:
        parts_at = None
    if parts_at is None:
        return LossCheck(num_compared=num_compared, num_equal=num_equal, noise=noise, largest=largest)
    behind = [resume.first for resume in rehearsal.resumes if resume.first is not None and resume.first <= parts_at]
    return LossCheck(
        num_compared=num_compared,
        num_equal=num_equal,
        noise=noise,
        largest=largest,
        parts_at=scale.name(parts_at),
        parts_after_resume=parts_at - max(behind) + 1 if behind else None,
        there=rehearsal.losses[parts_at].loss_text,
        twin_there=twin.losses[parts_at].loss_text,
    )


def _differs(twin: SampleHistory, rehearsal: SampleHistory, rank: int, step: int) -> bool:
    return Counter(twin.taken.get((rank, step), ())) != Counter(rehearsal.taken.get((rank, step), ()))


def _examples(counts: Counter[int | str]) -> tuple[str, ...]:
    return tuple(str(sample) for sample in sorted(counts, key=lambda item: (isinstance(item, str), item)))[
        :MAX_EXAMPLES
    ]


def _difference(twin: Mapping[int, Reading], place: int, reading: Reading) -> float:
    """Return the relative difference of a loss from the twin's loss."""
    other = twin.get(place)
    if other is None or other.loss is None or reading.loss is None:
        return 0.0
    if reading.loss == other.loss or (math.isnan(reading.loss) and math.isnan(other.loss)):
        return 0.0
    scale = max(abs(other.loss), abs(reading.loss))
    difference = abs(reading.loss - other.loss)
    return difference / scale if math.isfinite(difference) else math.inf


def _last_digit(reading: Reading) -> float:
    """Return one unit of the last printed digit, relative to the value, with a margin for rounding."""
    try:
        exponent = Decimal(reading.loss_text).as_tuple().exponent
    except InvalidOperation:
        return 0.0
    if not isinstance(exponent, int) or not reading.loss:
        return 0.0
    return 1.001 * 10.0**exponent / abs(reading.loss)
