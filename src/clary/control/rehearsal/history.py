"""The steps of a job's attempts that led to its model. Pure.

[Note: places]
A place is the index of a step among the steps that the twin printed, from 0. The rehearsal's printed steps are looked
up in this list. So a script may count steps from any number, print seldom, or count anew in each epoch. An attempt
replaces all steps of earlier attempts from its first place on: the remaining steps are the history that led to the
model.

[Note: lining up batches]
A program's own record contains batches, optimizer steps and printed lines in their order. The twin's record gives the
number of optimizer steps before each printed step. If an attempt prints the same step after fewer optimizer steps of
its own, the attempt began later in the training by the difference. The offset of an attempt is the difference that most
of its printed steps have; the share of these steps tells how reliable the offset is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from clary.control.rehearsal.readings import Reading
from clary.control.rehearsal.recordings import RankRecord, Sample, batches_a_step, samples_of

ENOUGH_AGREE = 0.8  # share of an attempt's printed steps that must agree on its offset

Step = tuple[float, float]  # (epoch, step); the epoch is 0.0 if steps do not begin anew in each epoch


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt: its printed readings, the records of its ranks, and its end."""

    number: int
    readings: tuple[Reading, ...]
    records: tuple[RankRecord, ...] = ()
    end: str = ""  # why the attempt ended early; empty for the last attempt
    restored_files: int = 0  # files restored at its beginning
    stored_sets: int = 0  # checkpoint sets stored by its end


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The twin's printed steps, in order."""

    steps: tuple[Step, ...]
    counts_epochs: bool  # whether steps begin anew in each epoch

    def place(self, reading: Reading) -> int:
        """Return the place of the twin's first step that is equal to the reading's step or after it."""
        return bisect_left(self.steps, self.step_of(reading))

    def step_of(self, reading: Reading) -> Step:
        """Return the step of a reading, in the form of this scale."""
        return (reading.epoch or 0.0, reading.step) if self.counts_epochs else (0.0, reading.step)

    def name(self, place: int) -> str:
        """Return `120`, or `epoch 2, step 30`."""
        if not self.steps:
            return "?"
        epoch, step = self.steps[min(max(place, 0), len(self.steps) - 1)]
        return f"epoch {epoch:g}, step {step:g}" if self.counts_epochs else f"{step:g}"


@dataclass(frozen=True, kw_only=True)
class Resume:
    """The change from one attempt to the next."""

    attempt: int  # number of the ended attempt
    why: str
    last: int | None  # place of its last step; None if it printed no step
    first: int | None  # place of the next attempt's first step
    is_from_start: bool  # whether the next attempt began with the very first step
    lost_steps: int | None  # number of steps done twice; below 0: number of steps that no attempt did
    restored_files: int
    stored_sets: int


@dataclass(frozen=True, kw_only=True)
class SampleHistory:
    """Samples of each step, by rank and number of the twin's optimizer step."""

    taken: Mapping[tuple[int, int], tuple[Sample, ...]]  # (rank, step) -> samples
    offsets: Mapping[int, int]  # attempt -> number of optimizer steps before its first step
    agreement: float  # share of printed steps that agree on the offset: the smallest of all attempts
    why_not: str = ""  # why there are no samples


@dataclass(frozen=True, kw_only=True)
class History:
    """Losses and samples of the steps that led to the model, and the resumes between attempts."""

    losses: Mapping[int, Reading]  # place -> reading of the last attempt that printed it
    first_losses: Mapping[int, Reading]  # place -> reading of the first attempt, lost steps included
    resumes: tuple[Resume, ...]
    samples: SampleHistory = field(
        default_factory=lambda: SampleHistory(taken={}, offsets={}, agreement=0.0, why_not="not seen")
    )


def relevant(readings: Sequence[Reading]) -> tuple[Reading, ...]:
    """Return the last line of each step, only from lines with a loss if there are any."""
    with_loss = [reading for reading in readings if reading.loss is not None]
    chosen = with_loss or list(readings)
    return tuple({(reading.epoch, reading.step): reading for reading in chosen}.values())


def scale_of(twin: Sequence[Reading]) -> Scale:
    """Return the scale of the twin's steps."""
    readings = relevant(twin)
    begins_anew = any(later.step <= earlier.step for earlier, later in pairwise(readings))
    has_epochs = all(reading.epoch is not None for reading in readings)
    counts_epochs = bool(readings) and begins_anew and has_epochs
    steps = {((reading.epoch or 0.0) if counts_epochs else 0.0, reading.step) for reading in readings}
    return Scale(steps=tuple(sorted(steps)), counts_epochs=counts_epochs)


