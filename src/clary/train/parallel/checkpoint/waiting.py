"""States that were loaded before modules have ranks, and wait for the first step of a pipeline.

Where: `StatefulModel` and `DistributedOptimizer` return them as whole states until the first step loads them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from clary.train.parallel.checkpoint.model_state import (
    IS_PARTIAL,
    SLICES,
    State,
    check_names,
    full_state,
    without_marks,
)
from clary.train.parallel.layout.mesh import Along
from clary.train.parallel.runtime import Runtime

_OF_SHARE = "optimizer"  # key of states whose owners of parameters are assigned with the ranks of modules
_BY_NUMBER = ("state", "masters")  # keys of an optimizer's state that hold values by number of the parameter


def whole_of_model(
    inner: torch.nn.Module,
    waiting: Sequence[tuple[State, bool, bool]],
    cuts: Mapping[str, tuple[int, int, int]],
    runtime: Runtime,
) -> State:
    """Return the whole state that a model will have once its modules have ranks. All ranks of the model call it.

    Args:
        inner: the wrapped model.
        waiting: the waiting states, in order, each with whether names must match and whether it was saved with the
            same partition, which does not matter here.
        cuts: the cuts of tensors over the tensor group, as `slices_of` returns them.

    Raises: RuntimeError as the load in the first step, if names or shapes do not match.
    """
    own: State = inner.state_dict()
    loaded: State = {}
    for state, strict, _ in waiting:
        whole = without_marks(full_state(state, runtime) if state.get(IS_PARTIAL, False) else state)
        check_names(own, whole, strict=strict)
        loaded.update((name, value) for name, value in whole.items() if name in own)
    rest = {name: value for name, value in own.items() if name not in loaded}
    if sliced := {name: cuts[name] for name in rest if name in cuts}:
        rest = full_state({**rest, SLICES: sliced}, runtime)
    return {name: _as_own(name, loaded[name], own[name], cuts) if name in loaded else rest[name] for name in own}


def _as_own(name: str, value: Any, own: Any, cuts: Mapping[str, tuple[int, int, int]]) -> Any:
    """Return a loaded value in the dtype of the model's own, as a load makes it."""
    if not isinstance(value, torch.Tensor) or not isinstance(own, torch.Tensor):
        return value
    shape = list(own.shape)
    if name in cuts:
        dimension, _, number = cuts[name]
        shape[dimension] *= number
    if list(value.shape) != shape:
        raise RuntimeError(f"state of a model: {name} has shape {list(value.shape)}; expected {shape}")
    return value.detach().to(own.dtype)


def whole_of_optimizer(state: State, groups: list[dict[str, Any]], runtime: Runtime) -> State:
    """Return a waiting state of an optimizer as a whole state. All ranks of the model call it.

    Args:
        state: the waiting state, of all parameters or of one rank's.
        groups: the current groups, as in a `state_dict`.

    Raises: RuntimeError if the state cannot be joined before the first step.
    """
    if _OF_SHARE in state or (state.get(IS_PARTIAL, False) and runtime.groups.size(Along.TP) > 1):
        raise RuntimeError(
            "state_dict: this optimizer's state was loaded as one rank's share, and modules have no ranks yet: call "
            "it after the first step, since the first step places it"
        )
    whole = {name: value for name, value in state.items() if name != IS_PARTIAL}
    if state.get(IS_PARTIAL, False):
        parts = runtime.groups.allgather({key: state[key] for key in _BY_NUMBER if key in state}, Along.PP)
        for key in parts[0]:
            joined = {number: one for part in parts for number, one in part[key].items()}
            whole[key] = dict(sorted(joined.items()))
    return {**whole, "param_groups": groups}


def load_options(state: State, groups: list[dict[str, Any]]) -> None:
    """Load the options of groups, such as learning rates, from a state whose values wait.

    Args:
        groups: the optimizer's groups, which are changed in place.

    Raises: ValueError if the state has another number of groups.
    """
    given = _groups_of(state)
    if given is None:
        return
    if len(given) != len(groups):
        raise ValueError(
            f"optimizer state has {len(given)} groups of parameters; expected {len(groups)}: add the groups that "
            "the saving program had before you load its state, and others after it"
        )
    for group, one in zip(groups, given, strict=True):
        group.update(_options_of(one))


def with_options(state: State, groups: list[dict[str, Any]]) -> State:
    """Return a waiting state with the options that the groups have now, which a script may have changed.

    Args:
        groups: the current groups, as in a `state_dict`; groups that the state lacks are taken as they are.
    """
    given = _groups_of(state)
    if given is None:
        return state
    now = [{**one, **_options_of(group)} for one, group in zip(given, groups, strict=False)]
    now += groups[len(given) :]
    if _OF_SHARE in state:
        return {**state, _OF_SHARE: {**state[_OF_SHARE], "param_groups": now}}
    return {**state, "param_groups": now}


def _groups_of(state: State) -> list[dict[str, Any]] | None:
    found: list[dict[str, Any]] | None = state.get(_OF_SHARE, state).get("param_groups")
    return found


def _options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: copy.deepcopy(value) for name, value in group.items() if name not in ("params", "param_names")}
