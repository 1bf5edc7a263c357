"""The base class of distributed modules: a layout, parameters that are slices or whole, and their initial values.

[Note: a program's own parts] A program derives distributed modules of its own (`smp.tp_register`) from this class and
builds them of those of `smp.nn`. What it puts beside them, such as a norm of its model's library, knows nothing of the
group: it works on hidden states as they lie outside, so its gradients are those of this rank's batch. Without
`prescaled_batch` such a parameter is averaged over dp. With it every rank has the same gradient, and the parameter is
averaged over rdp, so that a program may cut it by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from clary.train.parallel import runtime
from clary.train.parallel.layout.mesh import Along
from clary.train.parallel.tensor.collectives import TensorGroup
from clary.train.parallel.tensor.layout import Layout
from clary.train.parallel.tensor.randomness import same_randomness
from clary.train.parallel.tensor.slices import TensorSlice, draw, mark, new_parameter, slice_of

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it since 3.11

Fill = Callable[[torch.Tensor], object]
CONSTANT_FILLS: tuple[Fill, ...] = (nn.init.zeros_, nn.init.ones_)


class DistributedModule(nn.Module):
    """A module that the ranks of a tensor group hold together. Made by all of them, after `runtime.initialize`.

    Gradients of parameters that `add_parameter` makes are those of [Note: mean] in `layout`, so they are averaged over
    rdp. A parameter that is a slice has an attribute `tensor_slice`. Others: see [Note: a program's own parts].

    Raises: RuntimeError if model parallelism is not initialised.
    """

    is_distributed = True
    is_indivisible = False  # whether it reads its children's weights itself, so that all must lie on one pipeline rank

    def __init__(self) -> None:
        nn.Module.__init__(self)  # by name: what a subclass also is must not make parameters that are whole
        self.layout = current_layout()
        self.is_inner = False  # whether hidden states come and go as they lie inside a larger distributed module
        self._slices: dict[str, TensorSlice] = {}
        self._fills: dict[str, tuple[Fill, tuple[int, ...]]] = {}
        self._shared: set[str] = set()

    def be_inner(self) -> Self:
        """Take and return hidden states as they lie inside; called by the module that holds this one."""
        self.is_inner = True
        return self

    def add_parameter(self, name: str, shape: tuple[int, ...], dimension: int | None, fill: Fill) -> None:
        """Make this rank's slice of a parameter, and draw it; replicas start alike on all ranks. Collective.

        Args:
            shape: of the whole.
            dimension: the one that is cut; None for a replica on every rank.
            fill: writes the whole in place.

        Raises: NotDivisibleError if the tensor group does not divide the dimension.
        """
        dtype = torch.float16 if runtime.current().configuration.fp16_params else None
        parameter = new_parameter(shape, self.layout.group, dimension, dtype)
        self.register_parameter(name, parameter)
        piece = slice_of(parameter)
        if piece is not None:
            self._slices[name] = piece
        self._fills[name] = (fill, shape)
        self._draw(parameter, fill, shape)

    def share_parameter(self, name: str, owner: DistributedModule, owners_name: str) -> None:
        """Use another distributed module's parameter under a name of one's own.

        Args:
            name: of the parameter in this module.
            owner: draws the parameter's values; this module does not.
            owners_name: of the parameter there.
        """
        self.register_parameter(name, getattr(owner, owners_name))
        self._shared.add(name)
        if owners_name in owner._slices:
            self._slices[name] = owner._slices[owners_name]

    def parameters_of_group(self) -> Iterator[nn.Parameter]:
        """Yield this module's own parameters that `add_parameter` has made, here or in the module that shares them."""
        for name, parameter in self._parameters.items():
            if parameter is not None and (name in self._fills or name in self._shared):
                yield parameter

    def reset_parameters(self) -> None:
        """Draw this module's own parameters anew, such as after they were put off on the meta device; collective."""
        for name, (fill, shape) in self._fills.items():
            self._draw(getattr(self, name), fill, shape)

    def _draw(self, parameter: nn.Parameter, fill: Fill, shape: tuple[int, ...]) -> None:
        if slice_of(parameter) is None and fill not in CONSTANT_FILLS and not parameter.is_meta:
            with same_randomness(self.layout.group, parameter.device, runtime.current().device):
                draw(parameter, fill, shape)
        else:
            draw(parameter, fill, shape)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self._mark_again()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._mark_again()

    def _mark_again(self) -> None:
        """Moving to another device or copying may have made other parameters, which have no marks."""
        for name, piece in self._slices.items():
            parameter = self._parameters.get(name)
            if parameter is not None:
                mark(parameter, piece)


def current_layout() -> Layout:
    """Return the layout that this process's configuration asks for.

    Raises: RuntimeError if model parallelism is not initialised.
    """
    now = runtime.current()
    group = TensorGroup(now.groups.process_group(Along.TP), now.groups.group_rank(Along.TP), now.groups.size(Along.TP))
    return Layout(group, now.configuration.optimize == "memory", now.configuration.prescaled_batch)


def weight_fill(fan_in: int, normal_std: float | None) -> Fill:
    """Return the initialiser of a linear weight: normal with a standard deviation, or as torch.nn.Linear."""
    if normal_std is not None:
        normal: Fill = partial(nn.init.normal_, std=normal_std)
        return normal
    return _uniform(fan_in)  # what kaiming_uniform_ with a = sqrt(5) comes to, which nn.Linear takes


def bias_fill(fan_in: int, normal_std: float | None) -> Fill:
    """Return the initialiser of a linear bias: zeros beside normal weights, or as torch.nn.Linear."""
    if normal_std is not None:
        zeros: Fill = nn.init.zeros_
        return zeros
    return _uniform(fan_in)


def _uniform(fan_in: int) -> Fill:
    bound = 1 / math.sqrt(fan_in)
    return partial(nn.init.uniform_, a=-bound, b=bound)
