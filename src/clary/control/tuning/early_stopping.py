"""The median rule of early stopping: decides whether a running trial should continue. Pure.

Where: `services.tuning.tuning_keeper` calls it each time a running trial reports another value of its objective.
Source: "Stop Training Jobs Early" (developer guide): after each epoch the value is compared with the median of the
running averages of the objective of earlier training jobs up to the same epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from statistics import median

from clary.control.tuning.tuning_request import Objective

LEAST_TRIALS = 3  # minimum number of other trials with a curve at least as long; a median of fewer is no evidence
LEAST_VALUES = 2  # minimum number of values of the trial itself; the first value is that of an untrained model


def why_stop(curve: Sequence[float], others: Sequence[Sequence[float]], objective: Objective) -> str:
    """Return the reason why a trial should stop; empty if it should continue.

    Args:
        curve: values of the objective that the trial has reported, in order.
        others: curves of the trials that have ended.
        objective: the objective; decides which values are better.
    """
    number = len(curve)
    if number < LEAST_VALUES:
        return ""
    averages = [fsum(value / number for value in other[:number]) for other in others if len(other) >= number]
    if len(averages) < LEAST_TRIALS:
        return ""
    middle = median(averages)
    best = max(curve) if objective.is_maximized else min(curve)
    if not objective.is_better(middle, best):
        return ""
    return (
        f"early stopping: the best of its first {number} values of {objective.metric} is {best:g}, worse than "
        f"{middle:g}, the median of {len(averages)} earlier training jobs up to there"
    )
