"""Replacement of a model's parameters by slices of each rank's own values, or of rank 0's values.

[Note: equal parts] Ranks of a tensor group must hold equal values of parameters that are not cut, or the ranks diverge.
Slices may be drawn independently on every rank: together they are a random draw too. So only parameters that stay whole
are sent, unless rank 0 sends all its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from clary.train.parallel.fsdp.cuts import Cut, mark
from clary.train.parallel.tensor.collectives import TensorGroup, first_values, gather_whole, reachable


@dataclass(frozen=True)
class Place:
    """A parameter to cut: its owner, its name and its cut."""

    module: nn.Module
    name: str
    cut: Cut


def cut_weights(
    model: nn.Module, places: Sequence[Place], group: TensorGroup, *, from_rank0: bool, is_first_group: bool
) -> None:
    """Replace parameters by this rank's slices and mark them, one after the other; tied parameters stay tied.

    Slices of parameters on the meta device stay on the meta device.

    Args: as `cutting.cut_layers`, and
        places: the parameters to cut, with one entry for each owner of a tied parameter.

    Raises: ValueError if only some ranks of a group have parameters on the meta device, rank 0 has no values to send,
        or a parameter is tied to a parameter that stays whole.
    """
    by_id: dict[int, list[Place]] = {}
    for place in places:
        by_id.setdefault(id(place.module._parameters[place.name]), []).append(place)
    owners = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None
    ]
    _check_ties(owners, by_id)
    is_sent = from_rank0 and is_first_group
    _check_values(any(one.is_meta for _, _, one in owners), group, from_rank0=from_rank0, is_sent=is_sent)
    done: set[int] = set()
    wholes: dict[int, nn.Parameter] = {}
    for module, name, parameter in owners:
        cuts = by_id.get(id(parameter), [])
        if cuts:
            if id(parameter) not in done:
                done.add(id(parameter))
                _cut(parameter, cuts, group, is_sent=is_sent)
        elif is_sent or not (from_rank0 or parameter.is_meta):
            if id(parameter) not in wholes:
                wholes[id(parameter)] = _shared(parameter, group)
            module._parameters[name] = wholes[id(parameter)]
    if is_sent:
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = first_values(buffer, group)


def _check_ties(owners: list[tuple[nn.Module, str, nn.Parameter]], by_id: dict[int, list[Place]]) -> None:
    for module, name, parameter in owners:
        cuts = by_id.get(id(parameter))
        if cuts is not None and all(one.module is not module or one.name != name for one in cuts):
            raise ValueError(
                f"transform: parameter {name} of a {type(module).__name__} would stay whole, but it is shared "
                "with a parameter that is cut: give each module its own parameter, or set "
                "tensor_parallel_degree to 1"
            )


def _check_values(is_meta: bool, group: TensorGroup, *, from_rank0: bool, is_sent: bool) -> None:
    """Check, with equal results on all ranks of a group, that the chosen source of values can be used."""
    here = torch.tensor([int(is_meta)], device=reachable(group, torch.device("cpu")))
    are_meta = [bool(one) for one in gather_whole(here, group).tolist()]
    if is_sent and are_meta[0]:
        raise ValueError(
            "transform: load_state_dict_from_rank0 is set, and rank 0 has parameters on the meta device: load the "
            "model's weights there first"
        )
    if not from_rank0 and len(set(are_meta)) > 1:
        raise ValueError(
            f"transform: ranks {[rank for rank, one in enumerate(are_meta) if one]} of a tensor group have parameters "
            "on the meta device and others have not: make the model alike on all of them, or set "
            "load_state_dict_from_rank0"
        )


def _cut(whole: nn.Parameter, places: list[Place], group: TensorGroup, *, is_sent: bool) -> None:
    values = first_values(whole, group) if is_sent else whole
    own = _like(whole, places[0].cut.of(values, group.rank, group.size))
    for place in places:
        place.module._parameters[place.name] = own
        mark(place.module, place.name, place.cut)
    if not whole.is_meta:  # frees the memory here, because the list of owners keeps the object alive
        whole.data = whole.data.new_empty(0)


def _shared(parameter: nn.Parameter, group: TensorGroup) -> nn.Parameter:
    values = first_values(parameter, group)
    if parameter.is_meta:
        return _like(parameter, values)
    with torch.no_grad():
        parameter.copy_(values)
    return parameter


def _like(old: nn.Parameter, values: torch.Tensor) -> nn.Parameter:
    new = nn.Parameter(values, old.requires_grad)
    new.__dict__.update(old.__dict__)
    return new
