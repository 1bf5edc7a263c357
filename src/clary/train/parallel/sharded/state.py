"""Saving and loading of sharded state: local states, for one rank and one degree, and full states, for any degree.

[Note: local states] A local state holds this rank's shards without conversion. It loads only with the same layout: the
same parameters in the same flat buffers, the same degree, the same segment. A full state has the names, shapes and
order of the module or the optimizer without shards.

[Note: uncuttable] An optimizer of 8 bits keeps a scale per block of its slice. Such tensors have neither the shape of
the slice nor a value that all ranks share, and mean nothing for the whole parameter: a full state refuses them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from clary.train.parallel.mistakes.parts import state_of_parts
from clary.train.parallel.sharded.flat import Flat
from clary.train.parallel.sharded.model import ShardedModel
from clary.train.parallel.sharded.optimizer import ShardedOptimizer

FORMAT = 1
_NEVER_CUT = ("step",)  # scalar states, which shapes cannot distinguish from states of scalar parameters


def local_model_state(model: ShardedModel) -> dict[str, Any]:
    """Return this rank's shards of the parameters, and its buffers. Tensors share the model's memory."""
    return {
        **_header(model),
        "shards": [flat.master_S.detach() for flat in model.flats],
        "buffers": dict(model.module.named_buffers()),
    }


def load_local_model_state(model: ShardedModel, state: Mapping[str, Any]) -> None:
    """Load the shards of a `local_model_state`.

    Raises: ValueError if they were cut differently; the target is unchanged then.
    """
    _check_header(model, state, "model")
    for flat, shard in zip(model.flats, state["shards"], strict=True):
        flat.master_S.data.copy_(shard)
    buffers = dict(model.module.named_buffers())
    for name, value in state["buffers"].items():
        buffers[name].data.copy_(value)
    model.refresh()


def full_model_state(model: ShardedModel, *, to_rank0: bool = False) -> dict[str, Any]:
    """Return the whole state_dict in host memory, in the dtypes of the master parameters. All replicas call it.

    Args:
        to_rank0: whether the first replica alone gets the state; the others get {}.
    """
    keeps = not to_rank0 or model.groups.replicas.rank() == 0
    by_name: dict[str, torch.Tensor] = {}
    for flat in model.flats:
        whole = flat.gathered(flat.master_S.detach())
        if keeps:
            by_name |= {name: part.to("cpu", copy=True) for name, part in flat.parts(whole).items()}
    if not keeps:
        return {}
    names = {
        id(one): name for flat in model.flats for name, one in zip(flat.layout.names, flat.parameters, strict=True)
    }
    state = state_of_parts(model.module, keep_vars=True)  # for names, their order, and values other than parameters
    for key, value in state.items():
        if id(value) in names:
            state[key] = by_name[names[id(value)]]
        elif isinstance(value, torch.Tensor):
            state[key] = value.detach().to("cpu", copy=True)
    return dict(state)


def load_full_model_state(model: ShardedModel, state: Mapping[str, Any], *, strict: bool = True) -> None:
    """Load a full state, saved without shards or with any degree; every rank passes the whole state.

    Args:
        state: whole tensors by the names of the module without shards.
        strict: whether names must be the same; if False, values that the state lacks are unchanged.

    Raises: RuntimeError naming missing or unexpected keys, if strict, and shapes that differ; the model is unchanged
        then.
    """
    own = state_of_parts(model.module, keep_vars=True)
    missing, unexpected = sorted(set(own) - set(state)), sorted(set(state) - set(own))
    wrong = [
        f"{key} is {tuple(state[key].shape)}, expected {tuple(value.shape)}"
        for key, value in own.items()
        if key in state and isinstance(value, torch.Tensor) and state[key].shape != value.shape
    ]
    if wrong or (strict and (missing or unexpected)):
        raise RuntimeError(f"state_dict does not fit: missing {missing}, unexpected {unexpected}, shapes {wrong}")
    places = {id(one): (flat, place) for flat in model.flats for place, one in enumerate(flat.parameters)}
    for key, value in own.items():
        if key not in state:
            continue
        if id(value) in places:
            flat, place = places[id(value)]
            flat.write(place, state[key])
        elif isinstance(value, torch.Tensor):
            value.data.copy_(state[key])
    model.refresh()


def local_optimizer_state(optimizer: ShardedOptimizer) -> dict[str, Any]:
    """Return this rank's shards of the optimizer's state."""
    return {**_header(optimizer.model), "optimizer": optimizer.optimizer.state_dict()}


def load_local_optimizer_state(optimizer: ShardedOptimizer, state: Mapping[str, Any]) -> None:
    """Load a state of `local_optimizer_state`.

    Raises: ValueError if it was cut differently; the target is unchanged then.
    """
    _check_header(optimizer.model, state, "optimizer")
    optimizer.optimizer.load_state_dict(state["optimizer"])


def full_optimizer_state(optimizer: ShardedOptimizer, *, to_rank0: bool = False) -> dict[str, Any]:
    """Return the state_dict that the optimizer would have without shards, in host memory. All replicas call it.

    Args:
        to_rank0: whether the first replica alone gets the state; the others get {}.

    Raises: ValueError on all ranks that share a parameter, if a tensor of its state cannot be put together. See [Note:
        uncuttable].
    """
    model = optimizer.model
    keeps = not to_rank0 or model.groups.replicas.rank() == 0
    inner = optimizer.optimizer.state_dict()
    numbers = {parameter: number for number, parameter in enumerate(_in_order(optimizer))}
    state: dict[int, dict[str, Any]] = {}
    for flat in model.flats:
        known = _known_states(flat, optimizer)
        for place, parameter in enumerate(flat.parameters):
            if known[place] and keeps and parameter in numbers:
                state[numbers[parameter]] = {
                    key: copy.deepcopy(value) for key, value in known[place].items() if not isinstance(value, _Cut)
                }
        for key, dtype in _cut_keys(flat, known):
            own = torch.zeros(flat.layout.segment_numel, dtype=dtype, device=flat.master_S.device)
            for slice_, piece in zip(flat.slices, flat.pieces, strict=True):
                value = optimizer.state.get(slice_, {}).get(key)
                if value is not None and piece.length:
                    own[piece.at : piece.at + piece.length].copy_(value)
            parts = list(flat.parts(flat.gathered(own)).values())
            for place, parameter in enumerate(flat.parameters):
                if keeps and isinstance(known[place].get(key), _Cut) and parameter in numbers:
                    state[numbers[parameter]][key] = parts[place].to("cpu", copy=True)
    return {"state": dict(sorted(state.items())), "param_groups": inner["param_groups"]} if keeps else {}


def load_full_optimizer_state(optimizer: ShardedOptimizer, state: Mapping[str, Any]) -> None:
    """Load a full state, saved without shards or with any degree; every rank passes the whole state.

    Raises: ValueError if groups or shapes differ; further errors come from the optimizer.
    """
    model = optimizer.model
    places = {one: (flat, place) for flat in model.flats for place, one in enumerate(flat.parameters)}
    own: dict[int, dict[str, Any]] = {}
    for number, parameter in enumerate(_in_order(optimizer)):
        given = state["state"].get(number)
        flat, place = places[parameter]
        piece = flat.pieces[place]
        if given is None or not piece.length:
            continue
        own[number] = {}
        for key, value in given.items():
            if key in _NEVER_CUT or not isinstance(value, torch.Tensor) or value.dim() == 0 < parameter.dim():
                own[number][key] = value
            elif value.shape == parameter.shape:
                own[number][key] = value.reshape(-1)[piece.start : piece.start + piece.length].clone()
            else:
                raise ValueError(
                    f"optimizer state {key} of parameter {number} has shape {tuple(value.shape)}; expected "
                    f"{tuple(parameter.shape)}"
                )
    optimizer.optimizer.load_state_dict({"state": own, "param_groups": state["param_groups"]})


class _Cut:
    """Placeholder of a sharded state, with its dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype


