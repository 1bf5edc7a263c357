"""Share of each tuned hyperparameter in whether a trial is among the best. Pure.

Where: the page of a tuning job, on a thread of its own: the first call imports Optuna.
Source: PED-ANOVA (arXiv 2304.10255) as Optuna has it: where in a range do the best trials lie, compared with all of
them. fANOVA would need scikit-learn.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clary.control.tuning.search import Observation, Question, optuna_module, study_of
from clary.control.tuning.tuning_job import Trial
from clary.control.tuning.tuning_request import Definition

LEAST_TRIALS = 8  # with an objective: of fewer any parameter looks important
LEAST_PARAMETERS = 2  # that vary: the share of a single one is always the whole
BEST_PART = 0.1  # of the trials count as the best ones
LEAST_BEST = 5  # of them, below which Optuna's documentation calls the answer unsteady
MOST_BEST_PART = 0.5


@dataclass(frozen=True, kw_only=True)
class Importance:
    """The shares, or the reason for their absence."""

    shares: Mapping[str, float] | None  # hyperparameter -> share of 1, the greatest first
    why: str = ""


def importance_of(definitions: Sequence[Definition], trials: Sequence[Trial]) -> Importance:
    """Return the share of each hyperparameter that varies.

    Args:
        definitions: of the tuning job.
        trials: all of it, those that run as well.
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
        return Importance(shares=None, why="The best training jobs lie where all others lie.")
    ordered = sorted(raw.items(), key=lambda item: (-item[1], item[0]))
    return Importance(shares={name: value / total for name, value in ordered})


def _weighed(question: Question) -> dict[str, float]:
    part = max(BEST_PART, min(MOST_BEST_PART, LEAST_BEST / len(question.observations)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the evaluator is experimental, and may change
        evaluator = optuna_module().importance.PedAnovaImportanceEvaluator(target_quantile=part)
        found = evaluator.evaluate(study_of(question, sampler=optuna_module().samplers.RandomSampler(seed=0)))
    return {name: float(value) for name, value in found.items()}
