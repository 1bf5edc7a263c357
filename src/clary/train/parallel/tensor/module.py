"""The base class of distributed modules: a layout, parameters (slices or whole), and their initial values.

[Note: a program's own parts] A program derives its own distributed modules (`smp.tp_register`) from this class and
builds them from modules of `smp.nn`. Other modules in them, such as a norm from the model's library, ignore the group:
they use hidden states in the outside layout, so their gradients are those of this rank's batch. Without
`prescaled_batch`, the gradient of such a parameter is averaged over dp. With it, every rank has the same gradient,
which is averaged over rdp, so that a program may cut the parameter itself.
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
    from typing_extensions import Self  # `typing` has it since Python 3.11

Fill = Callable[[torch.Tensor], object]
CONSTANT_FILLS: tuple[Fill, ...] = (nn.init.zeros_, nn.init.ones_)


class DistributedModule(nn.Module):
    """A module cut over a tensor group. All ranks of the group construct it, after `runtime.initialize`.

    Gradients of parameters made by `add_parameter` follow [Note: mean] in `layout`, so they are averaged over rdp. A
    slice has the attribute `tensor_slice`. For other parameters see [Note: a program's own parts].

    Raises: RuntimeError if model parallelism is not initialised.
    """

    is_distributed = True
    is_indivisible = False  # whether it reads its children's weights, so that all must lie on one pipeline rank

    def __init__(self) -> None:
        nn.Module.__init__(self)  # not super(): another base class must not make whole parameters
        self.layout = current_layout()
        self.is_inner = False  # whether it is part of a distributed module and uses the inside layout
        self._slices: dict[str, TensorSlice] = {}
        self._fills: dict[str, tuple[Fill, tuple[int, ...]]] = {}
        self._shared: set[str] = set()

    def be_inner(self) -> Self:
        """Switch inputs and outputs to the inside layout; the enclosing distributed module calls it."""
        self.is_inner = True
        return self

    def add_parameter(self, name: str, shape: tuple[int, ...], dimension: int | None, fill: Fill) -> None:
        """Make and initialise this rank's slice of a parameter; replicas start equal on all ranks. Collective.

        Args:
            shape: shape of the whole parameter.
            dimension: the dimension to cut; None for a replica on every rank.
            fill: writes the whole tensor in place.

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
        """Use another distributed module's parameter under this module's own name.

        Args:
            name: name of the parameter in this module.
            owner: the module that initialises the parameter.
            owners_name: name of the parameter in the owner.
        """
        self.register_parameter(name, getattr(owner, owners_name))
        self._shared.add(name)
        if owners_name in owner._slices:
            self._slices[name] = owner._slices[owners_name]

    def parameters_of_group(self) -> Iterator[nn.Parameter]:
        """Yield this module's own parameters that `add_parameter` made, in this module or in their owner."""
        for name, parameter in self._parameters.items():
            if parameter is not None and (name in self._fills or name in self._shared):
                yield parameter

    def reset_parameters(self) -> None:
        """Initialise this module's own parameters again, for example after a move from the meta device. Collective."""
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
        """Mark the parameters again, since a copy or a move to a device may have replaced them without marks."""
        for name, piece in self._slices.items():
            parameter = self._parameters.get(name)
            if parameter is not None:
                mark(parameter, piece)


def current_layout() -> Layout:
    """Return the layout for this process's configuration.

    Raises: RuntimeError if model parallelism is not initialised.
    """
    now = runtime.current()
    group = TensorGroup(now.groups.process_group(Along.TP), now.groups.group_rank(Along.TP), now.groups.size(Along.TP))
    return Layout(group, now.configuration.optimize == "memory", now.configuration.prescaled_batch)


def weight_fill(fan_in: int, normal_std: float | None) -> Fill:
    """Return the initialiser of a linear weight: normal if `normal_std` is given, else as in torch.nn.Linear."""
    if normal_std is not None:
        normal: Fill = partial(nn.init.normal_, std=normal_std)
        return normal
    return _uniform(fan_in)  # equal to kaiming_uniform_ with a = sqrt(5), as in nn.Linear


def bias_fill(fan_in: int, normal_std: float | None) -> Fill:
    """Return the initialiser of a linear bias: zeros if `normal_std` is given, else as in torch.nn.Linear."""
    if normal_std is not None:
        zeros: Fill = nn.init.zeros_
        return zeros
    return _uniform(fan_in)


def _uniform(fan_in: int) -> Fill:
    bound = 1 / math.sqrt(fan_in)
    return partial(nn.init.uniform_, a=-bound, b=bound)
