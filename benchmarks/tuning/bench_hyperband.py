"""Hyperband: epochs that it trains and the best that it finds, against all its configurations trained to the end.

A network in NumPy learns MNIST's digits of 14 x 14; rate, decay, width, size of a batch and activation are tuned, the
objective is the accuracy on held-out digits after each epoch. The search, its ends and promotions are the service's,
asked in the order in which the service asks them; there is no service, and so no delay between a value and a verdict.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.lines import Line
from benchmarks.tuning.hyperband_run import HyperbandRun, Tuned
from benchmarks.tuning.numpy_network import Examples, epochs
from benchmarks.tuning.real_data import small_digits

NUM_TRIALS, PARALLEL = 60, 4
NUM_EPOCHS = 27  # rungs at 1, 3 and 9
NUM_SEEDS, NUM_SEEDS_QUICK = 10, 2
GOAL_SHARE, GOAL_LOSS = 0.4, 0.01  # of the epochs; of the best accuracy
WAYS = {"stays ended": {}, "goes on": {"CheckpointConfig": {"S3Uri": "s3://bench/checkpoints"}}}


def run(quick: bool) -> Iterator[Line]:
    """Tune with and without checkpoints, with several seeds."""
    curves = Curves(small_digits())
    for way, members in WAYS.items():
        found = []
        for seed in range(NUM_SEEDS_QUICK if quick else NUM_SEEDS):
            print(f"{way}: seed {seed}", file=sys.stderr)
            found.append(compared(HyperbandRun(request(members), curves.whole, seed=seed).run(), curves))
        yield from lines(way, found)


class Curves:
    """Whole curves of points, each trained once.

    Args:
        examples: to train on.
        num_epochs: of a whole curve.
    """

    def __init__(self, examples: Examples, num_epochs: int = NUM_EPOCHS) -> None:
        self._examples = examples
        self._num_epochs = num_epochs
        self._known: dict[tuple[tuple[str, str], ...], tuple[float, ...]] = {}

    def whole(self, point: Mapping[str, str]) -> tuple[float, ...]:
        """Return the accuracy after each epoch of a training to the end."""
        key = tuple(sorted(point.items()))
        if key not in self._known:
            self._known[key] = self.trained(point)
        return self._known[key]

    def trained(self, point: Mapping[str, str]) -> tuple[float, ...]:
        """Train anew, and return the same."""
        with np.errstate(all="ignore"):  # one that diverges is as accurate as it is
            return tuple(one.accuracy for one in epochs(self._examples, point, self._num_epochs))


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One tuning job beside all its configurations trained to the end."""

    num_configurations: int
    num_trials: int
    num_epochs: int
    share: float  # of the epochs of all
    best: float
    best_of_all: float
    problems: tuple[str, ...] = ()

    @property
    def loss(self) -> float:
        """By how much its best is worse than the best of all, relative."""
        return 1 - self.best / self.best_of_all


def compared(tuned: Tuned, curves: Curves) -> Compared:
    """Train all configurations of a tuning job to the end, and check that its observations are the same trainings."""
    wholes = [curves.whole(one.first.parameters) for one in tuned.configurations]
    problems = [
        f"trial {one.first.number}: its values are not the first of its training"
        for one, whole in zip(tuned.configurations, wholes, strict=True)
        if one.curve({}) != whole[: len(one.curve({}))]
    ]
    best = max(range(len(wholes)), key=lambda place: wholes[place][-1])
    point = tuned.configurations[best].first.parameters
    if curves.trained(point) != wholes[best]:
        problems.append(f"{dict(point)}: trained anew it has another curve")
    return Compared(
        num_configurations=len(wholes),
        num_trials=tuned.num_trials,
        num_epochs=tuned.num_epochs,
        share=tuned.num_epochs / sum(len(whole) for whole in wholes),
        best=tuned.best,
        best_of_all=wholes[best][-1],
        problems=tuple(problems),
    )


def lines(way: str, found: list[Compared]) -> Iterator[Line]:
    """Yield the lines of one way: the share of the epochs, and the best accuracy beside that of all."""
    case = f"{way},trials={found[0].num_trials},epochs={NUM_EPOCHS},parallel={PARALLEL},seeds={len(found)}"
    problems = [problem for one in found for problem in one.problems]
    share, loss = statistics.median(one.share for one in found), statistics.median(one.loss for one in found)
    yield Line(
        case=case,
        metric="share_of_epochs",
        unit="",
        better="lower",
        ours=round(share, 4),
        peers={"all configurations trained to the end": 1.0},
        goal=f"<= {GOAL_SHARE}",
        met=share <= GOAL_SHARE,
        samples=len(found),
        verified=not problems,
        details={
            "shares": [round(one.share, 4) for one in found],
            "epochs": [one.num_epochs for one in found],
            "configurations": [one.num_configurations for one in found],
            "problems": problems,
        },
    )
    yield Line(
        case=case,
        metric="best_accuracy",
        unit="",
        better="higher",
        ours=round(statistics.median(one.best for one in found), 4),
        peers={"best of all trained to the end": round(statistics.median(one.best_of_all for one in found), 4)},
        goal=f"within {GOAL_LOSS:.0%} of the best of all",
        met=loss <= GOAL_LOSS,
        samples=len(found),
        verified=not problems,
        details={"worse_by": [round(one.loss, 4) for one in found]},
    )


def request(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request of the tuning job.

    Args:
        members: of its training job definition.
    """
    return {
        "HyperParameterTuningJobConfig": {
            "Strategy": "Hyperband",
            "StrategyConfig": {"HyperbandStrategyConfig": {"MinResource": 1, "MaxResource": NUM_EPOCHS}},
            "ResourceLimits": {"MaxNumberOfTrainingJobs": NUM_TRIALS, "MaxParallelTrainingJobs": PARALLEL},
            "HyperParameterTuningJobObjective": {"Type": "Maximize", "MetricName": "accuracy"},
            "ParameterRanges": {
                "ContinuousParameterRanges": [
                    {"Name": "lr", "MinValue": "0.00001", "MaxValue": "1", "ScalingType": "Logarithmic"},
                    {"Name": "decay", "MinValue": "0.000001", "MaxValue": "1", "ScalingType": "Logarithmic"},
                ],
                "IntegerParameterRanges": [
                    {"Name": "hidden", "MinValue": "2", "MaxValue": "64", "ScalingType": "Logarithmic"},
                    {"Name": "batch", "MinValue": "16", "MaxValue": "256", "ScalingType": "Logarithmic"},
                ],
                "CategoricalParameterRanges": [{"Name": "activation", "Values": ["relu", "tanh"]}],
            },
        },
        "TrainingJobDefinition": {"RoleArn": "role", **members},
    }
