"""Batches and optimizer steps from the records that `compat.clary_rehearsal` writes in a program. Pure.

[Note: batches of a step]
The batches of a step are the last batches drawn before it, as many as steps of the twin usually take (several with
gradient accumulation). So batches that a resumed program draws only to skip them, and batches of a validation between
two steps, belong to no step. A program without a torch optimizer has one batch per step.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clary.control.rehearsal.readings import Reader, Reading

Sample = int | str
# number of each sample; None for a batch whose samples have no numbers
Batch = tuple[Sample, ...] | None


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """The record of one rank in one attempt."""

    rank: int
    drawn: tuple[tuple[Batch, ...], ...]  # for each optimizer step: batches drawn since the previous step
    printed: tuple[tuple[Reading, int], ...]  # each reading, and the number of optimizer steps before it
    has_steps: bool  # whether a torch optimizer was seen; else each batch counts as a step
    is_whole: bool = True  # False if the record was full

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the attempt."""
        return len(self.drawn)

    @property
    def has_samples(self) -> bool:
        """Whether any drawn sample has a number."""
        return any(batch for batches in self.drawn for batch in batches)


def read_record(text: str, reader: Reader) -> RankRecord | None:
    """Parse one file; None if it has no batches. An incomplete last line is ignored."""
    rank, events = 0, []
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if not isinstance(event, dict):
            continue
        if event.get("e") == "begin":
            rank = int(event["rank"]) if str(event.get("rank", "")).isdecimal() else 0
        events.append(event)
    if not any(event.get("e") == "batch" for event in events):
        return None
    counted = _main_optimizer(events)
    drawn: list[tuple[Batch, ...]] = []
    printed: list[tuple[Reading, int]] = []
    waiting: list[Batch] = []
    for event in events:
        match event.get("e"):
            case "batch":
                waiting.append(_batch(event.get("i")))
                if counted is None:
                    drawn.append(tuple(waiting))
                    waiting = []
            case "step" if event.get("o") == counted:
                drawn.append(tuple(waiting))
                waiting = []
            case "line":
                reading = reader.read(str(event.get("s", "")))
                if reading is not None:
                    printed.append((reading, len(drawn)))
    return RankRecord(
        rank=rank,
        drawn=tuple(drawn),
        printed=tuple(printed),
        has_steps=counted is not None,
        is_whole=not any(event.get("e") == "full" for event in events),
    )


def batches_a_step(record: RankRecord) -> int:
    """Return the number of batches that most steps take, at least 1."""
    numbers = Counter(len(batches) for batches in record.drawn if batches)
    return numbers.most_common(1)[0][0] if numbers else 1


def samples_of(batches: Sequence[Batch], num_batches: int) -> tuple[Sample, ...]:
    """Return the samples of one step, which are the samples of its last batches."""
    return tuple(sample for batch in batches[-num_batches:] if batch for sample in batch)


def _main_optimizer(events: Iterable[dict[str, object]]) -> object:
    """Return the optimizer with the most steps, or None if no optimizer was seen."""
    numbers = Counter(event.get("o") for event in events if event.get("e") == "step")
    return numbers.most_common(1)[0][0] if numbers else None


def _batch(members: object) -> Batch:
    if not isinstance(members, list):
        return None
    return tuple(member if isinstance(member, int) else str(member) for member in members)
