"""Assignment of a rank to every module: first to modules with parameters, by a plan, then to all modules around them.

Where: `DistributedModel` calls it with the plan, on every rank; `install` then redirects calls between ranks.

A module without parameters of its own runs with its children if all of them lie on one rank, else on the rank of its
parent; a leaf without parameters and buffers (an activation) runs on the rank of its parent. The root runs on the first
rank, which runs the step's function, unless all its modules lie on another rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from clary.train.parallel.memory.checkpointing import Placement, run_segment
from clary.train.parallel.memory.segments import Segment
from clary.train.parallel.partition.trace import indivisible_modules
from clary.train.parallel.pipeline.remote import Host, inner_call, install_door

_RUN = re.compile(r"(.*)\[(\d+):(\d+)\]")  # name of a run of children of a Sequential


@dataclass(frozen=True)
class Placed:
    """A module's path and role in the tree, without the module.

    Args:
        name: its path, "" for the root.
        has_state: whether the plan places it: it has parameters of its own, is a leaf with buffers, or is indivisible;
            but not if it is within an indivisible module.
        within: path of the ancestor that must lie on one rank with all its descendants.
    """

    name: str
    has_state: bool
    within: str | None = None


def describe(root: torch.nn.Module) -> list[Placed]:
    """Return the path and role of every module for `owners_of`, parents before children."""
    found = []
    wholes = indivisible_modules(root)
    for name, module in root.named_modules():
        is_leaf = next(module.children(), None) is None
        has_parameters = next(module.parameters(recurse=False), None) is not None
        has_buffers = next(module.buffers(recurse=False), None) is not None
        whole = next((one for one in wholes if one and name.startswith(f"{one}.")), None)
        has_state = (has_parameters or (is_leaf and has_buffers) or name in wholes) and whole is None
        found.append(Placed(name, has_state, whole))
    return found


def owners_of(modules: Sequence[Placed], part_of: Mapping[str, int]) -> dict[str, int]:
    """Return the pipeline rank of every module.

    Args:
        modules: parents before children.
        part_of: pipeline rank of every module that has state; entries of other modules are ignored.

    Raises: KeyError if a module with state has no part.
    """
    below: dict[str, set[int]] = {one.name: set() for one in modules}
    for one in modules:
        if one.has_state:
            for name in _ancestors(one.name):
                if name in below:
                    below[name].add(part_of[one.name])
    owners: dict[str, int] = {}
    for one in modules:
        parent = next((name for name in list(_ancestors(one.name))[1:] if name in owners), None)
        if one.within is not None:
            owners[one.name] = owners[one.within]
        elif one.has_state:
            owners[one.name] = part_of[one.name]
        elif len(below[one.name]) == 1:
            owners[one.name] = next(iter(below[one.name]))
        else:
            owners[one.name] = owners[parent] if parent is not None else 0
    return owners


def install(root: torch.nn.Module, owners: Mapping[str, int], rank: int, host: Host) -> None:
    """Redirect calls of modules to their ranks; adjacent children of a Sequential on one rank are one request.

    Args:
        root: the whole model, made on every rank.
        owners: pipeline rank of every module, by its path.
        rank: pipeline rank of this process.
        host: sends the calls.
    """
    owner_of = {module: owners[name] for name, module in root.named_modules()}
    for name, module in root.named_modules():
        if owners[name] != rank:
            install_door(module, _remote(host, owners[name], name))
        elif type(module).forward is torch.nn.Sequential.forward and "forward" not in module.__dict__:
            module.__dict__["forward"] = _in_runs(module, name, owner_of, rank, host)


def finder(root: torch.nn.Module) -> Callable[[str], Callable[..., Any]]:
    """Return the function that maps names to callables for `Host`: modules, and runs of children of a Sequential."""
    modules = dict(root.named_modules())

    def find(name: str) -> Callable[..., Any]:
        if (match := _RUN.fullmatch(name)) is None:
            return inner_call(modules[name])
        sequence, start, stop = modules[match[1]], int(match[2]), int(match[3])
        children = list(sequence._modules.values())[start:stop]  # `children()` skips repeated modules

        def run(value: Any, checkpointing: dict[str, Any] | None = None) -> Any:
            if checkpointing is not None:
                return run_segment(sequence, Segment(start, stop, None), value, **checkpointing)
            for child in children:
                value = child(value)
            return value

        return run

    return find


def checkpointing_placement(
    root: torch.nn.Module, owners: Mapping[str, int], rank: int, host: Host, *, is_manual: bool
) -> Placement:
    """Return the placement for activation checkpointing: modules are recomputed on their own rank.

    Args:
        root: the whole model, made on every rank.
        owners: pipeline rank of every module, by its path.
        rank: pipeline rank of this process.
        host: sends calls of segments that lie on other ranks.
        is_manual: whether the script placed modules itself.
    """
    names = {module: name for name, module in root.named_modules()}

    def run_there(sequence: torch.nn.Module, segment: Segment, value: Any, **how: Any) -> Any:
        assert segment.owner is not None
        name = f"{names[sequence]}[{segment.start}:{segment.stop}]"
        return host.call(segment.owner, name, (value,), {"checkpointing": how})

    def owner_of(module: torch.nn.Module) -> int | None:
        return owners.get(names[module]) if module in names else None

    return Placement(rank, owner_of, is_manual=is_manual, run_segment=run_there)


def release_others(root: torch.nn.Module, owners: Mapping[str, int], rank: int) -> None:
    """Free the memory of parameters that other ranks hold, but keep their shapes.

    Args:
        root: the whole model, made on every rank.
        owners: pipeline rank of every module, by its path.
        rank: pipeline rank of this process.
    """
    for name, module in root.named_modules():
        for parameter in module.parameters(recurse=False):
            if owners[name] != rank:
                parameter.data = parameter.data.new_zeros(()).expand(parameter.shape)
                parameter.grad = None


def _remote(host: Host, owner: int, name: str) -> Callable[..., Any]:
    def enter(*args: Any, **kwargs: Any) -> Any:
        return host.call(owner, name, args, kwargs)

    return enter


def _in_runs(
    module: torch.nn.Module, name: str, owner_of: Mapping[torch.nn.Module, int], rank: int, host: Host
) -> Callable[[Any], Any]:
    children = [child for child in module._modules.values() if child is not None]

    def forward(value: Any) -> Any:
        for owner, places in groupby(range(len(children)), key=lambda place: owner_of[children[place]]):
            run = list(places)
            if owner == rank:
                for place in run:
                    value = children[place](value)
            else:
                value = host.call(owner, f"{name}[{run[0]}:{run[-1] + 1}]", (value,), {})
        return value

    return forward


def _ancestors(name: str) -> Iterator[str]:
    """Yield a path and all paths above it, up to the root."""
    while name:
        yield name
        name = name.rpartition(".")[0]
    yield ""
