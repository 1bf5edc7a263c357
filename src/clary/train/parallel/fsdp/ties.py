"""Tied weights: parameters that several modules of a model share.

Where: `transform`, `DelayedParamIniter` and the patches of FSDP (`additions`) make ties again where they were broken.

[Note: broken ties] `init_empty_weights` of accelerate registers every parameter as a new object on the meta device, and
`to_empty` gives each owner memory of its own: both break ties without an error. Then the owners train apart, or ranks
whose ties differ send each other different lists of parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

Place: TypeAlias = tuple[nn.Module, str]  # a module and the name of its own parameter


def tie_weights(model: nn.Module) -> None:
    """Call `tie_weights` of a model, or of the outermost modules below it that have this method.

    Units of FSDP below the model are left as they are.
    """
    if callable(getattr(model, "tie_weights", None)):
        model.tie_weights()
        return
    for child in model.children():
        if not isinstance(child, FullyShardedDataParallel):
            tie_weights(child)


def tied_places(model: nn.Module) -> list[list[Place]]:
    """Return the places of each parameter that has several."""
    by_id: dict[int, list[Place]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                by_id.setdefault(id(parameter), []).append((module, name))
    return [places for places in by_id.values() if len(places) > 1]


def ties_of(model: nn.Module) -> list[list[str]]:
    """Return the names of each parameter that has several."""
    by_id: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        by_id.setdefault(id(parameter), []).append(name)
    return [names for names in by_id.values() if len(names) > 1]


def put(parameter: nn.Parameter, places: Sequence[Place]) -> None:
    """Make a parameter that of several modules, in place of their own."""
    for module, name in places:
        module._parameters[name] = parameter


def adopt_ties(model: nn.Module, ties: list[list[str]]) -> None:
    """Tie a model's parameters as another model's are tied, in place; other ties of the model are broken.

    Args:
        ties: the other model's `ties_of`; names that this model lacks are ignored.
    """
    first_of = {name: names[0] for names in ties for name in names}
    chosen: dict[str, nn.Parameter] = {}
    taken: set[int] = set()
    for name, _ in list(model.named_parameters(remove_duplicate=False)):
        path, _, own_name = name.rpartition(".")
        module = model.get_submodule(path)
        own = module._parameters[own_name]
        if own is None:
            continue
        first = first_of.get(name, name)
        if first not in chosen:
            if id(own) in taken:  # tied here, and not in the other model
                own = nn.Parameter(own.detach().clone(), own.requires_grad)
            chosen[first] = own
            taken.add(id(own))
        module._parameters[own_name] = chosen[first]


@contextmanager
def keeping_ties(model: nn.Module) -> Iterator[None]:
    """Tie again, at the end of a block, parameters on the meta device that the block replaced one by one."""
    ties = [places for places in tied_places(model) if _is_meta(places[0])]
    yield
    for places in ties:
        values = [module._parameters[name] for module, name in places if not _is_meta((module, name))]
        if values and values[0] is not None:
            put(values[0], places)


def _is_meta(place: Place) -> bool:
    module, name = place
    parameter = module._parameters.get(name)
    return parameter is None or parameter.is_meta
