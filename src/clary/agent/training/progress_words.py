"""Progress in the output of programs and in Hugging Face's state file. Pure.

Where: `progress_watch` calls it with lines of the log that may hold progress, `file_reading` with the state file.
Source: tqdm's default format (`desc:  45%|####5     | 450/1000 [00:12<00:15, 36.5it/s]`), which Lightning, Keras
wrappers and transformers print too; `TrainerState` of transformers for trainer_state.json.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from clary.agent.training.json_values import may_have_more_values
from clary.contract.training_values import TrainingProgress

MAX_STATE_VALUES = 300_000  # of trainer_state.json; a history of 4 MiB has half of them
MAX_CHARACTERS = 512  # characters of a line that are read
MOST = 10**15  # largest number of steps; larger numbers count other units

_BAR = re.compile(r"(\d{1,3})%\|[^|]{0,200}\| *(\d{1,15}(?:\.\d{1,6})?[kMG]?) ?/ ?(\d{1,15}(?:\.\d{1,6})?[kMG]?) ?\[")
_TIMES = re.compile(r"\[(\d{1,4}(?::\d\d){1,2})<")
_EPOCH_OF = re.compile(r"\b[Ee]pochs?\b[ :=#\[(]{0,4}(\d{1,9}) ?(?:/|of) ?(\d{1,9})\b")
_EPOCH = re.compile(r"\b[Ee]poch\b[ :=#\[]{0,4}(\d{1,9})\b")
_STEP_OF = re.compile(
    r"\b([Gg]lobal[ _-]?)?([Ss]teps?|[Ii]ter(?:ation)?s?|[Bb]atch(?:es)?)\b[ :=#\[(]{0,4}"
    r"(\d{1,15}) ?(?:/|of) ?(\d{1,15})\b"
)
_LETTERS = ("%|", "poch", "tep", "ter", "atch")  # a line without any of these texts holds no progress
_FACTORS = {"k": 1_000, "M": 1_000_000, "G": 1_000_000_000}
# Bars of preparations end long before the training does.
_NOT_TRAINING = re.compile(
    r"(?i)\b(?:download|load|fetch|generat|tokeniz|tokenis|map\b|filter|resolv|sav|writ|extract|upload|group|pack"
    r"|evaluat|validat|predict|test)"
)


@dataclass(frozen=True, kw_only=True)
class Sign:
    """The progress in one line.

    Attributes:
        kind: bar, epoch or step.
        name: name of the counted units; for a bar, the text before it without numbers.
        done: finished part of `total`.
        total: None if the line does not name it.
        seconds: how long a bar has been running; None if the line does not name it.
        epoch: the running epoch, if the same line names it.
        max_epoch: number of epochs in all.
        is_global: whether the line states that its steps count the whole training.
    """

    kind: str
    name: str
    done: float
    total: float | None
    seconds: float | None = None
    epoch: int | None = None
    max_epoch: int | None = None
    is_global: bool = False


def may_hold_progress(line: str) -> bool:
    """Whether a line may hold progress."""
    head = line[:MAX_CHARACTERS]
    return any(letters in head for letters in _LETTERS)


def sign_in(line: str) -> Sign | None:
    """Return the progress in a line, or None; bars of preparations and evaluations do not count."""
    line = line[:MAX_CHARACTERS]
    epoch_of = _EPOCH_OF.search(line)
    epoch, max_epoch = (int(epoch_of[1]), int(epoch_of[2])) if epoch_of else (None, None)
    bar = _BAR.search(line)
    if bar:
        name = line[: bar.start()]
        if _NOT_TRAINING.search(name):
            return None
        if epoch is None and (said := _EPOCH.search(name)):
            epoch = int(said[1])
        words = re.sub(r"[\d/\s]+", " ", name).strip(" :[]()")[-40:]
        done, total = _counted(bar[2]), _counted(bar[3])
        if not 0 < total < MOST:
            return None
        counts_epochs = "poch" in words and epoch is None
        return Sign(
            kind="epoch" if counts_epochs else "bar",
            name=words,
            done=min(done, total),
            total=total,
            seconds=_seconds(line),
            epoch=epoch,
            max_epoch=max_epoch,
        )
    step = _STEP_OF.search(line)
    if step and 0 < int(step[4]) < MOST and int(step[3]) <= int(step[4]):
        if _NOT_TRAINING.search(line[: step.start()]):
            return None
        return Sign(
            kind="step",
            name=step[2].lower(),
            done=float(step[3]),
            total=float(step[4]),
            epoch=epoch,
            max_epoch=max_epoch,
            is_global=bool(step[1]),
        )
    if epoch is not None and max_epoch and epoch <= max_epoch:
        return Sign(kind="epoch", name="", done=float(epoch), total=float(max_epoch), epoch=epoch, max_epoch=max_epoch)
    return None


def of_trainer_state(data: bytes, *, at_ms: int) -> TrainingProgress | None:
    """Return the progress in trainer_state.json, or None if it has no valid numbers of steps, or too many values."""
    if may_have_more_values(data, MAX_STATE_VALUES):
        return None
    try:
        state = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(state, dict):
        return None
    done, total = _whole(state.get("global_step")), _whole(state.get("max_steps"))
    if done is None or not total or done > total:
        return None
    max_epoch, epoch = _whole(state.get("num_train_epochs")), state.get("epoch")
    progress = TrainingProgress(done=done, total=total, source="trainer_state", at_ms=at_ms)
    if not max_epoch or not isinstance(epoch, int | float) or total < max_epoch:
        return progress
    return in_epochs(progress, max_epoch=max_epoch)


def in_epochs(progress: TrainingProgress, *, max_epoch: int) -> TrainingProgress:
    """Return progress in steps of the whole training, together with the epoch that it has reached."""
    assert progress.total
    steps_per_epoch = max(1, round(progress.total / max_epoch))
    epoch = min(max_epoch, int(progress.done // steps_per_epoch) + 1)
    return TrainingProgress(
        done=progress.done,
        total=progress.total,
        unit=progress.unit,
        source=progress.source,
        at_ms=progress.at_ms,
        eta_s=progress.eta_s,
        epoch=epoch,
        max_epoch=max_epoch,
        step_in_epoch=min(steps_per_epoch, int(progress.done) - (epoch - 1) * steps_per_epoch),
        steps_per_epoch=steps_per_epoch,
    )


def _whole(number: Any) -> int | None:
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    return int(number) if 0 <= number < MOST else None  # false for NaN, too


def _counted(text: str) -> float:
    """Return 1200.0 for `1.2k`."""
    factor = _FACTORS.get(text[-1:], 1)
    return float(text.rstrip("kMG")) * factor


def _seconds(line: str) -> float | None:
    """Return how long a bar has been running."""
    found = _TIMES.search(line)
    if not found:
        return None
    seconds = 0.0
    for part in found[1].split(":"):
        seconds = seconds * 60 + int(part)
    return seconds
