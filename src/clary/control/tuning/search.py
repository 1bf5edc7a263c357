"""Proposes the hyperparameters of the next trial, and decides which trials Hyperband ends. Deterministic.

Where: the tuning keeper calls it in a thread. Each result is computed anew from the trials so far: the same trials,
seed and number give the same result, so that a restarted service proposes the same trials. Source: Optuna's samplers
and pruners (docs/adr/0090): TPE with a constant liar for trials that still run, Hyperband.
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

STARTUP_TRIALS = 10  # random trials before TPE uses its model
AGAIN = 20  # most samples per proposal; in a finite space, a sample that already has a trial is rejected
HYPERBAND_FACTOR = 3


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A trial as the search sees it."""

    parameters: Mapping[str, str]
    value: float | None  # None: the trial runs, or has failed
    is_over: bool
    curve: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Question:
    """All facts that a proposal depends on."""

    strategy: str
    space: Space
    is_maximized: bool
    observations: Sequence[Observation]  # trials of parent tuning jobs, then trials of this definition by number
    seed: int
    number: int  # number of the proposed trial


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
    return _point_left(question.space, taken) or found  # `found` only if every point has a trial


@dataclass(frozen=True, kw_only=True)
class Rungs:
    """Numbers of values at which Hyperband compares trials: `least` and its multiples by powers of three."""

    least: int
    most: int | None  # maximum number of values of a trial; None: the largest number that any ended trial has
    can_go_on: bool  # whether an ended trial may be continued


def is_pruned(question: Question, index: int, rungs: Rungs) -> bool:
    """Whether Hyperband ends a running trial at the last rung that it has reached.

    A trial with the largest possible number of values is about to end by itself, and is not stopped. If trials can be
    continued, the first two trials at each rung of a bracket end without a comparison; `next_to_go_on` may continue
    them.

    Args:
        question: its observations include all trials of the definition.
        index: index of the trial among the observations.
        rungs: at which trials are compared.
    """
    steps = _steps(question, rungs)
    if len(question.observations[index].curve) >= steps.greatest or not steps.passed(question, index):
        return False
    _, verdict = _judged(question, index, steps)
    return verdict


def next_to_go_on(question: Question, paused: Sequence[int], rungs: Rungs) -> int | None:
    """Return the index of the ended trial that Hyperband continues, or None.

    A third, rounded down, of a bracket's trials that have reached a rung may pass it; trials that still run count as
    passed. If another trial may pass, the best ended trial of the rung is continued, unless Hyperband would end it now.
    Higher rungs are tried first.

    Args:
        question: its observations include all trials of the definition.
        paused: indices of the trials that Hyperband has ended.
        rungs: at which trials are compared.
    """
    steps = _steps(question, rungs)
    places = [
        index
        for index in paused
        if steps.passed(question, index) and len(question.observations[index].curve) < steps.greatest
    ]
    if not places:
        return None
    brackets, _ = _judged(question, places[0], steps)
    sign = -1.0 if question.is_maximized else 1.0

    def rank(index: int) -> tuple[int, float, int]:
        rung = steps.passed(question, index)[-1]
        return -rung, sign * question.observations[index].curve[rung - 1], index

    seen: set[tuple[int, int]] = set()  # rungs and brackets whose best trial was checked
    for index in sorted(places, key=rank):
        rung = steps.passed(question, index)[-1]
        if (rung, brackets[index]) in seen:
            continue
        seen.add((rung, brackets[index]))
        if _has_room(question, brackets, brackets[index], rung, steps) and not _judged(question, index, steps)[1]:
            return index
    return None


def _has_room(question: Question, brackets: Sequence[int], bracket: int, rung: int, steps: _Steps) -> bool:
    """Whether a rung lets another trial pass: under a third of its trials in the bracket run or have passed it."""
    rivals = [
        one
        for one, own in zip(question.observations, brackets, strict=True)
        if own == bracket and len(one.curve) >= rung
    ]
    further = min(rung * HYPERBAND_FACTOR, steps.greatest)
    num_past = sum(not one.is_over or len(one.curve) >= further for one in rivals)
    return num_past < len(rivals) // HYPERBAND_FACTOR


@dataclass(frozen=True)
class _Steps:
    least: int
    greatest: int
    num_waiting: int  # number of the trials that reach a rung first and end there without a comparison

    def passed(self, question: Question, index: int) -> list[int]:
        """Return the rungs that a trial has reached, as numbers of values, without the highest rung."""
        found = []
        step = self.least
        while step <= len(question.observations[index].curve) and step < self.greatest:
            found.append(step)
            step *= HYPERBAND_FACTOR
        return found