class _Uncuttable:
    """Placeholder of a tensor that belongs to one rank's slice alone, with its shape. See [Note: uncuttable]."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


def _header(model: ShardedModel) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "degree": model.groups.degree,
        "segment": model.groups.segment,
        "flats": [(flat.layout.names, flat.layout.shapes, flat.layout.degree) for flat in model.flats],
    }


def _check_header(model: ShardedModel, state: Mapping[str, Any], what: str) -> None:
    for key, own in _header(model).items():
        if state.get(key) != own:
            found = state.get(key) if key != "flats" else "other parameters, or parameters cut otherwise"
            expected = own if key != "flats" else "those of this model"
            raise ValueError(
                f"local {what} state has {key} {found}; expected {expected}: a local state loads only where everything "
                "is cut as it was; save a full one to change degree, threshold or hosts"
            )


def _in_order(optimizer: ShardedOptimizer) -> list[Any]:
    return [parameter for group in optimizer.parameters for parameter in group]


def _known_states(flat: Flat, optimizer: ShardedOptimizer) -> list[dict[str, Any]]:
    """Return the states of each parameter, from the first rank that has any: scalars unchanged, shards as `_Cut`.

    Raises: ValueError on all ranks of the buffer, if one has a tensor that is neither. See [Note: uncuttable].
    """
    is_whole = flat.groups is None
    own = [
        {key: _placeholder(key, value, slice_, is_whole) for key, value in optimizer.state.get(slice_, {}).items()}
        for slice_ in flat.slices
    ]
    if flat.groups is None:
        return own
    everyone: list[list[dict[str, Any]]] = [[] for _ in range(flat.groups.degree)]
    dist.all_gather_object(everyone, own, group=flat.groups.sharding)
    for states in everyone:
        for name, by_key in zip(flat.layout.names, states, strict=True):
            for key, value in by_key.items():
                if isinstance(value, _Uncuttable):
                    raise ValueError(
                        f"optimizer state {key} of {name} has shape {value.shape} on a rank; expected the shape of "
                        "that rank's slice, or one value. A full state cannot hold it: save a local state, which "
                        "loads at the same degree, or use an optimizer whose state has its parameters' shape"
                    )
    return [next((one[place] for one in everyone if one[place]), {}) for place in range(len(flat.slices))]


def _placeholder(key: str, value: Any, slice_: torch.Tensor, is_whole: bool) -> Any:
    """Return a scalar unchanged, and a placeholder for another tensor.

    Args:
        slice_: this rank's slice of the parameter to which the state belongs.
        is_whole: whether the slice is the whole parameter, so that every tensor belongs to it.
    """
    if isinstance(value, torch.Tensor) and value.shape == slice_.shape:
        return _Cut(value.dtype)
    if is_whole or not isinstance(value, torch.Tensor) or value.dim() == 0 or key in _NEVER_CUT:
        return value
    return _Uncuttable(tuple(value.shape))


def _cut_keys(flat: Flat, known: list[dict[str, Any]]) -> list[tuple[str, torch.dtype]]:
    """Return the keys of sharded states, in the same order on all ranks."""
    return sorted(
        {(key, value.dtype) for one in known for key, value in one.items() if isinstance(value, _Cut)}, key=str
    )
