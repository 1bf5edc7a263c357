"""Proposes the hyperparameters of the next trial, and says which trials of Hyperband end. Deterministic.

Where: the keeper asks on a thread of its own. Everything is worked out anew from the trials so far: the same trials,
seed and number give the same answer, so that a service that was killed goes on as if it had not been.
Source: Optuna's samplers and pruners (docs/adr/0090): TPE with a constant liar for trials that still run, Hyperband.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from clary.control.tuning.parameter_space import Categorical, Continuous, Integer, Range, Scaling, Space, num_values

STARTUP_TRIALS = 10  # of TPE, before it models anything
AGAIN = 20  # attempts to find a point of a finite space that no trial has
HYPERBAND_FACTOR = 3


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A trial as the search sees it."""

    parameters: Mapping[str, str]
    value: float | None  # None: runs, or has failed
    is_over: bool
    curve: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Question:
    """Everything that a proposal depends on."""

    strategy: str
    space: Space
    is_maximized: bool
    observations: Sequence[Observation]  # of this definition, by number, and before them those of parents
    seed: int
    number: int  # of the proposal


def propose(question: Question) -> dict[str, str]:
    """Return the hyperparameters of the next trial as text. Raises: ValueError for a grid without points left."""
    taken = {_key(question.space, one.parameters) for one in question.observations}
    if question.strategy == "Grid":
        point = _point_left(question.space, taken)
        if point is None:
            raise ValueError("every point of the grid has its trial")
        return point
    is_finite = num_values(question.space) is not None
    found: dict[str, str] = {}
    for attempt in range(AGAIN):
        found = _sampled(question, attempt)
        if not is_finite or _key(question.space, found) not in taken:
            return found
    return _point_left(question.space, taken) or found  # all have been tried


def is_pruned(question: Question, index: int, resources: tuple[int, int | None]) -> bool:
    """Whether Hyperband ends a running trial at the last rung that it has come to.

    A trial that has told as many values as any may is about to end by itself.

    Args:
        question: with all trials of the definition.
        index: of the trial among the observations.
        resources: least and greatest number of values; None for the greatest of any trial so far.
    """
    optuna = optuna_module()
    one = question.observations[index]
    least, most = resources
    greatest = most or max([len(other.curve) for other in question.observations if other.is_over], default=0)
    if len(one.curve) >= greatest or not _rungs(one.curve, least=least, greatest=greatest):
        return False
    pruner = optuna.pruners.HyperbandPruner(
        min_resource=least, max_resource=greatest, reduction_factor=HYPERBAND_FACTOR
    )
    study = optuna.create_study(study_name="tuning", direction=_direction(question), pruner=pruner)
    for other in question.observations:  # as if all ran: the pruner writes into each which rungs it has come to
        curve = dict(enumerate(other.curve, start=1))
        study.add_trial(optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING, intermediate_values=curve))
    verdict = False
    for place in [*(place for place in range(len(question.observations)) if place != index), index]:
        for step in _rungs(question.observations[place].curve, least=least, greatest=greatest):
            verdict = pruner.prune(study, _until(optuna, study.get_trials(deepcopy=False)[place], step))
    return verdict


def _sampled(question: Question, attempt: int) -> dict[str, str]:
    optuna = optuna_module()
    digest = hashlib.sha256(f"{question.seed} {question.number} {attempt}".encode()).digest()
    seed = int.from_bytes(digest[:4], "big")
    by_chance = optuna.samplers.RandomSampler(seed=seed)
    if question.strategy == "Random":
        asked = study_of(question, sampler=by_chance).ask(_distributions(question.space))
    else:
        # Here, not once at the import: whoever sets filters anew would have each proposal warned about.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"optuna\.")  # the logarithm of no chance
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        model = optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True, constant_liar=True
        )
        try:
            asked = study_of(question, sampler=model).ask(_distributions(question.space))
        except ValueError:  # numbers at the ends of floats defeat the model, and the tuning job would stand still
            asked = study_of(question, sampler=by_chance).ask(_distributions(question.space))
    return {one.name: one.text(_outer(one, asked.params[one.name])) for one in question.space}


