"""States of experts that are modules, each of which lies whole on one rank under its number in the layer.

Where: `full_state` and `sharded_state` call these functions around FSDP's methods. Experts in fused parameters need no
such function, as they are slices (`cuts`) of the same name on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from clary.train.parallel.fsdp.cuts import clean_name
from clary.train.parallel.fsdp.experts.layer import ListedExperts, Spread
from clary.train.parallel.tensor.collectives import TensorGroup, gather_whole, reachable

Entries = dict[str, Any]


def add_experts_of_others(model: nn.Module, own: Entries) -> Entries:
    """Add the experts of all ranks of the group to the state that FSDP returned on this rank.

    Every rank of the group calls it; tensors are gathered one at a time. If a rank's state lacks the rank's experts,
    the states of all other ranks of the expert group must lack theirs too. With `rank0_only`, the states of all ranks
    but the first of FSDP's group lack their experts.

    Args:
        own: state by full parameter names without wrapper names; values are tensors, or dicts of tensors as in an
            optimizer's state.
    """
    state = dict(own)
    for prefix, spread in _listed(model):
        for at, number in enumerate(spread.own):
            for key in [key for key in own if key.startswith(f"{prefix}{number}.")]:
                suffix = key.removeprefix(f"{prefix}{number}.")
                for rank, value in enumerate(_of_all(own[key], spread.group)):
                    state[f"{prefix}{rank * len(spread.own) + at}.{suffix}"] = value
    return state


def drop_experts_of_others(model: nn.Module, whole: Mapping[str, Any]) -> Entries:
    """Remove the experts that lie on other ranks from a copy of a whole state."""
    state = dict(whole)
    for prefix, spread in _listed(model):
        for number in set(range(spread.num_experts)) - set(spread.own):
            for key in [key for key in state if key.startswith(f"{prefix}{number}.")]:
                del state[key]
    return state


def _listed(model: nn.Module) -> Iterator[tuple[str, Spread]]:
    """Yield the name prefix and the spread of each list of experts, in the order of the model's modules."""
    for name, module in model.named_modules():
        if isinstance(module, ListedExperts):
            prefix = clean_name(f"{name}.").removeprefix(".")
            yield prefix, module._clary_spread


def _of_all(value: Any, group: TensorGroup) -> list[Any]:
    """Gather all ranks' values for `value`, by rank; values other than tensors are assumed equal."""
    if isinstance(value, Mapping):
        parts = {key: _of_all(one, group) for key, one in value.items()}
        return [{key: part[rank] for key, part in parts.items()} for rank in range(group.size)]
    if not isinstance(value, torch.Tensor):
        return [value] * group.size
    sent = value.to(reachable(group, torch.device("cpu")))
    whole = gather_whole(sent.detach().unsqueeze(0), group)
    return [part.to(value.device) for part in whole]
