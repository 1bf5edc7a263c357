"""Importance of each tuned hyperparameter: how much it distinguishes the best trials from all trials. Pure.

Where: the page of a tuning job calls it on a separate thread, because the first call imports Optuna.
Source: PED-ANOVA (arXiv 2304.10255) in Optuna's implementation, which compares the distribution of the best trials over
a range with that of all trials. fANOVA would need scikit-learn.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clary.control.tuning.search import Observation, Question, optuna_module, study_of
from clary.control.tuning.tuning_job import Trial
from clary.control.tuning.tuning_request import Definition

LEAST_TRIALS = 8  # minimum number of trials with an objective; with fewer, any parameter looks important
LEAST_PARAMETERS = 2  # minimum number of varying parameters; the share of a single parameter is always 1
BEST_PART = 0.1  # share of the trials that counts as the best trials
LEAST_BEST = 5  # minimum number of best trials; with fewer, Optuna's documentation calls the result unstable
MOST_BEST_PART = 0.5


@dataclass(frozen=True, kw_only=True)
class Importance:
    """The shares, or the reason for their absence."""

    shares: Mapping[str, float] | None  # hyperparameter -> its share; all shares add up to 1, and the greatest is first
    why: str = ""


def importance_of(definitions: Sequence[Definition], trials: Sequence[Trial]) -> Importance:
    """Return the share of each hyperparameter that varies.

    Args:
        definitions: definitions of the tuning job.
        trials: all trials, including running trials.
    """
    if len(definitions) != 1:
        return Importance(shares=None, why="Each of its training job definitions has ranges of its own.")
    definition = definitions[0]
    known = [trial for trial in trials if trial.value is not None]
    if len(known) < LEAST_TRIALS:
        return Importance(
            shares=None, why=f"It needs {LEAST_TRIALS} training jobs with an objective; {len(known)} have one."
        )
    varied = tuple(one for one in definition.space if len({trial.parameters.get(one.name) for trial in known}) > 1)
    if len(varied) < LEAST_PARAMETERS:
        return Importance(shares=None, why=f"It needs {LEAST_PARAMETERS} hyperparameters that vary; {len(varied)} do.")
    if len({trial.value for trial in known}) == 1:
        return Importance(shares=None, why="All training jobs have the same objective.")
    question = Question(
        strategy="Random",
        space=varied,
        is_maximized=definition.objective.is_maximized,
        observations=[Observation(parameters=one.parameters, value=one.value, is_over=True) for one in known],
        seed=0,
        number=0,
    )
    raw = _weighed(question)
    total = sum(raw.values())
    if not total > 0:
        return Importance(shares=None, why="The best training jobs have values like all others.")
    ordered = sorted(raw.items(), key=lambda item: (-item[1], item[0]))
    return Importance(shares={name: value / total for name, value in ordered})


def _weighed(question: Question) -> dict[str, float]:
    part = max(BEST_PART, min(MOST_BEST_PART, LEAST_BEST / len(question.observations)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warning that the evaluator is experimental
        evaluator = optuna_module().importance.PedAnovaImportanceEvaluator(target_quantile=part)
        found = evaluator.evaluate(study_of(question, sampler=optuna_module().samplers.RandomSampler(seed=0)))
    return {name: float(value) for name, value in found.items()}