def study_of(question: Question, *, sampler: Any) -> Any:
    """Return a study in memory that holds all observations, in their order."""
    optuna = optuna_module()
    study = optuna.create_study(study_name="tuning", direction=_direction(question), sampler=sampler)
    distributions = _distributions(question.space)
    states = optuna.trial.TrialState
    for one in question.observations:
        inner = _inner_of(question.space, one.parameters)
        if inner is None:
            continue
        ended = states.FAIL if one.value is None else states.COMPLETE
        state = ended if one.is_over else states.RUNNING
        study.add_trial(
            optuna.trial.create_trial(
                state=state,
                value=one.value if state == states.COMPLETE else None,
                params=inner,
                distributions=distributions,
                intermediate_values=dict(enumerate(one.curve, start=1)),
            )
        )
    return study


def _direction(question: Question) -> str:
    return "maximize" if question.is_maximized else "minimize"


def _rungs(curve: Sequence[float], *, least: int, greatest: int) -> list[int]:
    """Return the numbers of values at which rungs lie that a trial has come to, but for the last one of all."""
    steps = []
    step = least
    while step <= len(curve) and step < greatest:
        steps.append(step)
        step *= HYPERBAND_FACTOR
    return steps


def _until(optuna: ModuleType, frozen: Any, step: int) -> Any:
    """Return a trial as it was after some value, with the rungs that it has come to."""
    shorter = {key: value for key, value in frozen.intermediate_values.items() if key <= step}
    copy = optuna.trial.create_trial(
        state=frozen.state, intermediate_values=shorter, system_attrs=dict(frozen.system_attrs)
    )
    copy.number, copy._trial_id = frozen.number, frozen._trial_id
    return copy


def _distributions(space: Space) -> dict[str, Any]:
    optuna = optuna_module()
    return {one.name: _distribution(optuna, one) for one in space}


def _distribution(optuna: ModuleType, one: Range) -> Any:
    distributions = optuna.distributions
    if isinstance(one, Categorical):
        return distributions.CategoricalDistribution(one.values)
    if isinstance(one, Continuous):
        least, greatest = _inner(one, one.least), _inner(one, one.greatest)
        is_logarithmic = one.scaling is not Scaling.LINEAR
        return distributions.FloatDistribution(min(least, greatest), max(least, greatest), log=is_logarithmic)
    return distributions.IntDistribution(one.least, one.greatest, log=one.scaling is Scaling.LOGARITHMIC)


def _inner(one: Continuous, value: float) -> float:
    """Return a value as the search sees it, and back: of a reverse logarithmic range the distance from 1."""
    return 1.0 - value if one.scaling is Scaling.REVERSE_LOGARITHMIC else value


def _outer(one: Range, value: Any) -> Any:
    """Return a value of the search as that of a range; its logarithms leave the bounds by a rounding."""
    if isinstance(one, Categorical):
        return value
    outer = _inner(one, value) if isinstance(one, Continuous) else value
    return min(one.greatest, max(one.least, outer))


def _inner_of(space: Space, parameters: Mapping[str, str]) -> dict[str, Any] | None:
    """Return a point as the search sees it; None if it is not of this space, as a parent's may not be."""
    found: dict[str, Any] = {}
    for one in space:
        value = one.value(parameters.get(one.name, ""))
        if value is None:
            return None
        found[one.name] = _inner(one, float(value)) if isinstance(one, Continuous) else value
    return found


def _point_left(space: Space, taken: Collection[tuple[Any, ...]]) -> dict[str, str] | None:
    """Return the first point of a finite space that no trial has, the last range being the fastest; else None."""
    total = num_values(space)
    assert total is not None, "only finite spaces"
    for index in range(min(total, len(taken) + 1)):  # at least one of so many is free
        point = _point(space, index)
        if _key(space, point) not in taken:
            return point
    return None


def _point(space: Space, index: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in reversed(space):
        if isinstance(one, Continuous):
            found[one.name] = one.text(one.least)  # a range of one point
        elif isinstance(one, Integer):
            index, place = divmod(index, one.greatest - one.least + 1)
            found[one.name] = one.text(one.least + place)
        else:
            index, place = divmod(index, len(one.values))
            found[one.name] = one.values[place]
    return {one.name: found[one.name] for one in space}


def _key(space: Space, parameters: Mapping[str, str]) -> tuple[Any, ...]:
    """Return the values of a point, which parents may have written in another way."""
    return tuple(one.value(parameters.get(one.name, "")) for one in space)


@cache
def optuna_module() -> ModuleType:
    """Return Optuna, which is imported at the first call."""
    import optuna  # here, not above: 0.2 s and 19 MB that no service without tuning jobs needs

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
