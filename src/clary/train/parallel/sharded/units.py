"""Search for the units of a model: modules that are gathered as a whole, with the parameters that each needs.

A unit's parameters are gathered before its forward pass and before its backward pass, and freed after each. Without
`classes`, the search descends from the root: it opens containers and modules that hold a list of modules, since lists
hold a model's repeated layers; every other module is a unit. An opened module is a unit that has only the module's
direct parameters.

A parameter in several units (shared weights, a module with two parents, a parameter that `register_parameter` names) is
gathered for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

_REGISTERED = "_clary_registered_parameters"
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_NEVER_CALLED = (nn.ParameterList, nn.ParameterDict)  # never called; other modules use their parameters


@dataclass
class Units:
    """The units of a model, as `find_units` finds them.

    Args:
        modules: the units; the first is the root.
        users: for each parameter, the numbers of the units that need it.
        names: the first name of every parameter.
    """

    modules: list[nn.Module]
    users: dict[nn.Parameter, set[int]]
    names: dict[nn.Parameter, str]


def register_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """Register a parameter of another module that the forward pass of `module` uses. Call it before sharding.

    Raises: TypeError if `parameter` is not a Parameter.
    """
    if not isinstance(parameter, nn.Parameter):
        raise TypeError(
            f"register_parameter of {type(module).__name__} got a {type(parameter).__name__}; expected a Parameter"
        )
    registered = module.__dict__.setdefault(_REGISTERED, [])
    registered.append(parameter)


def find_units(root: nn.Module, classes: Sequence[type] = ()) -> Units:
    """Find the units of a model.

    Args:
        classes: modules of these classes are units, but not the modules within them; the root is a unit too.

    Raises: ValueError if `register_parameter` named a parameter that is not in the model.
    """
    units = Units([root], {}, {})
    numbers = {root: 0}
    for path, module, owner in _walk(root, tuple(classes), ""):
        number = numbers.setdefault(owner, len(units.modules))
        if number == len(units.modules):
            units.modules.append(owner)
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            units.names.setdefault(parameter, f"{path}{name}")
            units.users.setdefault(parameter, set()).add(number)
    for _, module, owner in _walk(root, tuple(classes), ""):
        for parameter in module.__dict__.get(_REGISTERED, ()):
            if parameter not in units.users:
                raise ValueError(
                    f"register_parameter: {type(module).__name__} names a parameter of shape {tuple(parameter.shape)} "
                    "that no module of the model owns"
                )
            units.users[parameter].add(numbers[owner])
    return units


def _walk(module: nn.Module, classes: tuple[type, ...], path: str) -> Iterator[tuple[str, nn.Module, nn.Module]]:
    """Yield all modules with their units; a module with several parents is yielded once per parent."""
    yield path, module, module
    is_opened = not path or _is_opened(module, classes)
    for name, child in module.named_children():
        below = f"{path}{name}."
        if is_opened and not isinstance(child, _NEVER_CALLED):
            yield from _walk(child, classes, below)
        else:
            yield from _walk_inside(child, module, below)


def _walk_inside(module: nn.Module, owner: nn.Module, path: str) -> Iterator[tuple[str, nn.Module, nn.Module]]:
    yield path, module, owner
    for name, child in module.named_children():
        yield from _walk_inside(child, owner, f"{path}{name}.")


def _is_opened(module: nn.Module, classes: tuple[type, ...]) -> bool:
    if classes:
        return not isinstance(module, classes)
    return isinstance(module, _CONTAINERS) or any(isinstance(one, nn.ModuleList) for one in module.modules())
