"""Steps and losses from log lines. Pure.

Where: `clary rehearse` uses it to wait for steps while the job runs, and to compare losses at the job's end. A line is
parsed with the request's MetricDefinitions of a step or a loss; if they do not match it, with patterns of common forms.
For a script that prints epochs but no steps, epochs count as steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clary.base.errors import ContractError, Fault

_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?nan|[-+]?inf)"
# Whitespace matches before a separator such as `:` or after the last one, so that a run of whitespace matches in only
# one way.
_SEPARATOR = r"['\"]?(?:\s*[:=#])?(?:\s*\[)?\s*"
_STEPS = (
    re.compile(rf"(?i)(?<![a-z_])global[_ -]?step{_SEPARATOR}(\d+)"),
    re.compile(rf"(?i)(?<![a-z_])(?:train[_ ])?step{_SEPARATOR}(\d+)"),
    re.compile(rf"(?i)(?<![a-z_])(?:iteration|iter|batch){_SEPARATOR}(\d+)"),
)
_EPOCH = re.compile(rf"(?i)(?<![a-z_])epoch{_SEPARATOR}(\d+(?:\.\d+)?)")
_LOSS = re.compile(
    r"(?i)(?<![a-z_])(?<!val )(?<!eval )(?<!validation )(?<!test )(?:train(?:ing)?[_ ])?loss['\"]?(?:\s*[:=])?\s*"
    + _NUMBER
)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The reading of one line: step, epoch and loss."""

    step: float  # a whole number, except for scripts that print fractions of epochs
    epoch: float | None = None  # if the line names both
    loss: float | None = None
    loss_text: str = ""  # the loss as printed


class Reader:
    """Parses lines with expressions whose group 1 is the value; the first match decides."""

    def __init__(
        self, *, steps: Sequence[re.Pattern[str]] = (*_STEPS, _EPOCH), losses: Sequence[re.Pattern[str]] = (_LOSS,)
    ) -> None:
        self._steps = tuple(steps)
        self._losses = tuple(losses)

    def read(self, line: str) -> Reading | None:
        """Return the reading of a line, or None if the line names no step."""
        found = next((match for match in (pattern.search(line) for pattern in self._steps) if match), None)
        if found is None:
            return None
        try:
            step = float(found[1])
        except (ValueError, TypeError):
            return None
        loss_found = next((match for match in (pattern.search(line) for pattern in self._losses) if match), None)
        text = (loss_found[1] or "") if loss_found is not None else ""
        try:
            loss = float(text) if text else None
        except ValueError:
            loss, text = None, ""
        epoch = _EPOCH.search(line) if found.re is not _EPOCH else None
        return Reading(step=step, epoch=None if epoch is None else float(epoch[1]), loss=loss, loss_text=text)

    def read_all(self, lines: Iterable[str]) -> list[Reading]:
        """Return the readings of the lines that name a step, in order."""
        return [reading for reading in map(self.read, lines) if reading is not None]


def make_reader(
    definitions: Sequence[Mapping[str, Any]], *, step_regex: str | None = None, loss_regex: str | None = None
) -> Reader:
    """Return the reader of a job.

    Args:
        definitions: MetricDefinitions of the request; for a line that they do not match, the common forms are tried.
        step_regex, loss_regex: if given, used alone; group 1 is the value.

    Raises: ContractError for an expression that is invalid or has no group.
    """
    steps = _named(definitions, ("global_step", "step", "iteration", "iter"))
    losses = _named(definitions, ("train:loss", "train_loss", "training_loss", "loss"))
    return Reader(
        steps=(_compiled(step_regex),) if step_regex else (*map(_compiled, steps), *_STEPS, _EPOCH),
        losses=(_compiled(loss_regex),) if loss_regex else (*map(_compiled, losses), _LOSS),
    )


def _named(definitions: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    by_name = {str(item["Name"]).lower(): str(item["Regex"]) for item in definitions}
    return [by_name[name] for name in names if name in by_name]


def _compiled(text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ContractError(f"{text!r} is not a regular expression: {error}", fault=Fault.USER) from None
    if not pattern.groups:
        raise ContractError(
            f"{text!r} has no group: put the part that matches the value in parentheses", fault=Fault.USER
        )
    return pattern
