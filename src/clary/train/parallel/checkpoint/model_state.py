"""A model's state: this rank's part, or the whole state, as a model on a single rank has it.

Where: methods of `DistributedModel`, and `folders`.

A part holds the tensors of one rank: the modules of its stage, and its slice of each tensor that is cut over the tensor
group. A part records how its tensors are cut (SLICES), so that a program of any degrees can join all parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from clary.train.parallel.layout.mesh import Along
from clary.train.parallel.mistakes.parts import state_of_parts
from clary.train.parallel.runtime import Runtime
from clary.train.parallel.tensor import slices

IS_PARTIAL = "_smp_is_partial"  # key that scripts read
SLICES = "_clary_slices"  # tensor name -> dimension, index of the slice, number of slices
_MARKS = (IS_PARTIAL, SLICES)

State = dict[str, Any]


def local_state(module: torch.nn.Module, owners: Mapping[str, int], pipeline_rank: int) -> State:
    """Return this rank's part; its tensors share memory with the model.

    Args:
        module: the whole model; tensors of other ranks may have no memory here.
        owners: pipeline rank of every module, by its path; a module with several paths is listed by its first.
        pipeline_rank: this rank's pipeline rank.
    """
    owner_of = _owners_by_path(module, owners)
    found = {
        name: value
        for name, value in state_of_parts(module).items()
        if owner_of[_holder(name, owner_of)] == pipeline_rank
    }
    cuts = slices_of(module)
    return {**found, SLICES: {name: cuts[name] for name in found if name in cuts}, IS_PARTIAL: True}


def slices_of(module: torch.nn.Module) -> dict[str, tuple[int, int, int]]:
    """Return dimension, slice index and number of slices for each tensor of a model cut over a tensor group."""
    return {name: (one.dimension, one.rank, one.size) for name, one in slices.slices_of(module).items()}


def full_state(part: State, runtime: Runtime, *, to_first_only: bool = False) -> State:
    """Join one model's parts, which its ranks hold, into the whole state. All these ranks call it.

    Args:
        to_first_only: only the first of these ranks returns it; the others return {}.
    """
    held = {  # copies: gathered values must not change when training continues
        name: value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
        for name, value in part.items()
    }
    parts = runtime.groups.allgather(held, Along.MP)
    if to_first_only and runtime.groups.group_rank(Along.MP) != 0:
        return {}
    return merge_parts(parts)


def merge_parts(parts: Sequence[State]) -> State:
    """Merge the parts of all ranks into a whole state.

    Raises: ValueError naming a tensor with missing slices.
    """
    merged: State = {}
    pieces: dict[str, dict[int, Any]] = {}
    cuts: dict[str, tuple[int, int]] = {}
    for part in parts:
        held = part.get(SLICES, {})
        for name, value in part.items():
            if name in _MARKS:
                continue
            if name not in held:
                merged[name] = value
                continue
            dimension, place, number = held[name]
            cuts[name] = (dimension, number)
            pieces.setdefault(name, {})[place] = value
            merged.setdefault(name, None)  # keeps the order of keys
    for name, (dimension, number) in cuts.items():
        missing = [place for place in range(number) if place not in pieces[name]]
        if missing:
            raise ValueError(f"{name} is cut into {number} slices, of which {missing} are missing from the checkpoint")
        merged[name] = torch.cat([pieces[name][place] for place in range(number)], dim=dimension)
    return merged


def load_full(
    module: torch.nn.Module, owners: Mapping[str, int], pipeline_rank: int, state: State, strict: bool
) -> Any:
    """Load this rank's tensors and slices from a whole state; return torch's lists of missing and unexpected names.

    Args:
        owners: as `local_state` takes them.
        pipeline_rank: this rank's pipeline rank.
        state: all tensors in their whole shapes, on every rank; each rank loads its own part.
        strict: whether missing or unexpected names are an error.

    Raises: RuntimeError as torch's `load_state_dict`, if names (with `strict`) or shapes differ.
    """
    whole = without_marks(state)
    owner_of = _owners_by_path(module, owners)
    cuts = slices_of(module)
    expected = state_of_parts(module)
    missing, unexpected = check_names(expected, whole, strict=strict)
    own = {
        name: _slice(value, cuts.get(name))
        for name, value in whole.items()
        if name in expected and owner_of[_holder(name, owner_of)] == pipeline_rank
    }
    module.load_state_dict(own, strict=False)  # raises for wrong shapes
    return torch.nn.modules.module._IncompatibleKeys(missing, unexpected)


def check_names(expected: State, whole: State, *, strict: bool) -> tuple[list[str], list[str]]:
    """Return the names of the model that a whole state lacks, and the names of the state that the model lacks.

    Args:
        expected: the model's own state.
        whole: the state to load.
        strict: whether such names are an error.

    Raises: RuntimeError naming them, with `strict`.
    """
    missing = [name for name in expected if name not in whole]
    unexpected = [name for name in whole if name not in expected]
    if strict and (missing or unexpected):
        raise RuntimeError(f"state of a model: missing {missing}, unexpected {unexpected}; strict=False lets it pass")
    return missing, unexpected


def without_marks(state: State) -> State:
    """Return the tensors of a state, without the keys that describe a part."""
    return {name: value for name, value in state.items() if name not in _MARKS}


def load_part(module: torch.nn.Module, owners: Mapping[str, int], pipeline_rank: int, part: State, strict: bool) -> Any:
    """Load a part saved by a rank of the same coordinates; return torch's lists of missing and unexpected names.

    Args:
        owners: as `local_state` takes them.
        pipeline_rank: this rank's pipeline rank.
        part: result of `local_state`.
        strict: whether missing or unexpected names are an error.

    Raises: RuntimeError if names (with `strict`), cuts or shapes differ.
    """
    expected = local_state(module, owners, pipeline_rank)
    if part.get(SLICES, {}) != expected[SLICES]:
        raise RuntimeError("this part of a state is cut over tensor ranks in another way than the model")
    missing = [name for name in expected if name not in part and name not in _MARKS]
    unexpected = [name for name in part if name not in expected and name not in _MARKS]
    if strict and (missing or unexpected):
        raise RuntimeError(f"part of a state: missing {missing}, unexpected {unexpected}; strict=False lets it pass")
    module.load_state_dict({name: part[name] for name in expected if name in part and name not in _MARKS}, strict=False)
    return torch.nn.modules.module._IncompatibleKeys(missing, unexpected)


def cut_whole(state: State, cuts: Mapping[str, tuple[int, int, int]]) -> State:
    """Return a copy of a whole state, with every cut tensor replaced by this rank's slice."""
    return {name: _slice(value, cuts.get(name)) for name, value in state.items() if name not in _MARKS}


def _slice(value: Any, cut: tuple[int, int, int] | None) -> Any:
    if cut is None:
        return value
    dimension, place, number = cut
    if value.shape[dimension] % number:
        raise RuntimeError(f"a tensor of shape {tuple(value.shape)} cannot be cut into {number} along {dimension}")
    return value.chunk(number, dim=dimension)[place]


def _owners_by_path(module: torch.nn.Module, owners: Mapping[str, int]) -> dict[str, int]:
    """Return the owner of every path to a module; a module may have several."""
    by_module = {one: owners[name] for name, one in module.named_modules()}
    return {name: by_module[one] for name, one in module.named_modules(remove_duplicate=False)}


def _holder(name: str, paths: Mapping[str, int]) -> str:
    """Return the path of the module to which a state dict's key belongs."""
    path = name
    while path:
        path = path.rpartition(".")[0]
        if path in paths:
            return path
    return ""
