"""Progress of a training: parses a program's own report, chooses among reports, and converts one for clients. Pure.

Source: ProgressInfo of DescribeTrainingJob (sagemaker.train of SDK v3 counts epochs from 1 and steps within one);
`trainerStatus` of docs/user-guides/trainjob-progress.md (kubeflow/trainer), as transformers' KubeflowCallback sends it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from clary.contract.training_values import MAX_NAME_CHARACTERS, TrainingProgress

KUBEFLOW = "kubeflow"
MAX_METRICS = 100  # read from one status
FRESH_MS = 60_000  # time for which the program's own report takes precedence over its log
_MOST_STEPS = 10**15
_MOST_SECONDS = 10 * 365 * 86400
# epochs; below it, an epoch that is reported with two digits is too coarse to compute the number of epochs
_SURE_EPOCH = 0.2
_MS_PER_S = 1000


@dataclass(frozen=True, kw_only=True)
class Status:
    """A program's own report of its progress and metrics."""

    progress: TrainingProgress | None
    metrics: Mapping[str, float]
    step: int | None  # step of the metrics


def read_status(document: Any, last: TrainingProgress | None, *, at_ms: int) -> Status | None:
    """Return the status in a request, or None if it contains no status.

    Args:
        document: parsed body of the request.
        last: the program's previous progress; it supplies the steps that the final status omits.
        at_ms: time of the request.
    """
    said = document.get("trainerStatus") if isinstance(document, Mapping) else None
    if not isinstance(said, Mapping):
        return None
    listed = said.get("metrics")
    numbers: dict[str, float] = {}
    for item in listed[:MAX_METRICS] if isinstance(listed, list) else ():
        if not isinstance(item, Mapping) or not _is_name(item.get("name")):
            continue
        number = _number(item.get("value"))
        if number is not None:
            numbers[item["name"]] = number
    done, total = numbers.pop("current_step", None), numbers.pop("total_steps", None)
    epoch = numbers.pop("current_epoch", None)
    percent, eta_s = _number(said.get("progressPercentage")), _number(said.get("estimatedRemainingSeconds"))
    progress = _progress(done, total, percent, last, at_ms=at_ms)
    if progress is not None:
        known_eta = eta_s if eta_s is not None and 0 <= eta_s <= _MOST_SECONDS else None
        if epoch is None and last is not None and last.max_epoch and progress.total:
            epoch = last.max_epoch * progress.done / progress.total  # the final report has no epoch
        progress = in_epochs(replace(progress, eta_s=known_eta), epoch)
    counted = progress if progress is not None and progress.unit == "steps" else last
    return Status(progress=progress, metrics=numbers, step=None if counted is None else int(counted.done))


def in_epochs(progress: TrainingProgress, epoch: float | None) -> TrainingProgress:
    """Return progress with its current epoch and the number of epochs, computed from the part that is done.

    Args:
        epoch: epochs completed so far, as a fraction (1.5: half of the second epoch is done); None if unknown.
    Returns: `progress` itself if the number of epochs cannot be computed.
    """
    if epoch is None or not _SURE_EPOCH <= epoch <= _MOST_STEPS or not progress.total or not progress.done:
        return progress  # also for NaN
    computed = epoch * progress.total / progress.done  # infinite for a tiny part that is done
    max_epoch = round(computed) if computed <= progress.total else 0
    if not 1 <= max_epoch <= progress.total:
        return progress
    steps = max(1, round(progress.total / max_epoch))
    number = min(max_epoch, int(progress.done // steps) + 1)
    return replace(
        progress,
        epoch=number,
        max_epoch=max_epoch,
        step_in_epoch=min(steps, int(progress.done) - (number - 1) * steps),
        steps_per_epoch=steps,
    )


def standing(new: TrainingProgress | None, stood: TrainingProgress | None) -> TrainingProgress | None:
    """Return the report to use, of two from the same host.

    It is the newer report, unless that was read from the log and the program's own report is less than FRESH_MS older.
    """
    if new is None or stood is None:
        return new or stood
    is_own = stood.source == KUBEFLOW and new.source != KUBEFLOW
    return stood if is_own and new.at_ms - stood.at_ms < FRESH_MS else new


def of_hosts(said: Mapping[str, TrainingProgress], hosts: Sequence[str]) -> TrainingProgress | None:
    """Return the progress of a job: the first report by a program itself, else the first report of any host."""
    in_order = [said[host] for host in hosts if host in said] or list(said.values())
    return next((one for one in in_order if one.source == KUBEFLOW), in_order[0] if in_order else None)


def progress_facts(progress: TrainingProgress | None, *, now: datetime, is_over: bool) -> dict[str, Any] | None:
    """Return progress in the form that clients show to people; None while unknown.

    Args:
        progress: the last reported progress.
        now: time from which the remaining time counts.
        is_over: whether the job has ended and so has no remaining time.
    """
    if progress is None:
        return None
    at = datetime.fromtimestamp(progress.at_ms / _MS_PER_S, UTC)
    eta_s = progress.eta_s
    if eta_s is not None:
        eta_s = None if is_over else max(0.0, eta_s - max(0.0, (now - at).total_seconds()))
    return {
        "percent": progress.percent,
        "done": progress.done,
        "total": progress.total,
        "unit": progress.unit,
        "epoch": progress.epoch,
        "max_epoch": progress.max_epoch,
        "eta_s": eta_s,
        "source": progress.source,
        "at": at.isoformat(),
    }


def progress_info(progress: TrainingProgress | None) -> dict[str, int] | None:
    """Return ProgressInfo; None without a total."""
    if progress is None or not progress.total:
        return None
    if progress.max_epoch and progress.steps_per_epoch:
        return {
            "CurrentEpoch": progress.epoch or 1,
            "MaxEpoch": progress.max_epoch,
            "CurrentStep": max(0, progress.step_in_epoch or 0),
            "TotalStepCountPerEpoch": progress.steps_per_epoch,
        }
    # Without an epoch and steps per epoch, the whole training is shown as one epoch.
    return {
        "CurrentEpoch": 1,
        "MaxEpoch": 1,
        "CurrentStep": max(0, int(progress.done)),
        "TotalStepCountPerEpoch": max(1, int(progress.total)),
    }


def _progress(
    done: float | None, total: float | None, percent: float | None, last: TrainingProgress | None, *, at_ms: int
) -> TrainingProgress | None:
    if total is None and last is not None and last.unit == "steps":
        total = last.total
    if total is not None and not 0 < total < _MOST_STEPS:
        total = None
    if total is not None and done is None and percent is not None:
        done = total * percent / 100
    if total is not None and done is not None and math.isfinite(done):
        return TrainingProgress(done=float(int(max(0.0, min(done, total)))), total=total, source=KUBEFLOW, at_ms=at_ms)
    if percent is None or not math.isfinite(percent):
        return None
    return TrainingProgress(
        done=max(0.0, min(percent, 100.0)), total=100.0, unit="percent", source=KUBEFLOW, at_ms=at_ms
    )


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARACTERS and name.isprintable()


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
