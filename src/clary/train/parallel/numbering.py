"""Numbers of an optimizer's parameters, for scripts that save their own float32 masters.

Where: `DistributedOptimizer` makes a `Numbering` and offers its methods under the names that scripts call.

[Note: what scripts do] A script with its own half-precision optimizer replaces the parameters in the groups by float32
masters. Its states hold lists of masters. To save whole masters, the script gathers the lists over the tensor group and
joins the slices of each parameter. It maps the id of a master to a number and the number to a name; another rank, whose
ids differ, maps the name back. So three properties must hold:

    a number    is the index of a parameter across all groups, as in states of torch; it never changes
    an id       of a parameter or of its master maps to the number; inverted, the number maps to the master
    an axis     is found by the id of a master, and is None if no rank has a slice
Source: amazon-sagemaker-examples of 2022 (Apache-2.0), `gpt-j/fp16/` under
`training/distributed_training/pytorch/model_parallel`, as callers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from clary.train.parallel.placed_model import PlacedModel
from clary.train.parallel.tensor.slices import dimension_of


@dataclass(frozen=True)
class Entry:
    """One parameter in the groups of an optimizer.

    Args:
        number: index across all groups.
        parameter: the model's parameter.
        stepped: the tensor that the optimizer updates: the parameter, its master or its shard. None if this rank
            updates no tensor for the parameter, or if the groups do not show which tensor.
    """

    number: int
    parameter: torch.nn.Parameter
    stepped: torch.Tensor | None


class Numbering:
    """Keeps the parameters with which an optimizer was made, since masters and shards replace them later.

    Args:
        optimizer: the inner optimizer, with the model's parameters still in its groups.
        model: the model of these parameters.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: PlacedModel) -> None:
        self._optimizer = optimizer
        self._model = model
        self._given: list[list[torch.nn.Parameter]] = []  # parameters by group; kept alive, so that ids are not reused
        self.take_new_groups()

    def take_new_groups(self) -> None:
        """Number the groups added since the last call. It must run before masters replace their parameters."""
        for group in self._optimizer.param_groups[len(self._given) :]:
            self._given.append(list(group["params"]))

    def has_any(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Return whether any of these parameters is in a group, even if a master has replaced it."""
        known = {id(one) for given in self._given for one in given}
        return any(id(one) in known for one in parameters)

    def by_id(self) -> dict[int, int]:
        """Return numbers by `id`, first of parameters, then of stepped tensors.

        Scripts invert this dictionary, so the last entry of a number wins: it must be the master.
        """
        entries = self._entries()
        of_parameters = {id(entry.parameter): entry.number for entry in entries}
        return of_parameters | {id(entry.stepped): entry.number for entry in entries if entry.stepped is not None}

    def by_name(self) -> dict[str, int]:
        """Return numbers by the model's parameter names; parameters that the optimizer lacks are left out."""
        numbers = {id(entry.parameter): entry.number for entry in self._entries()}
        return {name: numbers[id(one)] for name, one in self._model.named_parameters() if id(one) in numbers}

    def local(self) -> dict[int, torch.nn.Parameter]:
        """Return the model's parameters (not masters) that lie on this rank, by number.

        Raises: RuntimeError before the first step of a pipeline.
        """
        here = {id(one) for one in self._model.local_parameters()}
        return {entry.number: entry.parameter for entry in self._entries() if id(entry.parameter) in here}

    def axes(self) -> dict[int, int | None]:
        """Return the dimension along which tensor ranks hold slices, by `id` of the stepped tensor; None for no slice.

        Flat shards are left out, since no dimension of the parameter corresponds to the shard's.
        """
        return {
            id(entry.stepped): dimension_of(entry.parameter)
            for entry in self._entries()
            if entry.stepped is not None and entry.stepped.shape == entry.parameter.shape
        }

    def _entries(self) -> list[Entry]:
        self.take_new_groups()
        found: list[Entry] = []
        for given, group in zip(self._given, self._optimizer.param_groups, strict=True):
            for parameter, stepped in zip(given, _stepped(given, group["params"]), strict=True):
                found.append(Entry(len(found), parameter, stepped))
        return found


def _stepped(given: list[torch.nn.Parameter], now: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return, for each original parameter of a group, the tensor that the group now holds in its position.

    Masters and shards replace parameters in position. If the group has lost parameters because other ranks step them,
    positions no longer match: then the result has the parameters still in the group, and None for others.
    """
    if len(now) == len(given):
        return list(now)
    kept = {id(one) for one in now}
    return [one if id(one) in kept else None for one in given]