def _steps(question: Question, rungs: Rungs) -> _Steps:
    greatest = rungs.most or max([len(one.curve) for one in question.observations if one.is_over], default=0)
    return _Steps(rungs.least, greatest, HYPERBAND_FACTOR - 1 if rungs.can_go_on else 0)


def _judged(question: Question, index: int, steps: _Steps) -> tuple[list[int], bool]:
    """Return the brackets of all trials, and whether the pruner ends trial `index` at the last rung that it reached."""
    optuna = optuna_module()
    pruner = optuna.pruners.HyperbandPruner(
        min_resource=steps.least,
        max_resource=steps.greatest,
        reduction_factor=HYPERBAND_FACTOR,
        bootstrap_count=steps.num_waiting,
    )
    study = optuna.create_study(study_name="tuning", direction=_direction(question), pruner=pruner)
    for other in question.observations:  # as running trials, in which the pruner records the reached rungs
        curve = dict(enumerate(other.curve, start=1))
        study.add_trial(optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING, intermediate_values=curve))
    verdict = False
    for place in [*(place for place in range(len(question.observations)) if place != index), index]:
        for step in steps.passed(question, place):
            verdict = pruner.prune(study, _until(optuna, study.get_trials(deepcopy=False)[place], step))
    return [pruner._get_bracket_id(study, one) for one in study.get_trials(deepcopy=False)], verdict


def _sampled(question: Question, attempt: int) -> dict[str, str]:
    optuna = optuna_module()
    digest = hashlib.sha256(f"{question.seed} {question.number} {attempt}".encode()).digest()
    seed = int.from_bytes(digest[:4], "big")
    by_chance = optuna.samplers.RandomSampler(seed=seed)
    if question.strategy == "Random":
        asked = study_of(question, sampler=by_chance).ask(_distributions(question.space))
    else:
        # Set before each proposal, not at import: other code may reset the warning filters.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"optuna\.")  # the logarithm of 0
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        model = optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True, constant_liar=True
        )
        try:
            asked = study_of(question, sampler=model).ask(_distributions(question.space))
        except ValueError:  # the model fails on extreme floats; that must not stop the tuning job
            asked = study_of(question, sampler=by_chance).ask(_distributions(question.space))
    return {one.name: one.text(_outer(one, asked.params[one.name])) for one in question.space}


def study_of(question: Question, *, sampler: Any) -> Any:
    """Return a study in memory with the observations whose points lie in the space, in their order."""
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


def _until(optuna: ModuleType, frozen: Any, step: int) -> Any:
    """Return a copy of a trial with only its first `step` values, and with the rungs recorded so far."""
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
    """Return 1 minus the value for a reverse logarithmic range, else the value; the function is its own inverse."""
    return 1.0 - value if one.scaling is Scaling.REVERSE_LOGARITHMIC else value


def _outer(one: Range, value: Any) -> Any:
    """Convert a value of the search to the range, clamped to its bounds, which rounded logarithms may exceed."""
    if isinstance(one, Categorical):
        return value
    outer = _inner(one, value) if isinstance(one, Continuous) else value
    return min(one.greatest, max(one.least, outer))


def _inner_of(space: Space, parameters: Mapping[str, str]) -> dict[str, Any] | None:
    """Convert a point to the search's values; None for a point outside the space, such as some points of parents."""
    found: dict[str, Any] = {}
    for one in space:
        value = one.value(parameters.get(one.name, ""))
        if value is None:
            return None
        found[one.name] = _inner(one, float(value)) if isinstance(one, Continuous) else value
    return found


def _point_left(space: Space, taken: Collection[tuple[Any, ...]]) -> dict[str, str] | None:
    """Return the first point of a finite space without a trial, varying the last range first; else None."""
    total = num_values(space)
    assert total is not None, "only finite spaces"
    for index in range(min(total, len(taken) + 1)):  # one of these points has no trial, unless all have
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
    """Return the values of a point for comparison: parent jobs may have written equal values as different texts."""
    return tuple(one.value(parameters.get(one.name, "")) for one in space)


@cache
def optuna_module() -> ModuleType:
    """Return Optuna, which is imported at the first call."""
    import optuna  # a local import: it takes 0.2 s and 19 MB, and only tuning jobs need it

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