def make_history(attempts: Sequence[Attempt], scale: Scale, twin: Attempt) -> History:
    """Merge the attempts of a job into the history that led to its model.

    Args:
        attempts: attempts of one job, in order.
        scale: scale of the twin's printed steps, on which every reading is placed.
        twin: last attempt of the uninterrupted job; its record is the reference for lining up the batches.
    """
    losses: dict[int, Reading] = {}
    first_losses: dict[int, Reading] = {}
    resumes: list[Resume] = []
    samples = _sample_history(attempts, scale, twin)
    offset_of, before = samples.offsets, None
    for attempt in attempts:
        placed = {scale.place(reading): reading for reading in relevant(attempt.readings)}
        first = min(placed, default=None)
        if before is None:
            first_losses = dict(placed)
        else:
            last = max((place for place in losses), default=None)
            lost = None if last is None or first is None else last - first + 1
            exact = _exactly_lost(before, attempt, offset_of)
            resumes.append(
                Resume(
                    attempt=before.number,
                    why=before.end,
                    last=last,
                    first=first,
                    is_from_start=first == 0 and not offset_of.get(attempt.number),
                    lost_steps=lost if exact is None else exact,
                    restored_files=attempt.restored_files,
                    stored_sets=before.stored_sets,
                )
            )
        if first is not None:
            losses = {place: reading for place, reading in losses.items() if place < first} | placed
        before = attempt
    return History(losses=losses, first_losses=first_losses, resumes=tuple(resumes), samples=samples)


def _exactly_lost(before: Attempt, after: Attempt, offsets: Mapping[int, int]) -> int | None:
    """Return the number of lost optimizer steps, counted from records, which have unprinted steps too; or None."""
    if before.number not in offsets or after.number not in offsets or not before.records:
        return None
    done = offsets[before.number] + max(record.num_steps for record in before.records)
    return done - offsets[after.number]


def _sample_history(attempts: Sequence[Attempt], scale: Scale, twin: Attempt) -> SampleHistory:
    def none(why: str) -> SampleHistory:
        return SampleHistory(taken={}, offsets={}, agreement=0.0, why_not=why)

    if not twin.records:
        return none("not seen (no torch DataLoader)")
    if not any(record.has_samples for record in twin.records):
        return none("not seen (the data set has no numbers for its samples)")
    if not all(record.is_whole for attempt in (twin, *attempts) for record in attempt.records):
        return none("not compared (more than a record holds)")
    steps_before = _steps_before(twin, scale)
    if not steps_before:
        return none("not lined up with steps (what is printed did not come through Python's own streams)")
    num_batches = batches_a_step(_printing(twin))
    taken: dict[tuple[int, int], tuple[Sample, ...]] = {}
    offsets: dict[int, int] = {}
    agreement = 1.0
    for attempt in attempts:
        if not attempt.records:
            continue  # the attempt ended before it drew a batch
        found = _offset(attempt, scale, steps_before)
        if found is None:
            if attempt is attempts[-1]:
                return none(f"attempt {attempt.number} printed no step that the twin printed too")
            continue
        offset, share = found
        offsets[attempt.number] = offset
        agreement = min(agreement, share)
        taken = {key: samples for key, samples in taken.items() if key[1] < offset}
        for record in attempt.records:
            for number, batches in enumerate(record.drawn):
                taken[record.rank, offset + number] = samples_of(batches, num_batches)
    silent = _silent_rank(attempts, offsets, twin)
    if silent is not None:
        return none(f"not compared (rank {silent[1]} of attempt {silent[0]} wrote nothing down)")
    return SampleHistory(taken=taken, offsets=offsets, agreement=agreement)


def _silent_rank(attempts: Sequence[Attempt], offsets: Mapping[int, int], twin: Attempt) -> tuple[int, int] | None:
    """Return an attempt whose steps led to the model, and one of its ranks without a record; or None."""
    ranks = {record.rank for record in twin.records}
    placed = [attempt for attempt in attempts if attempt.number in offsets]
    for index, attempt in enumerate(placed):
        behind = [offsets[later.number] for later in placed[index + 1 :]]
        counts = not behind or min(behind) > offsets[attempt.number]
        missing = ranks - {record.rank for record in attempt.records}
        if counts and missing:
            return attempt.number, min(missing)
    return None


def _printing(attempt: Attempt) -> RankRecord:
    """Return the record of the rank with the most printed steps; of several such ranks, of the lowest."""
    return max(attempt.records, key=lambda record: (len(record.printed), -record.rank))


def _printed(attempt: Attempt) -> list[tuple[Reading, int]]:
    printed = _printing(attempt).printed
    with_loss = [item for item in printed if item[0].loss is not None]
    return with_loss or list(printed)


def _steps_before(twin: Attempt, scale: Scale) -> dict[Step, int]:
    """Return printed step -> number of optimizer steps before it."""
    return {scale.step_of(reading): done for reading, done in _printed(twin)}


def _offset(attempt: Attempt, scale: Scale, steps_before: Mapping[Step, int]) -> tuple[int, float] | None:
    """Return how many of the twin's optimizer steps precede the attempt's first, and the share of agreeing lines."""
    offsets = Counter(
        steps_before[scale.step_of(reading)] - done
        for reading, done in _printed(attempt)
        if scale.step_of(reading) in steps_before
    )
    if not offsets:
        return None
    offset, number = offsets.most_common(1)[0]
    return offset, number / sum(offsets.values())
