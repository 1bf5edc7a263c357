"""Tied weights: parameters that several modules of a model share.

Where: `transform`, `DelayedParamIniter` and the patches of FSDP (`additions`) make ties again where they were broken.

[Note: broken ties] `init_empty_weights` of accelerate registers every parameter as a new object on the meta device, and
`to_empty` gives each owner memory of its own: both break ties without an error. Then the owners train apart, or ranks
whose ties differ send each other different lists of parameters.

[Note: units] FSDP ties what lies in one unit. Of owners in different units, those outside the first unit are left out
with `use_orig_params=True`, so that their gradients are lost, and are trained apart without it. Weights that are not
trained suffer neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

Place: TypeAlias = tuple[nn.Module, str]  # a module and the name of its own parameter

_FLATTENED = "_fsdp_flattened"  # FSDP's attribute of parameters that a unit holds
_PREFIX = "_fsdp_wrapped_module."


@dataclass(frozen=True)
class _Names:
    """Names in the model that FSDP was given, while it wraps the units below."""

    modules: dict[nn.Module, str]
    owners: dict[str, list[str]]  # a parameter's name to the names of all its owners


_names: ContextVar[_Names | None] = ContextVar("_names", default=None)


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


def trained_ties(model: nn.Module) -> list[list[Place]]:
    """Return the places of each parameter that has several and is trained."""
    return [places for places in tied_places(model) if _parameter(places[0]).requires_grad]


def check_units(unit: nn.Module, ties: list[list[Place]]) -> None:
    """Check that the owners of tied weights lie in one unit of FSDP; see [Note: units].

    Args:
        unit: the outermost unit of FSDP.
        ties: `trained_ties` of the model before FSDP wrapped it.

    Raises: ValueError naming the owners.
    """
    flats = _flat_parameters(unit)
    unit_of = {
        (one.module, one.param_name): id(flat)
        for flat in flats
        for one in (*flat._param_infos, *flat._shared_param_infos)
    }
    for places in ties:
        if len({unit_of.get(place) for place in places}) > 1:
            refuse_split(unit, places)
    own = {id(flat) for flat in flats}
    for module in unit.modules():
        for name, one in module._parameters.items():
            if one is None or id(one) in own or not one.requires_grad or not is_flattened(one):
                continue
            if (module, name) not in unit_of:  # a unit that the script made before has flattened it
                refuse_split(unit, [(module, name)])


@contextmanager
def naming(model: nn.Module) -> Iterator[None]:
    """Let refusals within a block name owners as in a model; a block within another has no effect."""
    if _names.get() is not None:
        yield
        return
    owners = {name: names for names in ties_of(model) for name in names}
    token = _names.set(_Names({module: name for name, module in model.named_modules()}, owners))
    try:
        yield
    finally:
        _names.reset(token)


def is_flattened(parameter: nn.Parameter) -> bool:
    """Return whether a unit of FSDP holds a parameter; without `use_orig_params` its owners lose it instead."""
    return bool(getattr(parameter, _FLATTENED, False))


def refuse_split(model: nn.Module, places: Sequence[Place]) -> NoReturn:
    """Raise ValueError that names tied weights in different units of FSDP.

    Args:
        model: a model that contains the owners; the block of `naming` takes precedence.
        places: all owners, or one owner whose weight another unit holds.
    """
    known = _names.get()
    if known is None or any(module not in known.modules for module, _ in places):
        known = _Names({module: name for name, module in model.named_modules()}, {})
    owners = []
    for module, name in places:
        path = known.modules.get(module)
        owners.append(f"{path}.{name}" if path else f"{name} of a {type(module).__name__}")
    if len(owners) == 1:
        owners = known.owners.get(owners[0], owners)
    plain = [name.replace(_PREFIX, "") for name in owners]
    told = f"{plain[0]} and the weight of another module" if len(plain) == 1 else " and ".join(plain)
    raise ValueError(
        f"FSDP: {told} are tied and lie in different units of FSDP, which would train them apart or lose gradients: "
        "leave them in one unit, by an auto_wrap_policy that wraps none of these modules, or by wrapping a module that "
        "contains them all"
    )


def _flat_parameters(unit: nn.Module) -> list[Any]:
    handles = [getattr(one, "_handle", None) for one in FullyShardedDataParallel.fsdp_modules(unit)]
    return [handle.flat_param for handle in handles if handle is not None]


def _parameter(place: Place) -> nn.Parameter:
    module, name = place
    parameter = module._parameters[name]
    assert parameter is not None
    return parameter


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
